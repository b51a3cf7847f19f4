"""One identity for the whole suite: script.py is loaded once, the webui's way, as `training_pro`."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from pathlib import Path

from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models on shared cores: threads would wait for each other
PROFILES = {"day": 10, "night": 500}
"""How many examples a law is tried with: each day, and by the long tests."""
MODULES_OF_A_LIBRARY = 100
modules_frozen = 0


def load_script() -> None:
    spec = importlib.util.spec_from_file_location("training_pro", ROOT / "script.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


if "training_pro" not in sys.modules:
    load_script()

from training_pro.tests.file_report import FileReport  # noqa: E402
from training_pro.tests.standin_hub import hub, served_hub  # noqa: E402, F401
from training_pro.tests.tiny import disk, empty_pictures, lora, place, tiny, with_lora  # noqa: E402, F401


def pytest_configure(config) -> None:
    for name, examples in PROFILES.items():
        settings.register_profile(name, max_examples=examples, deadline=None, database=None, derandomize=True)
    is_long = config.option.markexpr == "long"
    settings.load_profile("night" if is_long else "day")
    if not hasattr(config, "workerinput"):  # one of several processes reports to the first
        is_whole = is_long and not config.option.keyword and not any("::" in word for word in config.args)
        config.pluginmanager.register(FileReport(durations=config.option.durations is not None, records=is_whole))


def pytest_runtest_logfinish() -> None:
    """Exclude the objects of libraries imported since from later garbage collections, which every run makes."""
    global modules_frozen
    if len(sys.modules) > modules_frozen + MODULES_OF_A_LIBRARY:
        gc.collect()
        gc.freeze()
        modules_frozen = len(sys.modules)

"""Faults of the host: libraries that can't be imported, a host without a function, a model that goes away."""

from __future__ import annotations

import subprocess
import sys

import pytest
from training_pro.commands.environment import ROOT
from training_pro.core.jobs import Session
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import StandaloneHost

# psutil is not among them: accelerate needs it, so no run starts without it.
OPTIONAL = (
    "matplotlib", "bitsandbytes", "datasets", "tensorboard", "pypdf", "pyarrow", "markdown", "gguf",
    "charset_normalizer", "lxml",
)  # fmt: skip
PROGRAM = """
import importlib.util
import sys

missing = sys.argv[1].split(",")
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in missing:
            if BROKEN:
                raise ImportError(f"DLL load failed while importing {name}")
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
BROKEN = sys.argv[2] == "broken"
from pathlib import Path
find_spec = importlib.util.find_spec
def find_existing(name, package=None):
    return None if not BROKEN and name.split(".")[0] in missing else find_spec(name, package)
if not BROKEN:
    importlib.util.find_spec = find_existing
sys.meta_path.insert(0, Missing())
sys.path.insert(0, sys.argv[3] + "/tests")
import conftest
from training_pro.core.jobs import Session
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import StandaloneHost, standalone_folders
from training_pro.hosts.tiny import TRAINING_TEXT
from training_pro.tests.tiny import QUICK
from training_pro.settings.parsing import training_settings

folders = standalone_folders(Path(sys.argv[4]))
folders.datasets.mkdir(parents=True)
(folders.datasets / "story.txt").write_text(TRAINING_TEXT, encoding="utf-8")
host, session = StandaloneHost(folders, model=sys.argv[5]), Session()
settings = training_settings({**QUICK, "max_steps": 2})
job = session.train("a", host, lambda job: PeftEngine().train(settings, host, job))
job.log.wait_closed()
print(job.end.outcome, "|", repr(job.end.text))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "library", [OPTIONAL[0], *(pytest.param(name, marks=pytest.mark.hours) for name in OPTIONAL[1:])]
)
def test_without_an_optional_library_a_run_finishes(tiny, tmp_path, proof, record_property, library):
    """The short form tries all of them missing at once, the long form each alone, missing and broken."""
    record_property("what", "A run finishes without optional libraries")
    attempts = [(library, "missing"), (library, "broken")]
    if library == OPTIONAL[0]:
        attempts = [(",".join(OPTIONAL[:-1]), "missing")]
    for number, (missing, how) in enumerate(attempts):
        with proof.case(f"{missing} {how}"):
            words = [missing, how, str(ROOT), str(tmp_path / str(number)), str(tiny)]
            command = [sys.executable, "-c", PROGRAM, *words]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            said = result.stdout.splitlines()[-1:] or [""]
            assert said[0].startswith("finished"), (result.stdout[-1000:], result.stderr[-3000:])


class LossyHost(StandaloneHost):
    """A host whose methods fail from a moment on, as one whose version has lost them."""

    broken: str = ""

    def __getattribute__(self, name):
        if name == object.__getattribute__(self, "broken"):
            raise AttributeError(f"module 'modules.models' has no attribute {name!r}")
        return super().__getattribute__(name)


FUNCTIONS = ("card", "loaded_model", "folders", "memory", "set_loras", "exclusive_use", "reload", "unload")


@pytest.mark.long
def test_a_host_without_a_function_ends_a_run_with_a_sentence_and_the_next_run_works(
    place, proof, record_property
):
    what = "The host program lacks a function: the run finishes or ends with a message, and the next run works"
    record_property("what", what)
    host, session = LossyHost(place.folders, model=str(place.tiny)), Session()

    def run(**more):
        job = session.train("a", host, lambda job: PeftEngine().train(settings, host, job, **more))
        job.log.wait_closed()
        return job.end

    for function in FUNCTIONS:
        with proof.case(function):
            settings = place.settings(name=f"without-{function}", max_steps=2)
            host.broken = function
            end = run()
            host.broken = ""
            assert end.outcome == "finished" or function in end.text, end
            assert session.current is None
            assert run(resume="newest").outcome == "finished"

"""Start a Python process that runs a module of this program.

It is a plain Python that loads this program as a package of its own: `multiprocessing` would load the program that
runs now once more, which may be the webui.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).resolve().parents[3] / "script.py"
BOOTSTRAP = """
import importlib, importlib.util, json, sys
sys.path[:] = json.loads(sys.argv[1])
spec = importlib.util.spec_from_file_location("training_pro", sys.argv[2])
sys.modules["training_pro"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
importlib.import_module(sys.argv[3]).serve()
"""


def start_python(module: str, errors: Any, environment: Mapping[str, str] = os.environ) -> subprocess.Popen[bytes]:
    """Start a process that runs `serve()` of a module (`data.workers.child`), with pipes to it and from it."""
    return subprocess.Popen(
        [sys.executable, "-c", BOOTSTRAP, json.dumps(sys.path), str(SCRIPT), f"training_pro.{module}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=environment,
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )

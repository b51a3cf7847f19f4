"""Time that Training PRO adds to the start of the webui: importing script.py and building the tab.

    python3 bench/importing.py [--rounds 5]

Every round runs in a new process. Prints the rows of docs/benchmarks.md, with gradio's import for comparison:
medians in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WEBUI_STANDIN = ROOT / "tests" / "webui_standin"
HEAVY_LIBRARIES = ("torch", "transformers", "peft")
ROUNDS = 5
START_CODE = """
import gc, importlib.util, json, sys, time
gc.disable()  # a pass over gradio's objects takes 0.09 s, and falls into our part by chance
script, standin, user_data, *heavy = sys.argv[1:]
sys.path.insert(0, standin)
clock = [time.perf_counter()]
import gradio
clock.append(time.perf_counter())
spec = importlib.util.spec_from_file_location("user_ext_Training_PRO", script)
extension = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = extension
spec.loader.exec_module(extension)
clock.append(time.perf_counter())
from modules import shared
shared.read(["--user-data-dir", user_data])
with gradio.Blocks(analytics_enabled=False) as page:
    clock.append(time.perf_counter())
    with gradio.Tab("Training PRO"):
        extension.ui()
    clock.append(time.perf_counter())
ids = [getattr(block, "elem_id", None) for block in page.blocks.values()]
seconds = {"gradio": clock[1] - clock[0], "script": clock[2] - clock[1], "tab": clock[4] - clock[3]}
loaded = [name for name in heavy if name in sys.modules]
print(json.dumps({**seconds, "drawn": "tp-start" in ids, "heavy": loaded}))
"""


@dataclass(frozen=True)
class Start:
    """One start of a webui: seconds of each part, whether our tab was drawn, and the heavy libraries it loaded."""

    gradio: float
    script: float
    tab: float
    drawn: bool
    heavy: list[str]

    @property
    def ours(self) -> float:
        return self.script + self.tab


def measure_starts(rounds: int = ROUNDS, *, warm_up: bool = True) -> list[Start]:
    """Measure starts, after one that is not counted because it compiles changed files."""
    with tempfile.TemporaryDirectory() as user_data:
        command = [
            sys.executable,
            "-c",
            START_CODE,
            str(ROOT / "script.py"),
            str(WEBUI_STANDIN),
            user_data,
            *HEAVY_LIBRARIES,
        ]
        return [_run_start(command) for _ in range(warm_up + rounds)][warm_up:]


def _run_start(command: list[str]) -> Start:
    """Run one start with cached bytecode, as for a user."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if process.returncode:
        raise RuntimeError(process.stderr)
    return Start(**json.loads(process.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    measured = measure_starts(parser.parse_args().rounds)
    import gradio

    print(f"Python {platform.python_version()}, gradio {gradio.__version__}, {len(measured)} rounds")
    print("| part | median, s | least, s | most, s |\n| --- | --- | --- | --- |")
    for name in ("gradio", "script", "tab", "ours"):
        seconds = [getattr(start, name) for start in measured]
        print(f"| {name} | {statistics.median(seconds):.3f} | {min(seconds):.3f} | {max(seconds):.3f} |")


if __name__ == "__main__":
    main()

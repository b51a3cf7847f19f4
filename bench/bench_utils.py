"""What the benchmarks share: the project as a package, a process for each measurement, memory, tables."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def load() -> None:
    """Load script.py the way the webui does, under the name `training_pro`."""
    spec = importlib.util.spec_from_file_location("training_pro", ROOT / "script.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


def run_python(arguments: Iterable[object], environment: Mapping[str, str] = os.environ) -> Any:
    """Run Python in a process of its own, with its own caches and memory, and return the JSON of its last line."""
    command = [sys.executable, *map(str, arguments)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if process.returncode:
        raise SystemExit(process.stderr[-3000:])
    return json.loads(process.stdout.splitlines()[-1])


def load_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def reset_peak_memory() -> int:
    """Reset the peak memory (Linux) and return the bytes in use now."""
    clear = Path("/proc/self/clear_refs")
    if not clear.exists():
        return peak_memory()
    import resource  # not on Windows

    clear.write_text("5")
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak_memory() -> int:
    """Peak memory of this process, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) * 1024
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def print_table(*rows: Iterable[object]) -> None:
    """Print a Markdown table; the first row is its heading."""
    for number, row in enumerate(rows):
        cells = [str(cell) for cell in row]
        print(f"| {' | '.join(cells)} |", flush=True)
        if not number:
            print(f"| {' | '.join(['---'] * len(cells))} |")

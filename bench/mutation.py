"""Mutation testing: small faults are put into a module, one at a time, and its tests must notice each.

    python3 bench/mutation.py [MODULE ...] [--mutants 100] [--results FILE]

Prints one row for each module, and the mutants that survived. Each mutant runs in a fork of one process that has
loaded the libraries and the module's tests import it anew, so a mutant costs about the time of its tests.
Finished mutants are in a file of results, and a second call continues after them. Not for Windows.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.machinery
import json
import os
import random
import resource
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench_utils

TESTS = {
    "schedulers.py": ["tests/test_schedulers.py"],
    "dementor.py": ["tests/test_dementor.py", "tests/test_chunking.py"],
    "train_utils.py": ["tests/test_train_utils.py"],
    "chunking.py": ["tests/test_chunking.py", "tests/test_dementor.py"],
    "engine/compute/loss.py": ["tests/engine/compute/test_loss.py"],
    "engine/compute/collator.py": ["tests/engine/compute/test_collator.py"],
    "engine/saving/checkpoints.py": ["tests/engine/saving/test_checkpoints.py"],
}
# Other tests of the short suite that run the module; only mutants that its own tests let live are tried on them.
WIDER_TESTS = {
    "schedulers.py": ["tests/seeds/test_learning.py", "tests/engine/training", "tests/settings"],
    "dementor.py": ["tests/data/text", "tests/data/test_prepare.py", "tests/seeds"],
    "train_utils.py": [
        "tests/data/report",
        "tests/core",
        "tests/records",
        "tests/interface/run",
        "tests/engine/inference/test_recall.py",
    ],
    "chunking.py": [
        "tests/data/text",
        "tests/data/test_prepare.py",
        "tests/data/test_large_texts.py",
        "tests/seeds",
    ],
    "engine/compute/loss.py": [
        "tests/engine/compute",
        "tests/engine/inference",
        "tests/hosts/test_packed_gguf.py",
    ],
    "engine/compute/collator.py": ["tests/engine/compute", "tests/engine/test_length_then_order.py"],
    "engine/saving/checkpoints.py": [
        "tests/engine/saving",
        "tests/engine/test_going_on.py",
        "tests/engine/training",
    ],
}
COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATIONS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
SEED = 12
PROCESSOR_SECONDS = 300


@dataclass(frozen=True)
class Mutant:
    """One fault: what changed in which line, and the source with it."""

    line: int
    change: str
    source: str


def main() -> None:
    args = _parse_args()
    finished: dict[str, dict[str, bool]] = json.loads(args.results.read_text()) if args.results.exists() else {}
    _load_libraries()
    for module in args.modules:
        results = finished.setdefault(module, {})
        unchanged = (bench_utils.ROOT / module).read_text(encoding="utf-8")
        if args.wider and is_killed(unchanged, module, WIDER_TESTS[module]):
            raise SystemExit(f"The other tests of {module} fail without any fault.")
        for mutant in sample_mutants(module, args.mutants):
            key = f"{mutant.line}: {mutant.change}"
            wider_key = f"{key} (wider)"
            if args.wider and not results.get(key) and wider_key not in results:
                results[wider_key] = is_killed(mutant.source, module, WIDER_TESTS[module])
                args.results.write_text(json.dumps(finished, indent=1))
                print(f"{'killed' if results[wider_key] else 'survived'} {module} {wider_key}", file=sys.stderr)
            if key not in results:
                results[key] = is_killed(mutant.source, module, TESTS[module])
                args.results.write_text(json.dumps(finished, indent=1))
                print("." if results[key] else f"\nsurvived {module} {key}\n", end="", file=sys.stderr, flush=True)
    rows = [summarize(module, finished[module]) for module in args.modules]
    bench_utils.print_table(["module", "mutants", "killed", "killed by other tests", "share"], *rows)


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", default=list(TESTS), metavar="MODULE", help=", ".join(TESTS))
    parser.add_argument("--mutants", type=int, default=100, help="most for each module, drawn with a fixed seed")
    parser.add_argument("--wider", action="store_true", help="try those that are alive on other tests, too")
    results = Path(tempfile.gettempdir()) / "training-pro-mutation.json"
    parser.add_argument("--results", type=Path, default=results)
    args = parser.parse_args()
    if sys.platform == "win32":
        parser.error("mutation testing needs fork, which Windows does not have")
    if unknown := [module for module in args.modules if module not in TESTS]:
        parser.error(f"no tests are known for {', '.join(unknown)}. Choose from {', '.join(TESTS)}")
    return args


def _load_libraries() -> None:
    """Import what the tests import, but nothing of ours: that, each fork imports with its mutant."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import hypothesis  # noqa: F401
    import peft  # noqa: F401
    import pytest  # noqa: F401
    import torch
    from transformers import Trainer  # noqa: F401

    torch.set_num_threads(1)


def summarize(module: str, results: dict[str, bool]) -> list[object]:
    own = {key: value for key, value in results.items() if not key.endswith(" (wider)")}
    killed, also = sum(own.values()), sum(results.values()) - sum(own.values())
    return [f"`{module}`", len(own), killed, also, f"{(killed + also) / max(len(own), 1):.0%}"]


def sample_mutants(module: str, most: int) -> list[Mutant]:
    """All mutants of a module, or a sample with a fixed seed, in the order of their lines."""
    mutants = list(mutate((bench_utils.ROOT / module).read_text(encoding="utf-8")))
    if len(mutants) > most:
        mutants = random.Random(SEED).sample(mutants, most)
    return sorted(mutants, key=lambda mutant: (mutant.line, mutant.change))


def mutate(source: str) -> Iterator[Mutant]:
    """Each change of each node of a source, as a source of its own."""
    tree = ast.parse(source)
    for number, node in enumerate(_walk(tree)):
        for variant in range(len(changes(node))):
            changed = copy.deepcopy(tree)
            target = list(_walk(changed))[number]
            before = ast.unparse(target)
            changes(target)[variant]()
            after = ast.unparse(target) if not isinstance(target, ast.Expr) else "pass"
            change = f"{before} -> {after}"
            if isinstance(target, ast.Expr):
                target.value = ast.Constant(None)
            yield Mutant(node.lineno, f"[{node.col_offset}] {change}"[:200], ast.unparse(changed))


def _walk(tree: ast.AST) -> Iterator[Any]:
    """Every node that runs; annotations, docstrings and the texts of errors do not."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr | ast.Import | ast.ImportFrom):
                if isinstance(child, ast.keyword) and child.arg == "strict":
                    continue  # the guard of a zip whose sequences are equally long
                yield child
                yield from _walk(child)


def changes(node: Any) -> list[Any]:
    """What can be changed about a node; each function changes it in place."""
    if isinstance(node, ast.Compare):
        return [lambda: node.ops.__setitem__(0, COMPARISONS[type(node.ops[0])]())]
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in OPERATIONS:
        return [lambda: setattr(node, "op", OPERATIONS[type(node.op)]())]
    if isinstance(node, ast.BoolOp):
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        return [lambda: setattr(node, "op", other())]
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return [lambda: setattr(node, "value", not node.value)]
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return [lambda: setattr(node, "value", node.value + 1)]
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        return [lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test))]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        return [lambda: setattr(node, "op", ast.UAdd() if isinstance(node.op, ast.USub) else ast.Not())][
            : isinstance(node.op, ast.USub)
        ]
    if isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        return [lambda: setattr(node, "value", ast.Constant(None))]
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
        return [lambda: None]
    if isinstance(node, ast.Break | ast.Continue):
        return []
    return []


def is_killed(source: str, module: str, tests: list[str]) -> bool:
    """Run tests on a mutant of a module in a fork; whether they fail, or do not end."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(_test(source, module, tests))
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return status != 0


def _test(source: str, module: str, tests: list[str]) -> int:
    import pytest

    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS, PROCESSOR_SECONDS))
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    path = str(bench_utils.ROOT / module)
    original = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: Any, name: str) -> Any:
        return compile(source, path, "exec") if self.path == path else original(self, name)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    os.chdir(bench_utils.ROOT)
    with tempfile.TemporaryDirectory() as scratch:
        options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not long", f"--basetemp={scratch}/pytest"]
        return int(pytest.main([*options, *tests]))


if __name__ == "__main__":
    main()

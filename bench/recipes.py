"""What works: trains by many recipes on small data, and reports what each learned and forgot.

    python3 bench/recipes.py run --small [--minutes 30]        the arms behind the main answers
    python3 bench/recipes.py run [--only law,facts] [--minutes 480]
    python3 bench/recipes.py run --text FILE                   another text in place of the story
    python3 bench/recipes.py report                            writes docs/what-works.md and the plots
    python3 bench/recipes.py null                              how often the page's rule claims a false difference

Every run is appended to a CSV when it ends, and a run that is in the CSV is skipped, so that a series can be
stopped and continued at any time. With --minutes, no run starts that would probably not end in time. The
model is the demo model, which is made under user_data/models if it is not there, or the folder given by --model.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import bench_utils

MODELS = bench_utils.ROOT / "user_data" / "models"
RESULTS = bench_utils.ROOT / "bench" / "recipe_data" / "results.csv"
PAGE = bench_utils.ROOT / "docs" / "what-works.md"
CHARS, TOKENS, PASSES = 4500, 8000, 2.0
FIRST_GUESS_SECONDS = 240.0


def main() -> None:
    args = parse_args()
    if getattr(args, "threads", None):
        os.environ["OMP_NUM_THREADS"] = str(args.threads)  # before torch is loaded
    bench_utils.load()
    if args.command == "run":
        make_runs(args)
    elif args.command == "null":
        check_rule(args)
    else:
        write_report(args)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run, report, null = (commands.add_parser(name) for name in ("run", "report", "null"))
    for each in (run, report, null):
        each.add_argument("--results", type=Path, default=RESULTS)
    run.add_argument("--model", type=Path, help="folder of a model; the demo model if not given")
    run.add_argument("--small", action="store_true", help="only the arms of the small form")
    run.add_argument("--only", default="", help="names of experiments, separated by commas")
    run.add_argument("--text", type=Path, help="a text in place of the story")
    run.add_argument("--minutes", type=float, help="start no run that would probably not end in time")
    run.add_argument("--seeds", type=int, default=3)
    run.add_argument("--threads", type=int)
    run.add_argument("--chars", type=int, default=CHARS, help="characters of data to train on")
    run.add_argument("--tokens", type=int, default=TOKENS, help="tokens that a run trains on")
    run.add_argument(
        "--passes", type=float, default=PASSES, help="passes of a run that is compared at equal passes"
    )
    null.add_argument("--tables", type=int, default=2000, help="simulated tables of each kind")
    report.add_argument("--page", type=Path, default=PAGE)
    report.add_argument("--plots", type=Path, help="folder for the plots; beside the CSV if not given")
    return parser.parse_args()


def make_runs(args: argparse.Namespace) -> None:
    """Make the runs that the CSV does not have yet."""
    from training_pro.bench.recipe import arms, results, runs
    from training_pro.hosts.demo_model import make_demo_model

    names = choose_experiments(args.only, arms.EXPERIMENTS)
    model = args.model or make_demo_model(MODELS, print)
    size = runs.Size(args.chars, args.tokens, args.passes)
    done = {result.key: result for result in results.read_results(args.results)}
    with tempfile.TemporaryDirectory() as scratch:
        lab = runs.Lab.open(model.resolve(), Path(scratch), size, args.text)
        write_sizes(lab, args.results)
        planned = arms.list_runs(names, range(1, args.seeds + 1), small=args.small)
        refusals = [lab.refusal(run) for run in planned]
        for text in dict.fromkeys(filter(None, refusals)):
            print(f"Left out: {text}")
        planned = [run for run, refusal in zip(planned, refusals, strict=True) if not refusal]
        waiting = [run for run in planned if lab.key(run) not in done]
        print(
            f"{len(planned)} runs, {len(planned) - len(waiting)} of them done. Results: {args.results}", flush=True
        )
        run_waiting(lab, waiting, shared_results(lab, args.seeds, done), args)


def write_sizes(lab: Any, results: Path) -> None:
    """Write how large the data are, beside the results; data of earlier series stay."""
    file = sizes_file(results)
    sizes = read_sizes(results)
    for name in ("story", "notes", "chats"):
        data = lab.read(name)
        sizes[f"{data.name} ({data.digest})"] = lab.data_sizes(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(sizes, indent=1) + "\n", encoding="utf-8", newline="\n")


def sizes_file(results: Path) -> Path:
    return results.with_name(f"{results.stem}-sizes.json")


def read_sizes(results: Path) -> dict[str, dict[str, int]]:
    file = sizes_file(results)
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def shared_results(lab: Any, seeds: int, done: dict[Any, Any]) -> dict[str, Any]:
    """The results that are there, by their recipe."""
    from training_pro.bench.recipe import arms

    every = arms.list_runs(list(arms.EXPERIMENTS), range(1, seeds + 1), small=False)
    return {lab.recipe(run): done[lab.key(run)] for run in every if lab.key(run) in done}


def run_waiting(lab: Any, waiting: list[Any], made: dict[str, Any], args: argparse.Namespace) -> None:
    """Make one run after the other, until the time is over; a recipe that was run already is not run again."""
    from training_pro.bench.recipe import results, runs

    def share(run: Any) -> bool:
        """Copy the result of the same recipe in another experiment, if it is there."""
        if twin := made.get(lab.recipe(run)):
            results.append_result(args.results, replace(twin, **lab.key(run)._asdict()))
            print(
                f"{run.experiment}: {run.arm.name}, seed {run.seed}: as {twin.experiment}: {twin.arm}", flush=True
            )
        return twin is not None

    start, times = time.monotonic(), list[float]()
    waiting = [run for run in waiting if not share(run)]  # all of them first: copies take no time
    for number, run in enumerate(waiting, start=1):
        title = f"{number}/{len(waiting)} {run.experiment}: {run.arm.name}, seed {run.seed}"
        if share(run):
            continue
        if not fits(time.monotonic() - start, times[-8:] or [FIRST_GUESS_SECONDS], args.minutes):
            print(f"Stopped before the next run would pass {args.minutes:g} minutes. Repeat to continue.")
            return
        began = time.monotonic()
        result = made[lab.recipe(run)] = lab.make(run)
        times.append(time.monotonic() - began)
        results.append_result(args.results, result)
        print(f"{title}: {times[-1]:.0f} s, {runs.describe(result)}", flush=True)


def choose_experiments(only: str, experiments: Any) -> list[str]:
    names = [name.strip() for name in only.split(",") if name.strip()] or list(experiments)
    if unknown := [name for name in names if name not in experiments]:
        sys.exit(f"There is no experiment {', '.join(unknown)}. Choose from: {', '.join(experiments)}.")
    return names


def fits(elapsed: float, times: list[float], minutes: float | None) -> bool:
    """Whether the next run would probably end in time: one and a half times the median of the last ones."""
    return minutes is None or elapsed + 1.5 * statistics.median(times) <= 60 * minutes


def write_report(args: argparse.Namespace) -> None:
    from training_pro.bench.recipe import report, results

    made = results.read_results(args.results)
    folder = args.plots or args.results.parent
    plots = report.draw(made, folder)
    shown_from_page = Path(os.path.relpath(folder, args.page.parent)).as_posix()
    args.page.write_text(
        report.page(made, shown_from_page, read_sizes(args.results)), encoding="utf-8", newline="\n"
    )
    print(f"{len(made)} runs. Tables: {args.page}. Plots: {', '.join(map(str, plots)) or 'none yet'}")


def check_rule(args: argparse.Namespace) -> None:
    """Simulate tables without differences, and tables in which one setup differs by 15 points of recall."""
    import numpy as np
    from training_pro.bench.recipe import comparison, report, results

    rng = np.random.default_rng(1)
    tables = report.real_tables(results.read_results(args.results))
    rows = [
        (name, len(figures[0]), f"{comparison.false_claims(figures, args.tables, rng):.1%}")
        for name, figures in tables.items()
    ]
    bench_utils.print_table(("real table, its means made equal", "setups", "tables with a false claim"), *rows)
    recall = [figures[0] for name, figures in tables.items() if name.startswith(("slicing", "rates", "strength"))]
    noise = comparison.pool_residuals(recall)
    rows = [
        (
            setups,
            seeds,
            *(f"{each:.1%}" for each in comparison.found(noise, setups, seeds, 0.15, args.tables, rng)),
        )
        for setups in (2, 5, 15)
        for seeds in (3, 6, 12)
    ]
    print()
    bench_utils.print_table(("setups", "runs each", "tables with a false claim", "15 points found"), *rows)


if __name__ == "__main__":
    main()

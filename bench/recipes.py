"""What works: trains in many ways on four texts, and reports what each learned for how much forgotten.

    python3 bench/recipes.py run [--questions rate,epochs] [--ways WAY,WAY] [--minutes 480] [--part 1/2]
    python3 bench/recipes.py list                       the runs in their order, and which of them are done
    python3 bench/recipes.py report --out FILE          writes the page and its pictures, and the claims by the CSV
    python3 bench/recipes.py null                       how often the page's rule tells what is not there

Every run is appended to a CSV when it ends, and a run that is in the CSV is skipped, so a series can be stopped at
any time, also by a kill, and continued. With --minutes, no run starts that would probably not end in time. The
model is the demo model, which is made under user_data/models if it is not there, or the folder given by --model.
A GPU is used if there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import bench_utils

MODELS = bench_utils.ROOT / "user_data" / "models"
RESULTS = bench_utils.ROOT / "bench" / "recipe_data" / "runs.csv"
FIRST_GUESS_SECONDS = 300.0
PREFERENCES = "## What do preferences teach?"


def main() -> None:
    args = parse_args()
    if getattr(args, "threads", None):
        os.environ["OMP_NUM_THREADS"] = str(args.threads)  # before torch is loaded
    bench_utils.load()
    {"run": make_runs, "list": list_runs, "report": write_report, "null": check_rule}[args.command](args)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run, listed, report, null = (commands.add_parser(name) for name in ("run", "list", "report", "null"))
    for each in (run, listed, report, null):
        each.add_argument("--results", type=Path, default=RESULTS)
    for each in (run, listed):
        each.add_argument("--questions", default="", help="names of questions, separated by commas")
        each.add_argument("--ways", default="", help="names of ways: only these, in all questions that have them")
        each.add_argument("--seeds", type=int, default=3)
    run.add_argument("--model", type=Path, help="folder of a model; the demo model if not given")
    run.add_argument(
        "--load", default="auto", choices=("auto", "float32", "bfloat16"), help="the same for all runs"
    )
    run.add_argument("--minutes", type=float, help="start no run that would probably not end in time")
    run.add_argument("--threads", type=int)
    run.add_argument("--part", default="1/1", help="2/3: the second of three processes that share the runs")
    for each in (listed, report, null):
        each.add_argument("--model", default="", help="name of a model in the CSV; the one with the most runs")
    report.add_argument("--out", type=Path, required=True, help="file of the page")
    null.add_argument("--tables", type=int, default=1000, help="shuffled tables of each question")
    return parser.parse_args()


def planned_runs(args: argparse.Namespace) -> list[Any]:
    from training_pro.bench.recipe import questions

    names = [name.strip() for name in args.questions.split(",") if name.strip()] or list(questions.QUESTIONS)
    if unknown := [name for name in names if name not in questions.QUESTIONS]:
        sys.exit(f"There is no question {', '.join(unknown)}. Choose from: {', '.join(questions.QUESTIONS)}.")
    planned = questions.plan_runs(names, args.seeds)
    ways = [way.strip() for way in args.ways.split(",") if way.strip()]
    known = {run.way.name for run in planned}
    if unknown := [way for way in ways if way not in known]:
        sys.exit(f"There is no way {', '.join(unknown)}. Choose from: {', '.join(sorted(known))}.")
    return [run for run in planned if run.way.name in ways or not ways or not run.way.tokens]


def title(run: Any) -> str:
    return f"{run.text}: {run.way.name}, {run.rate:g}, seed {run.seed}"


def list_runs(args: argparse.Namespace) -> None:
    from training_pro.bench.recipe import page, results

    made = results.read_results(args.results)
    done, model = {result.key for result in made}, args.model or page.main_model(made)
    planned = planned_runs(args)
    for number, run in enumerate(planned, start=1):
        print(f"{number} {'done' if run.key(model) in done else '    '} {title(run)} {run.way.recipe}")
    print(f"{sum(run.key(model) in done for run in planned)} of {len(planned)} runs are done.")


def make_runs(args: argparse.Namespace) -> None:
    """Make the runs that the CSV does not have yet, the most valuable first."""
    from training_pro.bench.recipe import results, runs
    from training_pro.hosts.demo_model import make_demo_model

    model = args.model or make_demo_model(MODELS, print)
    with tempfile.TemporaryDirectory() as scratch:
        lab = runs.Lab.open(model.resolve(), Path(scratch), args.load)
        write_sizes(lab, args.results)
        done = {result.key for result in results.read_results(args.results)}
        planned = planned_runs(args)
        part, parts = map(int, args.part.split("/"))
        waiting = [run for run in planned[part - 1 :: parts] if lab.key(run) not in done]
        print(f"{len(planned)} runs planned, {len(waiting)} to make here. Results: {args.results}", flush=True)
        start, seconds = time.monotonic(), list[float]()
        for number, run in enumerate(waiting, start=1):
            # One and a half times the median of the last ones: runs differ in their tokens.
            guess = 1.5 * statistics.median(seconds[-8:] or [FIRST_GUESS_SECONDS])
            if args.minutes is not None and time.monotonic() - start + guess > 60 * args.minutes:
                print(f"Stopped before the next run would pass {args.minutes:g} minutes. Repeat to continue.")
                return
            began = time.monotonic()
            result = lab.make(run)
            results.append_result(args.results, result)
            seconds.append(time.monotonic() - began)
            figures = {
                name: getattr(result, name) for name in ("recall", "general_loss", "unseen_loss", "closed_book")
            }
            print(f"{number}/{len(waiting)} {title(run)}: {seconds[-1]:.0f} s, {json.dumps(figures)}", flush=True)


def sizes_file(results: Path) -> Path:
    return results.with_name(f"{results.stem}-sizes.json")


def write_sizes(lab: Any, results: Path) -> None:
    """Write how large the texts are, beside the results."""
    from training_pro.bench.recipe import texts

    sizes = {name: lab.sizes(texts.read_text(name)) for name in texts.TEXTS}
    results.parent.mkdir(parents=True, exist_ok=True)
    sizes_file(results).write_text(json.dumps(sizes, indent=1) + "\n", encoding="utf-8", newline="\n")


def write_report(args: argparse.Namespace) -> None:
    from training_pro.bench.recipe import page, results

    made = results.read_results(args.results)
    file = sizes_file(args.results)
    sizes = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    drawn = page.draw(made, args.out.parent / "pictures", args.model)
    pictures = {name: f"pictures/{path.name}" for name, path in drawn.items()}
    # What other benchmarks have measured stays at the end of the page.
    *_, of_others = args.out.read_text(encoding="utf-8").partition(PREFERENCES) if args.out.exists() else ("", "")
    text = page.page(made, sizes, pictures, args.model) + (f"\n{PREFERENCES}{of_others}" if of_others else "")
    args.out.write_text(text, encoding="utf-8", newline="\n")
    claimed = page.claims(made, args.model)
    claims = args.results.with_name(f"{args.results.stem}-claims.json")
    claims.write_text(json.dumps(claimed, indent=1) + "\n", encoding="utf-8", newline="\n")
    print(f"{len(made)} runs, {len(claimed)} claims. Page: {args.out}. Pictures: {len(drawn)}.")


def check_rule(args: argparse.Namespace) -> None:
    """Shuffle the labels of the ways in the table of each question, and plant a difference in each of its rows.

    It is 2 and 15 points, or 0.03 of the loss on unseen text.
    """
    from training_pro.bench.recipe import differences, page, results

    rows = [("question", "way", "measure", "planted", "found")]
    for each in (each for each in page.answers(results.read_results(args.results), args.model) if each.is_known):
        if (table := differences.make_table(each.question, each.values)) is None:
            continue
        false = differences.told_by_chance(table, args.tables)
        print(f"{each.question.name}: in {false:.1%} of the tables, a difference is told that is not there.")
        for number, (way, measure) in enumerate(table.rows):
            for planted in (0.02, 0.15) if measure in differences.SHARES else (0.03,):
                found = differences.told_by_chance(table, args.tables // 5, planted, number)
                rows.append((each.question.name, way, measure, planted, f"{found:.1%}"))
    bench_utils.print_table(*rows)


if __name__ == "__main__":
    main()

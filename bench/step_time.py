"""Time, memory and network traffic of a training step on one or many GPUs, simulated.

python3 bench/step_time.py --model llama-3.1-8b --gpu h100 --gpus 8 --method fsdp --rank 16
python3 bench/step_time.py points            # published figures beside those of the simulation
python3 bench/step_time.py tables            # writes the tables of docs/scale.md anew
"""

from __future__ import annotations

import argparse
import statistics
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

if not __package__:
    import bench_utils

    bench_utils.load()
from training_pro.bench.simulation import (
    GPUS,
    HALF,
    LORA,
    MODELS,
    OURS,
    POINTS,
    SINGLE,
    SOURCES,
    TOLERANCE,
    Point,
    Setup,
    Step,
    hits,
    simulate,
    traffic,
)

PAGE = Path(__file__).resolve().parent.parent / "docs" / "scale.md"
Rows = list[tuple[str, ...]]
PAGE_WIDTH = 125  # columns
TERABYTE, DAY, DISK = 1e12, 86_400, 2e9
TOKEN_BYTES = 4.0  # of English text
SENT = "sent per step by a GPU"
GPU_COUNTS = (1, 2, 4, 8, 16, 32, 64)
JOBS: Mapping[str, Setup] = {
    "8B, LoRA, data parallel": LORA,
    "8B, full, FSDP, checkpointing": replace(LORA, rank=0, method="fsdp", recomputed=1),
    "70B, LoRA, FSDP, checkpointing": replace(LORA, model="llama-3.1-70b", method="fsdp", recomputed=1),
}
GIGABIT = 1e9 / 8


def scaled(setup: Setup, gpus: int) -> Setup:
    """A job on more GPUs; without FSDP several GPUs are data parallel."""
    method = setup.method if setup.method == "fsdp" or gpus == 1 else "ddp"
    return replace(setup, gpus=gpus, method=method)


def gigabytes(count: float) -> str:
    digits = 0 if count >= 1e11 else 1 if count >= 1e9 else 2
    return f"{count / 1e9:,.{digits}f} GB"


def point_rows() -> Rows:
    heading = ("source", "model", "GPUs", "setup", "published", "simulated", "difference", "use")
    return [heading, *(point_row(point) for point in POINTS)]


def point_row(point: Point) -> tuple[str, ...]:
    setup = point.setup
    use = "fitted" if point.fitted else f"miss: {point.miss}" if point.miss else "test"
    return (
        f"[{point.source}]({SOURCES[point.source]})",
        setup.model,
        f"{setup.gpus} x {setup.gpu.name}",
        setup_text(setup),
        f"{point.rate:,.0f}",
        f"{simulate(setup).rate:,.0f}",
        f"{point.error:+.1%}",
        use,
    )


def setup_text(setup: Setup) -> str:
    """A setup in a few words: method, rows, and what is trained and computed twice."""
    sharded = f"FSDP {setup.groups}" if setup.sharded else "DDP" if setup.groups > 1 else ""
    tensor = f"TP {setup.tensor}" if setup.tensor > 1 else ""
    twice = {0.0: "", 0.5: "selective recomputation (every second layer)", 1.0: "gradient checkpointing"}
    return ", ".join(
        filter(
            None,
            (
                *(sharded, tensor, f"{setup.batch} x {setup.length:,}"),
                f"{setup.accumulation} micro-batches" if setup.accumulation > 1 else "",
                f"LoRA r{setup.rank}" if setup.rank else "full fine-tuning",
                twice.get(setup.recomputed, "selective recomputation (every second matmul)"),
                "compiled" if setup.compiled else "",
            ),
        )
    )


def memory_rows() -> Rows:
    rows: Rows = [("source", "model", "GPUs", "setup", "published", "computed", "difference")]
    for point in POINTS:
        if point.memory:
            needed = simulate(point.setup).memory.total
            figures = (gigabytes(point.memory), gigabytes(needed), f"{needed / point.memory - 1:+.0%}")
            rows.append((*point_row(point)[:4], *figures))
    return rows


def fit_rows() -> Rows:
    rows: Rows = [
        (
            "GPU",
            "share of the peak",
            "tests within 15%",
            "tests within 15% if fitted to another row: fewest, median, most",
        )
    ]
    for gpu in GPUS.values():
        points = [point for point in POINTS if point.setup.gpu == gpu]
        (chosen,) = (point for point in points if point.fitted)
        within = sorted(hits(points, point) for point in points if point is not chosen)
        good = sum(abs(point.error) <= TOLERANCE for point in points if point is not chosen)
        tests = f"{good} of {len(points) - 1}"
        rows.append(
            (gpu.name, f"{gpu.share:.2f}", tests, f"{within[0]}, {statistics.median(within):g}, {within[-1]}")
        )
    return rows


def scale_rows() -> Rows:
    heading = (
        "job",
        "GPUs",
        "tokens per second",
        "MFU",
        "days for 1 TB",
        "memory per GPU",
        SENT,
    )
    steps = ((name, simulate(scaled(setup, gpus))) for name, setup in JOBS.items() for gpus in GPU_COUNTS)
    return [heading, *(scale_row(name, step) for name, step in steps)]


def scale_row(name: str, step: Step) -> tuple[str, ...]:
    gpus, needed = str(step.setup.gpus), gigabytes(step.memory.total)
    if not step.fits:
        return (name, gpus, "does not fit", "", "", needed, "")
    total = step.rate * step.setup.gpus
    sent = gigabytes(step.traffic.total)
    return (name, gpus, f"{total:,.0f}", f"{step.mfu:.0%}", f"{days(step):,.1f}", needed, sent)


def network_rows() -> Rows:
    """Two machines, by method and network."""
    setups: Mapping[str, Setup] = {
        "8B LoRA, data parallel": replace(LORA, method="ddp"),
        "8B LoRA, FSDP": replace(LORA, method="fsdp"),
        "8B full, data parallel": replace(LORA, rank=0, method="ddp", recomputed=1),
        "8B full, FSDP": replace(LORA, rank=0, method="fsdp", recomputed=1),
        "8B full, FSDP between groups of 8 GPUs, tensor parallel within each group": replace(
            LORA, rank=0, method="fsdp", tensor=8, batch=4, recomputed=1
        ),
    }
    heading = ("method", "micro-batches per step", SENT, *NETWORKS)
    rows = ((name, replace(setup, accumulation=count)) for name, setup in setups.items() for count in (1, 16))
    return [heading, *(network_row(name, setup) for name, setup in rows)]


NETWORKS: Mapping[str, tuple[int, float]] = {
    "2 x 8 GPUs, 400 Gbit/s per GPU": (16, 50e9),
    "2 x 8 GPUs, 100 Gbit/s per machine": (16, 100 * GIGABIT / 8),
    "2 x 1 GPU, 10 Gbit/s": (2, 10 * GIGABIT),
    "2 x 1 GPU, 1 Gbit/s": (2, GIGABIT),
}
"""GPUs in all, and bytes per second of a GPU's share of its machine's network."""


def network_row(name: str, setup: Setup) -> tuple[str, ...]:
    name += "" if simulate(replace(setup, gpus=16)).fits else " (does not fit into 80 GB)"
    sent = gigabytes(traffic(replace(setup, gpus=16)).total)
    speeds = [waiting_share(setup, gpus, network) for gpus, network in NETWORKS.values()]
    return (name, str(setup.accumulation), sent, *speeds)


def waiting_share(setup: Setup, gpus: int, network: float) -> str:
    """The share of a step that waits for communication."""
    if gpus % setup.tensor or gpus == setup.tensor:
        return ""
    step = simulate(replace(setup, gpus=gpus, per_machine=gpus // 2, network=network))
    return f"{step.network / step.seconds:.0%}"


def checkpoint_rows() -> Rows:
    heading = ("model", "trained", "weights trained", "result on disk", "full checkpoint", "seconds at 2 GB/s")
    rows: Rows = [heading]
    for model in ("llama-3.1-8b", "qwen2.5-32b", "llama-3.1-70b"):
        for rank in (16, 64, 0):
            setup = replace(LORA, model=model, rank=rank)
            result, moments = (SINGLE, 2 * SINGLE) if rank else (HALF, 2 * HALF)
            whole = setup.trained * (result + moments)
            sizes = (gigabytes(setup.trained * result), gigabytes(whole), f"{whole / DISK:,.1f}")
            rows.append((model, f"LoRA r{rank}" if rank else "all", f"{setup.trained / 1e6:,.0f} M", *sizes))
    return rows


def markdown(rows: Rows) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], f"| {' | '.join('---' for _ in rows[0])} |", *lines[1:]])


def days(step: Step) -> float:
    """Days of one epoch over a terabyte of text."""
    return TERABYTE / TOKEN_BYTES / step.rate / step.setup.gpus / DAY


def summary() -> str:
    """The page's figures in short."""
    one, many = simulate(LORA), simulate(scaled(LORA, 64))
    full, large = (simulate(scaled(job, 64)) for job in tuple(JOBS.values())[1:])
    tests = [point for point in POINTS if not point.fitted and point.source != OURS]
    (own,) = (point for point in POINTS if point.source == OURS)
    good = sum(abs(point.error) <= TOLERANCE for point in tests)
    lines = (
        f"**Training PRO itself reached {own.rate:,.0f} tokens per second** with a 1.7B model on one H100. The "
        f"simulation says {simulate(own.setup).rate:,.0f}, so the speeds on this page may be twice those that you "
        "reach.",
        f"One H100 trains a LoRA on an 8B model at {one.rate:,.0f} tokens per second (simulated; published: "
        f"12,473). Training on 1 TB of text takes {days(one):,.0f} days on one GPU and {days(many):.1f} days on "
        "64 GPUs.",
        f"Full fine-tuning of the 8B model on 1 TB of text takes {days(full):.1f} days on 64 GPUs. On the "
        f"same GPUs, training a LoRA on a 70B model with this text takes {days(large):.0f} days.",
        f"For the LoRA on the 8B model, each GPU sends {gigabytes(many.traffic.total)} per step with data "
        f"parallelism, and {gigabytes(traffic(replace(many.setup, method='fsdp')).total)} with FSDP.",
        f"We compared the simulation with {len(tests)} published speeds to which it was not fitted. For {good} of "
        "them, the difference is at most 15%. For the others, see [the reasons](#how-far-to-trust-it).",
    )
    wrap = textwrap.TextWrapper(PAGE_WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
    return "\n".join(wrap.fill(f"- {line}") for line in lines)


TABLES: Mapping[str, Callable[[], str]] = {
    "summary": summary,
    "scale": lambda: markdown(scale_rows()),
    "checkpoints": lambda: markdown(checkpoint_rows()),
}


def with_tables(text: str) -> str:
    """A page with each table between its markers made anew."""
    for name, table in TABLES.items():
        begin, end = f"<!-- begin {name} -->\n", f"\n<!-- end {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise SystemExit(f"docs/scale.md must have the markers of the table {name!r} once. Put them back.")
        before, after = text.partition(begin)[0], text.partition(end)[2]
        text = before + begin + table() + end + after
    return text


def describe(step: Step) -> str:
    """The result of a simulation in lines."""
    setup, parts = step.setup, step.memory
    shares = ", ".join(
        f"{name} {seconds / step.seconds:.0%}"
        for name, seconds in (
            *(("matrix products", step.products), ("other work of the GPU", step.elementwise)),
            *(("waiting for communication", step.network), ("optimizer", step.optimizer)),
        )
    )
    sent = step.traffic
    lines = (
        f"{setup.model}, {setup.gpus} x {setup.gpu.name}: {setup_text(setup)}",
        f"step       {step.seconds:.3f} s for {setup.step_tokens:,} tokens ({shares})",
        f"rate       {step.rate * setup.gpus:,.0f} tokens/s, {step.rate:,.0f} per GPU; MFU {step.mfu:.1%}",
        f"1 TB       {days(step):,.1f} days at 4 bytes per token",
        f"memory     {gigabytes(parts.total)} per GPU of {gigabytes(setup.gpu.memory)}: weights "
        f"{gigabytes(parts.weights)}, trained {gigabytes(parts.trained)}, activations "
        f"{gigabytes(parts.activations)}, logits {gigabytes(parts.logits)}",
        f"network    {gigabytes(sent.total)} per step sent by a GPU: weights {gigabytes(sent.gather)}, gradients "
        f"{gigabytes(sent.reduce)}, tensor parallel {gigabytes(sent.tensor)}",
    )
    return "\n".join(lines if step.fits else (*lines, "This does not fit into the memory of the GPU."))


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=("step", "points", "tables"), default="step")
    parser.add_argument("--model", default="llama-3.1-8b", help=f"{', '.join(MODELS)}, or a folder")
    parser.add_argument("--gpu", default="h100", choices=tuple(GPUS))
    for name, words in GPU_OPTIONS.items():
        parser.add_argument(f"--gpu-{name}", type=float, help=f"{words}, instead of the named GPU's")
    parser.add_argument("--method", default="one", choices=("one", "ddp", "fsdp"), help="fsdp is ZeRO 3, too")
    for name, default, words in NUMBER_OPTIONS:
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{words} ({default})")
    parser.add_argument("--targets", help="layers that get a LoRA, such as q,v (all linear layers)")
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
    parser.add_argument("--compiled", action="store_true", help="torch.compile fuses what is no matrix product")
    return parser.parse_args(arguments)


GPU_OPTIONS: Mapping[str, str] = {
    "flops": "operations per second in bfloat16",
    "bandwidth": "bytes per second of its memory",
    "memory": "bytes of its memory",
    "link": "bytes per second to the other GPUs of its machine",
    "share": "share of the peak that matrix products reach",
}
NUMBER_OPTIONS: tuple[tuple[str, int | float, str], ...] = (
    ("gpus", 1, "GPUs in all"),
    ("tensor", 1, "GPUs that share each layer"),
    ("batch", 2, "rows of a micro-batch"),
    ("accumulation", 1, "micro-batches of a step"),
    ("length", 4096, "tokens of a row"),
    ("rank", 0, "rank of the LoRA; 0 is full fine-tuning"),
    ("per-machine", 8, "GPUs of a machine"),
    ("network", 400.0, "Gbit/s of the network for each GPU"),
    ("latency", 10.0, "microseconds of a hop"),
)


def check_numbers(options: argparse.Namespace) -> None:
    """Refuse numbers that no setup has."""
    names = [name for name, _, _ in NUMBER_OPTIONS] + [f"gpu-{name}" for name in GPU_OPTIONS]
    for name in names:
        value, least = getattr(options, name.replace("-", "_")), "0 or more" if name == "rank" else "more than 0"
        if value is not None and (value < 0 or (value == 0 and name != "rank")):
            raise SystemExit(f"--{name} must be {least}, but it is {value}.")


def setup_of(options: argparse.Namespace) -> Setup:
    """The setup that the options describe."""
    check_numbers(options)
    named, given = GPUS[options.gpu], {name: getattr(options, f"gpu_{name}") for name in GPU_OPTIONS}
    changes = {name: value for name, value in given.items() if value is not None}
    gpu = replace(named, **changes, name=f"{named.name} with other figures") if changes else named
    numbers = ("gpus", "tensor", "batch", "accumulation", "length", "rank", "per_machine")
    return Setup(
        gpu=gpu,
        targets=tuple(options.targets.split(",")) if options.targets else None,
        recomputed=float(options.checkpointing),
        network=options.network * GIGABIT,
        latency=options.latency / 1e6,
        **{name: getattr(options, name) for name in ("model", "method", "compiled", *numbers)},
    )


def main(arguments: list[str] | None = None) -> None:
    options = parse_arguments(arguments)
    if options.command == "points":
        print(*map(markdown, (point_rows(), fit_rows(), memory_rows(), network_rows())), sep="\n\n")
    elif options.command == "tables":
        PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")
    else:
        setup = setup_of(options)
        if problem := setup.problem():
            raise SystemExit(problem)
        print(describe(simulate(setup)))


if __name__ == "__main__":
    main()

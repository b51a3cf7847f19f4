"""Speed and memory of training on one GPU: Training PRO, TRL with Liger, and Unsloth.

    python3 bench/gpu.py all --results gpu.csv [--minutes 5]   # everything below, resumable, as rows of a file
    python3 bench/gpu.py speed [--models llama-3.1-8b] [--texts long short] [--rounds 1] [--ways ours trl]
    python3 bench/gpu.py memory [--models llama-3.1-8b]    # what Check expects, and what a step takes

Models have random weights, but the true shapes. Every way trains the same LoRA (all linear layers, rank 16,
dropout 0) in bfloat16 on the same texts, without gradient checkpointing, each in its own process. TRL, Liger and
Unsloth are not part of the project: --libraries and --unsloth name folders in which they are installed. Without
a GPU, use --models tiny to try the command.

`all` measures the pieces of PIECES for each model and texts, then what Check expects of the memory, whether there
is a kernel for the attention of packed rows, and the tests for a GPU. A piece that has a row in the file is not
measured again, and none is begun after --minutes: the same command goes on. A way whose library is not there, or
that fails, has the reason in its row.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

if not __package__:
    import bench_utils as loader

    loader.load()
from training_pro.bench import bench_utils
from training_pro.bench.gpu_ways import (
    CUTOFF,
    RANK,
    ROWS_PER_BATCH,
    WARM_UP,
    WAYS,
    Measurement,
    Task,
    loaded_host,
    measure,
    our_settings,
    read_docs,
)
from training_pro.core.errors import TrainingProError
from training_pro.core.jobs import Job, ProbeDone
from training_pro.core.model_shape import ModelShape
from training_pro.hosts.tiny import make_tiny


def llama(hidden: int, layers: int, feed: int, heads: int, kv_heads: int, vocabulary: int) -> ModelShape:
    """A model with the layers of Llama; its head is not tied to its embeddings."""
    return ModelShape(hidden, layers, feed, heads, kv_heads, hidden // heads, vocabulary, gated=True, tied=False)


SHAPES: Mapping[str, ModelShape] = {
    "tiny": llama(64, 2, 128, 4, 2, 512),
    "smollm2-1.7b": llama(2048, 24, 8192, 32, 32, 49_152),
    "llama-3.1-8b": llama(4096, 32, 14336, 32, 8, 128_256),
    "qwen2.5-32b": llama(5120, 64, 27648, 40, 8, 152_064),
    "llama-3.1-70b": llama(8192, 80, 28672, 64, 8, 128_256),
}
PEAKS = {"A100": 312e12, "H100": 989e12, "H200": 989e12}  # operations per second in bfloat16, by the data sheets
MEMORY_CASES: Sequence[Mapping[str, Any]] = (
    {"cutoff": 1024, "batch_size": 1},
    {"cutoff": 1024, "batch_size": 4},
    {"cutoff": 4096, "batch_size": 1},
    {"cutoff": 4096, "batch_size": 1, "rank": 64},
    {"cutoff": 4096, "batch_size": 1, "targets": "q-v"},
    {"cutoff": 4096, "batch_size": 1, "dropout": 0.05},
    {"cutoff": 4096, "batch_size": 4, "gradient_checkpointing": "on"},
    {"cutoff": 1024, "batch_size": 1, "train_head": True},
    {"cutoff": 1024, "batch_size": 4, "packing": "off"},
)
TEXT_CHARS = 300_000  # of the text whose longest batch is measured
LOADINGS = ("bfloat16", "8bit", "4bit")
# The ways that are compared, by how the model is loaded and whether activations are checkpointed.
PIECES: Mapping[tuple[str, str], Sequence[str]] = {
    ("auto", "off"): ("ours", "trl-liger", "unsloth", "ours-compile", "trl-free", "trl"),
    ("auto", "on"): ("ours", "unsloth"),
    ("4bit", "off"): ("ours", "unsloth", "trl-liger"),
}
COLUMNS = (
    "piece", "way", "tokens_per_second", "of_the_peak", "peak_gb", "first_loss", "last_loss", "gradient_norms",
    "said", "device", "commit",
)  # fmt: skip


def main() -> None:
    args = parse_args()
    if args.way:
        task = Task(args.way, args.folder, args.texts[0], args.steps, args.loading, args.checkpointing)
        print(json.dumps(asdict(measure(task))))
        return
    if args.case:
        print(json.dumps(list(memory_rows(args))))
        return
    with tempfile.TemporaryDirectory() as scratch:
        if args.what == "all":
            measure_all(args, Path(scratch))
            return
        for model in args.models:
            args.folder = make_model(Path(scratch) / model, model)
            compare_memory(args) if args.what == "memory" else compare_speed(args, model)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("all", "speed", "memory"))
    parser.add_argument("--models", nargs="+", default=["smollm2-1.7b", "llama-3.1-8b"], choices=tuple(SHAPES))
    parser.add_argument("--texts", nargs="+", default=["long", "short"], choices=tuple(ROWS_PER_BATCH))
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=tuple(WAYS))
    parser.add_argument("--loadings", nargs="+", default=list(LOADINGS))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--libraries", type=Path, help="folder with TRL and Liger")
    parser.add_argument("--unsloth", type=Path, help="folder with Unsloth and the versions that it needs")
    parser.add_argument("--results", type=Path, default=Path("gpu.csv"), help="the file of `all`")
    parser.add_argument("--minutes", type=float, default=5, help="begin no piece of `all` after so many minutes")
    parser.add_argument("--checkpointing", default="off", choices=("off", "on"), help="of `speed`")
    parser.add_argument("--loading", default="auto", choices=("auto", "4bit"), help="of `speed`")
    parser.add_argument("--way", choices=tuple(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.steps <= WARM_UP:
        parser.error(f"--steps must be more than {WARM_UP}, because the first {WARM_UP} are not counted")
    return args


def make_model(folder: Path, name: str) -> Path:
    """Write a model with random weights and the tiny model's tokenizer."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()

    shape = SHAPES[name]
    config = LlamaConfig(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        intermediate_size=shape.feed,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        vocab_size=shape.vocabulary,
        max_position_embeddings=2 * CUTOFF,
        tie_word_embeddings=shape.tied,
        dtype="bfloat16",
    )
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        torch.set_default_dtype(torch.bfloat16)
        model = LlamaForCausalLM(config)
        torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(make_tiny(folder.with_name("tokenizer"))).save_pretrained(folder)
    del model
    torch.cuda.empty_cache()
    return folder


def measure_all(args: argparse.Namespace, scratch: Path) -> None:
    """Measure the pieces that have no row yet, until the time is up, and say how many are left."""
    end = time.monotonic() + 60 * args.minutes
    done = set[tuple[str, str]]()
    if args.results.exists():
        with args.results.open(encoding="utf-8", newline="") as file:
            done = {(row["piece"], row["way"]) for row in csv.DictReader(file)}
    # In the order of what is learned first: a piece of each kind before all ways of one.
    pieces: list[tuple[str, str, Callable[[], Mapping[str, Any]]]] = []
    for (loading, checkpointing), ways in PIECES.items():
        for model, texts in product(args.models, args.texts):
            for way in ways:
                name = f"{model}, {texts} texts, {loading}, checkpointing {checkpointing}"
                changes = {"texts_now": texts, "loading": loading, "checkpointing": checkpointing}
                asked = argparse.Namespace(**{**vars(args), **changes})
                pieces.append((name, way, partial(speed_row, asked, scratch, model, way)))
    pieces.append(("varlen_attn", "ours", varlen_row))
    for model, loading in product(args.models, args.loadings):
        asked = argparse.Namespace(**{**vars(args), "loadings": [loading]})
        pieces.append((f"memory, {model}, {loading}", "ours", partial(memory_row, asked, scratch, model)))
    pieces.append(("tests for a GPU", "ours", tests_row))
    git = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=bench_utils.ROOT, capture_output=True, text=True, check=False
    )
    left = [piece for piece in pieces if piece[:2] not in done]
    for number, (name, way, run) in enumerate(left):
        if time.monotonic() > end:
            print(f"{len(left) - number} pieces are left. Run the same command again.")
            return
        row = {"piece": name, "way": way, "device": device_name(), "commit": git.stdout.strip(), **run()}
        is_new = not args.results.exists()
        with args.results.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, restval="")
            if is_new:
                writer.writeheader()
            writer.writerow(row)
        print(", ".join(f"{key} {value}" for key, value in row.items() if value), flush=True)
    print("All pieces are measured.")


def speed_row(args: argparse.Namespace, scratch: Path, model: str, way: str) -> dict[str, Any]:
    """Measure a way, with a model that is made when the first of them needs it."""
    args.folder = scratch / model
    if not args.folder.exists():
        make_model(args.folder, model)
    said: list[str] = []
    (result, *_) = [*run_once(way, args, said.append), None]
    if result is None:
        return {"said": f"not compared: {said[-1][-300:]}"}
    return {
        "tokens_per_second": round(result.speed),
        "of_the_peak": mfu(model, args.texts_now, result.speed),
        "peak_gb": round(result.peak_gb, 2),
        "first_loss": round(result.losses[0], 4),
        "last_loss": round(result.losses[-1], 4),
        "gradient_norms": f"{min(result.norms):.3g} to {max(result.norms):.3g}",
    }


def memory_row(args: argparse.Namespace, scratch: Path, model: str) -> dict[str, Any]:
    """Compare what Check expects of the memory with what a step takes."""
    args.folder = scratch / model
    if not args.folder.exists():
        make_model(args.folder, model)
    try:
        rows = bench_utils.run_python([__file__, "memory", "--case", args.loadings[0], "--folder", args.folder])
    except SystemExit as error:
        return {"said": f"failed: {error}"[-300:]}
    return {"said": "; ".join(f"{row[1]}: {row[3]} MB, {row[5]} of it expected" for row in rows)}


def varlen_row() -> dict[str, Any]:
    """Whether a kernel for texts of different lengths is installed, and how its result differs."""
    import torch
    from training_pro.engine.compute import one_call_kernels

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    query, key, value = (torch.randn(96, heads, 64, device=device, dtype=torch.bfloat16) for heads in (8, 2, 2))
    bounds, said = torch.tensor([0, 40, 96], dtype=torch.int32, device=device), []
    for kernel in one_call_kernels(device):
        attended = []
        for start, stop in ((0, 40), (40, 96)):
            states = (part[None, start:stop].transpose(1, 2) for part in (query, key, value))
            attended.append(
                torch.nn.functional.scaled_dot_product_attention(*states, is_causal=True, enable_gqa=True)
            )
        expected = torch.cat(attended, 2)[0].transpose(0, 1).float()
        try:
            found = kernel(query, key, value, bounds, 56, None).float()
            said.append(f"differs by {float((found - expected).norm() / expected.norm()):.2g}")
        except Exception as error:  # noqa: BLE001 - kernels raise anything
            said.append(f"{type(error).__name__}: {error}"[:200])
    return {"said": "; ".join(said) or "no kernel for this device"}


def tests_row() -> dict[str, Any]:
    """Run the tests for a GPU, and say what pytest says last."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "", "tests/engine/test_on_a_gpu.py"]
    done = subprocess.run(command, cwd=bench_utils.ROOT, capture_output=True, text=True, check=False)
    return {"said": (done.stdout.strip().splitlines() or [done.stderr[-200:]])[-1]}


def compare_speed(args: argparse.Namespace, model: str) -> None:
    for texts in args.texts:
        args.texts_now = texts
        results = [result for _ in range(args.rounds) for way in args.ways for result in run_once(way, args)]
        print(f"\n{model}, {texts} texts, {args.rounds} rounds, {device_name()}\n")
        print_ways(results, model, texts)


def say(text: str) -> None:
    print(text, file=sys.stderr)


def run_once(way: str, args: argparse.Namespace, say: Callable[[str], None] = say) -> Iterator[Measurement]:
    """Run one way in its own process; none if it fails, and the error is said."""
    folder = args.unsloth if way == "unsloth" else args.libraries
    if way not in ("ours", "ours-compile") and folder is None:
        say(f"{way}: skipped. Name the folder of its libraries.")
        return
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "UNSLOTH_DISABLE_STATISTICS": "1"}
    if folder:
        environment["PYTHONPATH"] = os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))
    command = [__file__, "speed", "--way", way, "--folder", args.folder, "--texts", args.texts_now]
    command += ["--checkpointing", args.checkpointing, "--loading", args.loading]
    try:
        values = bench_utils.run_python([*command, "--steps", args.steps], environment)
    except SystemExit as error:
        say(f"{way} failed: {error}")
        return
    result = Measurement(**values)
    print(json.dumps({**values, "texts": args.texts_now, "model": args.folder.name}), file=sys.stderr, flush=True)
    yield result


def print_ways(results: Sequence[Measurement], model: str, texts: str) -> None:
    """Print the medians over the rounds."""
    own = statistics.median([r.speed for r in results if r.way == "ours"] or [0.0])
    rows = []
    for way, words in WAYS.items():
        if other := [result for result in results if result.way == way]:
            speed = statistics.median(result.speed for result in other)
            peak = statistics.median(result.peak_gb for result in other)
            norms = [norm for result in other for norm in result.norms]
            first, last = other[0].losses[0], other[0].losses[-1]
            share = f"{own / speed:.2f} x" if own else ""
            figures = (f"{speed:,.0f}", mfu(model, texts, speed), share, f"{peak:.1f}")
            rows.append((words, *figures, f"{first:.3f}, {last:.3f}", f"{min(norms):.2g} to {max(norms):.2g}"))
    columns = ("way", "tokens/s", "MFU", "speed of ours", "peak, GB", "first and last loss", "gradient norms")
    bench_utils.print_table(columns, *rows)


def mfu(model: str, texts: str, speed: float) -> str:
    """Share of the GPU's peak that training uses; empty for a GPU whose peak we don't know."""
    peak = next((peak for name, peak in PEAKS.items() if name in device_name()), None)
    length = CUTOFF if texts == "long" else CUTOFF // ROWS_PER_BATCH[texts]
    return f"{speed * lora_flops(SHAPES[model], length) / peak:.1%}" if peak else ""


def lora_flops(shape: ModelShape, length: int) -> float:
    """Operations for one token: two for each weight in each direction, causal attention, and the LoRA."""
    attention = 2 * length * shape.heads * shape.head * shape.layers
    weights = shape.linear_weights + shape.vocabulary * shape.hidden
    return 4 * weights + 3 * attention + 6 * shape.lora_weights(RANK)


def device_name() -> str:
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return f"{name}, torch {torch.__version__}"


def compare_memory(args: argparse.Namespace) -> None:
    """Print what Check expects and what Test one step measures, in one process for each kind of weights."""
    rows = []
    for loading in args.loadings:
        command = [__file__, "memory", "--case", loading, "--folder", args.folder]
        try:
            rows += bench_utils.run_python(command)
        except SystemExit as error:
            print(f"{loading} failed: {error}", file=sys.stderr)
    print(f"\n{args.folder.name}, {device_name()}\n")
    columns = (
        "loaded as",
        "settings",
        "tokens in the batch",
        "measured, MB",
        "expected, MB",
        "expected / measured",
    )
    bench_utils.print_table(columns, *rows)


def memory_rows(args: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    from training_pro.engine.peft_engine import PeftEngine

    with tempfile.TemporaryDirectory() as scratch:
        host = loaded_host(Path(scratch), args.folder, args.case)
        (host.folders.datasets / "text.txt").write_text(read_docs()[:TEXT_CHARS], encoding="utf-8")
        for changes in MEMORY_CASES:
            words = ", ".join(f"{name} {value}" for name, value in changes.items())
            job = Job("probe", "bench")
            try:
                PeftEngine().probe(our_settings({"data": ["text.txt"], "format": "auto", **changes}), host, job)
            except TrainingProError as error:
                yield args.case, words, str(error), "", "", ""
                continue
            (done,) = (event for event in job.log.since(0) if isinstance(event, ProbeDone))
            measured, expected = done.peak / 1e6, done.expected / 1e6
            ratio = f"{expected / measured:.2f}" if measured else ""
            yield args.case, words, str(done.tokens), f"{measured:,.0f}", f"{expected:,.0f}", ratio


if __name__ == "__main__":
    main()

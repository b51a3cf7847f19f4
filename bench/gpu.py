"""Speed and memory of training on one GPU: Training PRO, TRL with Liger, and Unsloth.

    python3 bench/gpu.py speed [--models llama-3.1-8b] [--texts long short] [--rounds 1] [--ways ours trl]
    python3 bench/gpu.py memory [--models llama-3.1-8b]    # what Check expects, and what a step takes

Models have random weights, but the true shapes. Every way trains the same LoRA (all linear layers, rank 16,
dropout 0) in bfloat16 on the same texts, without gradient checkpointing, each in its own process. TRL, Liger and
Unsloth are not part of the project: --libraries and --unsloth name folders in which they are installed. Without
a GPU, use --models tiny to try the command.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
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
    loaded_host,
    measure,
    our_settings,
    read_docs,
)
from training_pro.bench.simulation import GPUS, MODELS, Setup, llama, model_flops
from training_pro.core.errors import TrainingProError
from training_pro.core.jobs import Job, ProbeDone
from training_pro.core.model_shape import ModelShape
from training_pro.hosts.tiny import make_tiny

SHAPES: Mapping[str, ModelShape] = {
    "tiny": llama(64, 2, 128, 4, 2, 512),
    **MODELS,
}
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


def main() -> None:
    args = parse_args()
    if args.way:
        print(json.dumps(asdict(measure(args.way, args.folder, args.texts[0], args.steps))))
        return
    if args.case:
        print(json.dumps(list(memory_rows(args))))
        return
    with tempfile.TemporaryDirectory() as scratch:
        for model in args.models:
            args.folder = make_model(Path(scratch) / model, model)
            compare_memory(args) if args.what == "memory" else compare_speed(args, model)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "memory"))
    parser.add_argument("--models", nargs="+", default=["smollm2-1.7b", "llama-3.1-8b"], choices=tuple(SHAPES))
    parser.add_argument("--texts", nargs="+", default=["long", "short"], choices=tuple(ROWS_PER_BATCH))
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=tuple(WAYS))
    parser.add_argument("--loadings", nargs="+", default=list(LOADINGS))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--libraries", type=Path, help="folder with TRL and Liger")
    parser.add_argument("--unsloth", type=Path, help="folder with Unsloth and the versions that it needs")
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


def compare_speed(args: argparse.Namespace, model: str) -> None:
    for texts in args.texts:
        args.texts_now = texts
        results = [result for _ in range(args.rounds) for way in args.ways for result in run_once(way, args)]
        print(f"\n{model}, {texts} texts, {args.rounds} rounds, {device_name()}\n")
        print_ways(results, model, texts)


def run_once(way: str, args: argparse.Namespace) -> Iterator[Measurement]:
    """Run one way in its own process; none if it fails, and the error is printed."""
    folder = args.unsloth if way == "unsloth" else args.libraries
    if way not in ("ours", "ours-compile") and folder is None:
        print(f"{way}: skipped. Name the folder of its libraries.", file=sys.stderr)
        return
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "UNSLOTH_DISABLE_STATISTICS": "1"}
    if folder:
        environment["PYTHONPATH"] = os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))
    command = [__file__, args.what, "--way", way, "--folder", args.folder, "--texts", args.texts_now]
    try:
        values = bench_utils.run_python([*command, "--steps", args.steps], environment)
    except SystemExit as error:
        print(f"{way} failed: {error}", file=sys.stderr)
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
    """Share of the GPU's peak that training uses; empty for a GPU or a model that the simulator doesn't know."""
    gpu = next((gpu for gpu in GPUS.values() if gpu.name.split()[0] in device_name()), None)
    if gpu is None or model not in MODELS:
        return ""
    length = CUTOFF if texts == "long" else CUTOFF // ROWS_PER_BATCH[texts]
    return f"{speed * model_flops(Setup(model, gpu, rank=RANK, length=length)) / gpu.flops:.1%}"


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

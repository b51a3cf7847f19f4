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
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if not __package__:
    import bench_utils as loader

    loader.load()
from training_pro.bench import bench_utils
from training_pro.bench.simulator import GPUS, MODELS, Setup, llama, model_flops
from training_pro.core.errors import TrainingProError
from training_pro.core.jobs import Job, ProbeDone, Step
from training_pro.core.model_shape import ModelShape
from training_pro.hosts.standalone import StandaloneHost, standalone_folders
from training_pro.hosts.tiny import TRAINING_TEXT, make_tiny
from training_pro.settings.definitions import TrainingSettings
from training_pro.settings.parsing import training_settings

SHAPES: Mapping[str, ModelShape] = {
    "tiny": llama(64, 2, 128, 4, 2, 512),
    **MODELS,
}
WAYS: Mapping[str, str] = {
    "ours": "Training PRO",
    "ours-liger": "Training PRO with Liger",
    "ours-compile": "Training PRO with compile",
    "trl": "TRL's SFTTrainer, packed",
    "trl-liger": "TRL's SFTTrainer with Liger, packed",
    "unsloth": "Unsloth, packed",
}
OUR_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "ours": {},
    "ours-liger": {"liger": True},
    "ours-compile": {"compile": True},
}
CUTOFF, RANK, RATE, SEED, ACCUMULATION = 4096, 16, 2e-4, 42, 4
WARM_UP = 3  # steps that are not counted
ROWS_PER_BATCH = {"long": 1, "short": 10}
"""Examples of a batch of ours, which hold about as many tokens as a packed row of TRL."""
LOG_LENGTH_MEAN, LOG_LENGTH_STD = 5.8, 0.6  # of the logarithm of the length of a short text: about 400 tokens
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


@dataclass(frozen=True)
class Measurement:
    """The steps of one way after its first ones, and its peak of the GPU's memory, weights included."""

    way: str
    tokens: int
    seconds: float
    peak_gb: float
    weights_gb: float
    losses: tuple[float, ...]
    norms: tuple[float, ...]

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


def main() -> None:
    args = parse_args()
    if args.way:
        print(json.dumps(asdict(measure(args))))
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
    return parser.parse_args()


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
    if way != "ours" and folder is None:
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


def measure(args: argparse.Namespace) -> Measurement:
    """Measure one way in this process."""
    meter = StepMeter(args.way)
    (texts,) = args.texts
    {"unsloth": train_with_unsloth, "trl": train_with_trl, "trl-liger": train_with_trl}.get(
        args.way, train_with_ours
    )(args, texts, meter)
    return meter.measurement()


def cut_texts(tokenizer: Any, texts: str, steps: int) -> list[str]:
    """Cut the project's docs, repeated, into texts that last for these steps, the same for every way."""
    import numpy as np

    tokens = (steps + 1) * ACCUMULATION * CUTOFF
    ids = tokenizer(read_docs(), add_special_tokens=False).input_ids
    ids = ids * (tokens // len(ids) + 2)
    rng, pieces, start = np.random.default_rng(3), list[str](), 0
    while start < tokens:
        length = CUTOFF - 6  # tokenized again, a piece may be a few tokens longer
        if texts == "short":
            length = int(np.clip(np.exp(rng.normal(LOG_LENGTH_MEAN, LOG_LENGTH_STD)), 32, 2048))
        pieces.append(tokenizer.decode(ids[start : start + length]))
        start += length
    return pieces


def read_docs() -> str:
    files = sorted((bench_utils.ROOT / "docs").glob("*.md"))
    return "\n".join([TRAINING_TEXT, *(file.read_text(encoding="utf-8") for file in files)])


class StepMeter:
    """Times the steps of a Trainer and counts the tokens of its batches."""

    def __init__(self, way: str) -> None:
        self._way, self._ends = way, list[float]()
        self._batches = list[int]()
        self._step_tokens = list[int]()
        self._weights_gb = 0.0
        self._losses, self._norms = list[float](), list[float]()

    def watch(self, trainer: Any, *, is_counting: bool) -> None:
        """Follow a Trainer from its first step; ours counts its tokens itself."""
        import torch
        from transformers import TrainerCallback

        meter = self

        class Clock(TrainerCallback):
            def on_step_end(self, *_: Any, **__: Any) -> None:
                synchronize()
                meter._ends.append(time.perf_counter())

        trainer.add_callback(Clock())
        if is_counting:
            trainer.data_collator = self._counted(trainer.data_collator)
        if torch.cuda.is_available():
            self._weights_gb = torch.cuda.memory_allocated() / 1e9
            torch.cuda.reset_peak_memory_stats()

    def _counted(self, collate: Callable[..., Any]) -> Callable[..., Any]:
        def counted(rows: Any) -> Any:
            batch = collate(rows)
            self._batches.append(int((batch["labels"] != -100).sum()))
            return batch

        return counted

    def take_log(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Take losses and gradient norms, and sum the batches to steps, from a Trainer's log."""
        steps = [entry for entry in history if "loss" in entry]
        self._losses = [entry["loss"] for entry in steps]
        self._norms = [float(entry["grad_norm"]) for entry in steps]
        batches = self._batches
        self._step_tokens = [sum(batches[n : n + ACCUMULATION]) for n in range(0, len(batches), ACCUMULATION)]

    def take_steps(self, steps: Sequence[Step]) -> None:
        self._losses = [step.loss for step in steps]
        self._norms = [step.gradient_norm or 0.0 for step in steps]
        self._step_tokens = [step.tokens for step in steps]

    def measurement(self) -> Measurement:
        import torch

        peak = torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else 0.0
        counted = slice(WARM_UP, len(self._ends))
        return Measurement(
            self._way,
            sum(self._step_tokens[counted]),
            self._ends[-1] - self._ends[WARM_UP - 1],
            peak,
            self._weights_gb,
            tuple(self._losses),
            tuple(self._norms),
        )


def synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def train_with_ours(args: argparse.Namespace, texts: str, meter: StepMeter) -> None:
    """Train a whole run of Training PRO."""
    from training_pro.engine.peft_engine import PeftEngine
    from training_pro.engine.training import trainer

    train = trainer.RunTrainer.train

    def watched(self: Any, **options: Any) -> Any:
        meter.watch(self, is_counting=False)
        return train(self, **options)

    trainer.RunTrainer.train = watched
    with tempfile.TemporaryDirectory() as scratch:
        host = loaded_host(Path(scratch), args.folder, "auto")
        write_rows(host, cut_texts(host.card().tokenizer, texts, args.steps))
        job = Job("training", "bench")
        changes = {"batch_size": ROWS_PER_BATCH[texts], "max_steps": args.steps, **OUR_SETTINGS[args.way]}
        PeftEngine().train(our_settings(changes), host, job)
    meter.take_steps([event for event in job.log.since(0) if isinstance(event, Step)])


def our_settings(changes: Mapping[str, Any]) -> TrainingSettings:
    values = {
        "name": "bench", "data": ["rows.jsonl"], "format": "text", "add_eos": "never", "cutoff": CUTOFF,
        "batch_size": 1, "accumulation": ACCUMULATION, "epochs": 1, "batching": "sequential",
        "save_each_epoch": False, "backup_minutes": 0, "sample_every": "never", "recall_passages": 0,
        "rank": RANK, "alpha": RANK, "targets": "all-linear", "learning_rate": RATE, "schedule": "constant",
        "warmup_steps": 0, "gradient_checkpointing": "off", "seed": SEED,
    }  # fmt: skip
    return training_settings({**values, **changes})


def loaded_host(scratch: Path, model: Path, loading: str) -> StandaloneHost:
    host = StandaloneHost(standalone_folders(scratch), model=str(model), loading=loading)
    host.loaded_model()
    host.folders.datasets.mkdir(parents=True)
    return host


def write_rows(host: StandaloneHost, texts: Sequence[str]) -> None:
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (host.folders.datasets / "rows.jsonl").write_text(rows, encoding="utf-8")


def train_with_trl(args: argparse.Namespace, texts: str, meter: StepMeter) -> None:
    """Train with TRL's SFTTrainer and its packing, with or without Liger's kernels and loss."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTTrainer

    tokenizer = AutoTokenizer.from_pretrained(args.folder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype="auto").to(device)
    trainer = SFTTrainer(
        model,
        args=sft_arguments(args.steps, use_liger_kernel=args.way == "trl-liger"),
        train_dataset=text_dataset(tokenizer, texts, args.steps),
        processing_class=tokenizer,
        peft_config=lora_config(),
    )
    train_and_log(trainer, meter)


def train_with_unsloth(args: argparse.Namespace, texts: str, meter: StepMeter) -> None:
    """Train with Unsloth's model and its packing in TRL's SFTTrainer."""
    import torch
    from unsloth import FastLanguageModel  # isort: skip - it patches the libraries that come after it
    from trl import SFTTrainer

    model, tokenizer = FastLanguageModel.from_pretrained(
        str(args.folder), max_seq_length=CUTOFF, dtype=torch.bfloat16, load_in_4bit=False
    )
    targets = list(lora_config().target_modules)
    model = FastLanguageModel.get_peft_model(
        model,
        r=RANK,
        lora_alpha=RANK,
        lora_dropout=0,
        bias="none",
        target_modules=targets,
        use_gradient_checkpointing=False,
        random_state=SEED,
    )
    trainer = SFTTrainer(
        model,
        args=sft_arguments(args.steps),
        train_dataset=text_dataset(tokenizer, texts, args.steps),
        processing_class=tokenizer,
    )
    train_and_log(trainer, meter)


def train_and_log(trainer: Any, meter: StepMeter) -> None:
    meter.watch(trainer, is_counting=True)
    trainer.train()
    meter.take_log(trainer.state.log_history)


def lora_config() -> Any:
    from peft import LoraConfig

    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    return LoraConfig(task_type="CAUSAL_LM", r=RANK, lora_alpha=RANK, lora_dropout=0.0, target_modules=targets)


def text_dataset(tokenizer: Any, texts: str, steps: int) -> Any:
    from datasets import Dataset

    return Dataset.from_dict({"text": cut_texts(tokenizer, texts, steps)})


def sft_arguments(steps: int, **more: Any) -> Any:
    import torch
    from trl import SFTConfig

    on_gpu = torch.cuda.is_available()
    return SFTConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=steps,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=ACCUMULATION,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=SEED,
        use_cpu=not on_gpu,
        bf16=on_gpu,
        packing=True,
        max_length=CUTOFF,
        gradient_checkpointing=False,
        **more,
    )


def print_ways(results: Sequence[Measurement], model: str, texts: str) -> None:
    """Print the medians over the rounds."""
    own = statistics.median([r.speed for r in results if r.way == "ours"] or [0.0])
    rows = []
    for way, words in WAYS.items():
        if other := [result for result in results if result.way == way]:
            speed = statistics.median(result.speed for result in other)
            peak = statistics.median(result.peak_gb for result in other)
            norms = [norm for result in other for norm in result.norms]
            rows.append(
                (words, f"{speed:,.0f}", mfu(model, texts, speed), f"{own / speed:.2f} x", f"{peak:.1f}",
                 f"{other[0].losses[0]:.3f}, {other[0].losses[-1]:.3f}", f"{min(norms):.2g} to {max(norms):.2g}")
            )  # fmt: skip
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

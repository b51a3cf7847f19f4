"""Training speed compared: padding to the cutoff, HF's dynamic padding, TRL's two ways without padding, and ours.

    python3 bench/training.py --model FOLDER [--samples 96] [--rounds 3] [--trl FOLDER] [--threads 2]

Prints the rows of docs/benchmarks.md. Every way trains the same LoRA (q-v, rank 16, dropout 0) on the same
pieces of real text of random lengths, cutoff 256, batch 4, all tokens learned, no checkpointing; each in its own
process, alternating in every round. TRL is not part of the project: it is installed without its dependencies into
the folder given by --trl (by default in the system's temporary folder), which only that way sees. On a GPU, the
same command measures GPU memory.
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
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import bench_utils

WAYS = ("cutoff", "dynamic", "packed", "free", "ours")
LABELS = {
    "cutoff": "HF Trainer, each row padded to the cutoff",
    "dynamic": "HF Trainer, each batch padded to its longest example",
    "packed": "TRL's SFTTrainer, packed to 1024, batch 1",
    "free": "TRL's SFTTrainer, padding_free, batch 4",
    "ours": "Training PRO",
}
TRL = "trl==1.16.0"
CUTOFF, BATCH, RANK, RATE, SEED = 256, 4, 16, 2e-4, 42
LOG_LENGTH_MEAN, LOG_LENGTH_STD = 4.25, 0.75  # of the logarithm of a length: about 90 tokens on average


@dataclass(frozen=True)
class Measurement:
    """Time, memory and losses of one way."""

    way: str
    tokens: int
    seconds: float
    processor_seconds: float
    peak_gb: float
    losses: tuple[float, ...]
    held_tokens: int
    """The most tokens, padding included, that one batch holds: memory grows with it."""
    overhead_share: float = 0.0  # share of processor time for our callback, the events and a page that follows

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds

    @property
    def tokens_per_cpu_second(self) -> float:
        """Tokens per second of processor time, which does not depend on other load."""
        return self.tokens / self.processor_seconds

    @property
    def kb_per_held_token(self) -> float:
        return self.peak_gb * 1e6 / self.held_tokens


def main() -> None:
    args = parse_args()
    if args.way:
        print(json.dumps(asdict(measure(args))))
        return
    install_trl(args.trl)
    with tempfile.TemporaryDirectory() as scratch:
        args.text = Path(scratch) / "text.txt"
        args.text.write_text(read_text(), encoding="utf-8")
        results = [run_once(way, args) for _ in range(args.rounds) for way in WAYS]
    print(format_heading(args), end="\n\n")
    print_ways(results)
    print("", *format_other_results(results), sep="\n")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--trl", type=Path, default=Path(tempfile.gettempdir()) / "training-pro-trl")
    parser.add_argument("--samples", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--text", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def install_trl(folder: Path) -> None:
    if not (folder / "trl").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), TRL]
        subprocess.run(pip, check=True)


def run_once(way: str, args: argparse.Namespace) -> Measurement:
    """Run one way in its own process, so that it inherits no memory or warm caches."""
    command = [__file__, "--way", way, "--model", args.model, "--text", args.text, "--samples", args.samples]
    environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads), "TOKENIZERS_PARALLELISM": "false"}
    if way in ("packed", "free"):
        environment["PYTHONPATH"] = str(args.trl)
    result = Measurement(**bench_utils.run_python([*command, "--threads", args.threads], environment))
    print(f"{way}: {result.seconds:.1f} s, {result.processor_seconds:.1f} s of the processor", file=sys.stderr)
    return result


def measure(args: argparse.Namespace) -> Measurement:
    """Measure one way in this process, from the first step to the last."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    on_card = torch.cuda.is_available()
    tokenizer = bench_utils.load_tokenizer(args.model)
    texts = cut_pieces(tokenizer, args.text.read_text(encoding="utf-8"), args.samples)
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.bfloat16 if on_card else torch.float32
    ).to("cuda" if on_card else "cpu")
    watch = StepMeter(args.way, sum(len(tokenizer(text).input_ids) for text in texts), on_card)
    {"ours": train_with_ours, "packed": train_with_trl, "free": train_with_trl}.get(args.way, train_with_hf)(
        model, tokenizer, texts, args, watch
    )
    assert watch.measurement is not None
    return watch.measurement


def read_text() -> str:
    """Text of the project's example stories and docs."""
    files = [
        *sorted((bench_utils.ROOT / "examples").glob("*.txt")),
        *sorted((bench_utils.ROOT / "docs").glob("*.md")),
    ]
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def cut_pieces(tokenizer: Any, text: str, count: int) -> list[str]:
    """Cut the text into pieces of random lengths, the same for every way."""
    import numpy as np

    rng = np.random.default_rng(3)
    lengths = np.clip(np.exp(rng.normal(LOG_LENGTH_MEAN, LOG_LENGTH_STD, count)).astype(int), 8, CUTOFF - 4)
    ids = tokenizer(text).input_ids
    ids = ids * (int(lengths.sum()) // len(ids) + 1)
    ends = np.cumsum(lengths)
    texts = [tokenizer.decode(ids[end - length : end]) for length, end in zip(lengths, ends, strict=True)]
    # Tokenized again, a piece may be a token longer or shorter; its new length counts.
    return [text for text in texts if 4 <= len(tokenizer(text).input_ids) <= CUTOFF]


class StepMeter:
    """Measures the time of a Trainer's steps and their memory above that before the first step."""

    def __init__(self, way: str, tokens: int, on_card: bool) -> None:
        self._way, self._tokens, self._on_card = way, tokens, on_card
        self.overhead_seconds, self.held_tokens = 0.0, 0
        self.measurement: Measurement | None = None

    def time(self, trainer: Any, train: Callable[[], Any]) -> Any:
        before = self._memory(from_now=True)
        wall, processor = time.perf_counter(), time.process_time()
        result = train()
        seconds, used = time.perf_counter() - wall, time.process_time() - processor
        losses = tuple(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)
        self.measurement = Measurement(
            self._way,
            self._tokens,
            seconds,
            used,
            self._memory() - before,
            losses,
            self.held_tokens,
            self.overhead_seconds / used,
        )
        return result

    def _memory(self, *, from_now: bool = False) -> float:
        """Peak memory in GB since the last call with `from_now`, which resets it."""
        import torch

        if self._on_card:
            if from_now:
                torch.cuda.reset_peak_memory_stats()
            return float(torch.cuda.max_memory_allocated()) / 1e9
        return (bench_utils.reset_peak_memory() if from_now else bench_utils.peak_memory()) / 1e9


def lora_config() -> Any:
    from peft import LoraConfig

    targets = ["q_proj", "v_proj"]
    return LoraConfig(task_type="CAUSAL_LM", r=RANK, lora_alpha=RANK, lora_dropout=0.0, target_modules=targets)


def common_arguments(**options: Any) -> dict[str, Any]:
    """Training arguments of every Trainer."""
    import torch

    return {
        "output_dir": str(Path(tempfile.gettempdir()) / "training-pro-bench"),
        "num_train_epochs": 1,
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": SEED,
        "use_cpu": not torch.cuda.is_available(),
        "bf16": torch.cuda.is_available(),
        "dataloader_pin_memory": False,
        **options,
    }


def train_with_hf(
    model: Any, tokenizer: Any, texts: list[str], args: argparse.Namespace, watch: StepMeter
) -> None:
    """Train with HF's Trainer: each row padded to the cutoff, or each batch to its longest row."""
    import torch
    from peft import get_peft_model
    from transformers import Trainer, TrainingArguments, set_seed

    rows = [tokenizer(text).input_ids for text in texts]

    def collate(batch: list[list[int]]) -> dict[str, Any]:
        longest = CUTOFF if args.way == "cutoff" else max(map(len, batch))
        watch.held_tokens = max(watch.held_tokens, len(batch) * longest)
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in batch])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in batch])
        labels = ids.masked_fill(mask == 0, -100)
        labels[:, 0] = -100
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    class InOrder(Trainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(rows)

    arguments = TrainingArguments(
        **common_arguments(per_device_train_batch_size=BATCH, remove_unused_columns=False, label_names=["labels"])
    )
    set_seed(SEED)
    trainer = InOrder(get_peft_model(model, lora_config()), arguments, train_dataset=rows, data_collator=collate)
    watch.time(trainer, trainer.train)


def train_with_trl(
    model: Any, tokenizer: Any, texts: list[str], args: argparse.Namespace, watch: StepMeter
) -> None:
    """Train with TRL's SFTTrainer: bins of 1024 tokens, one at a time, or batches joined without padding."""
    import torch
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    class InOrder(SFTTrainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def compute_loss(self, model: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
            watch.held_tokens = max(watch.held_tokens, inputs["input_ids"].numel())
            return super().compute_loss(model, inputs, *rest, **options)

    way: dict[str, Any] = {"packing": True, "max_length": 1024, "per_device_train_batch_size": 1}
    if args.way == "free":
        way = {"padding_free": True, "max_length": None, "per_device_train_batch_size": BATCH}
    trainer = InOrder(
        model,
        args=SFTConfig(**common_arguments(gradient_checkpointing=False, **way)),
        train_dataset=Dataset.from_dict({"input_ids": [tokenizer(text).input_ids for text in texts]}),
        processing_class=tokenizer,
        peft_config=lora_config(),
    )
    watch.time(trainer, trainer.train)


def train_with_ours(
    model: Any, tokenizer: Any, texts: list[str], args: argparse.Namespace, watch: StepMeter
) -> None:
    """Train a whole run of Training PRO, followed by a page, and measure its steps."""
    bench_utils.load()
    from training_pro.core.host import LoadedModel
    from training_pro.core.jobs import Job, Step
    from training_pro.engine.peft_engine import PeftEngine
    from training_pro.engine.training import RunCallback, trainer
    from training_pro.hosts.standalone import StandaloneHost, standalone_folders
    from training_pro.settings.parsing import training_settings

    for name in [name for name in vars(RunCallback) if name.startswith("on_")]:
        setattr(RunCallback, name, _timed(getattr(RunCallback, name), watch))
    train = trainer.RunTrainer.train
    trainer.RunTrainer.train = lambda self, **options: watch.time(self, lambda: train(self, **options))
    values = {
        "name": "bench", "data": ["rows.jsonl"], "format": "text", "add_eos": "never", "cutoff": CUTOFF,
        "batch_size": BATCH, "epochs": 1, "batching": "sequential", "save_each_epoch": False,
        "sample_every": "never", "recall_passages": 0, "rank": RANK, "alpha": RANK, "targets": "q-v",
        "learning_rate": RATE, "schedule": "constant", "warmup_steps": 0, "gradient_checkpointing": "off",
        "seed": SEED,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        host = StandaloneHost(standalone_folders(Path(scratch)), model=str(args.model))
        host._loaded = LoadedModel(host.card(), model)
        host.folders.datasets.mkdir(parents=True)
        rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (host.folders.datasets / "rows.jsonl").write_text(rows, encoding="utf-8")
        job = Job("training", "bench")
        page = threading.Thread(target=_follow_as_page, args=(job, watch), daemon=True)
        page.start()
        PeftEngine().train(training_settings(values), host, job)
    steps = [event for event in job.log.since(0) if isinstance(event, Step)]
    assert watch.measurement and sum(step.tokens for step in steps) == watch._tokens
    losses = tuple(step.loss for step in steps)  # a checkpoint of ours keeps no log of the Trainer
    held = max(step.tokens for step in steps)
    watch.measurement = replace(watch.measurement, losses=losses, held_tokens=held)


def _timed(method: Callable[..., Any], watch: StepMeter) -> Callable[..., Any]:
    """Count the processor time of our callback: requests, events, records."""

    def timed(*args: Any, **options: Any) -> Any:
        began = time.thread_time()
        try:
            return method(*args, **options)
        finally:
            watch.overhead_seconds += time.thread_time() - began

    return timed


def _follow_as_page(job: Any, watch: StepMeter) -> None:
    """Update a view twice a second in its own thread, as a real page does."""
    from training_pro.interface.run import RunView

    view = RunView(job)
    while job.running:
        start = time.thread_time()
        view.catch_up()
        view.html()
        watch.overhead_seconds += time.thread_time() - start
        time.sleep(0.5)


def format_heading(args: argparse.Namespace) -> str:
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{args.threads} threads"
    versions = [f"torch {torch.__version__}", *(f"{n} {version(n)}" for n in ("transformers", "peft")), TRL]
    return f"{platform.processor() or platform.machine()}, {device}, {', '.join(versions)}; {args.rounds} rounds"


def print_ways(results: Sequence[Measurement]) -> None:
    """Print medians and the ratio to ours in the same round, by wall-clock and by processor time."""
    own, rows = results_of("ours", results), []
    for way in WAYS:
        other = results_of(way, results)
        speed = statistics.median(result.speed for result in other)
        peak = statistics.median(result.peak_gb for result in other)
        held = f"{other[0].held_tokens:,}"
        per_token = f"{statistics.median(result.kb_per_held_token for result in other):,.0f}"
        by_clock, by_processor, memory = (
            f"{median_ratio(own, other, name):.2f} x" for name in ("speed", "tokens_per_cpu_second", "peak_gb")
        )
        rows.append((LABELS[way], f"{speed:.0f}", by_clock, by_processor, f"{peak:.2f}", memory, held, per_token))
    columns = (
        "useful tokens/s", "ours, by the clock", "by the processor", "peak above the model, GB", "ours",
        "most tokens held", "KB per token held",
    )  # fmt: skip
    bench_utils.print_table(("way", *columns), *rows)


def results_of(way: str, results: Sequence[Measurement]) -> list[Measurement]:
    return [result for result in results if result.way == way]


def median_ratio(own: Sequence[Measurement], theirs: Sequence[Measurement], figure: str) -> float:
    """Median over the rounds of the ratio of a figure."""
    pairs = zip(own, theirs, strict=True)
    return statistics.median(getattr(mine, figure) / getattr(other, figure) for mine, other in pairs)


def format_other_results(results: Sequence[Measurement]) -> list[str]:
    """Format the other results: whether the losses agree, and the cost of everything but training."""
    ours = results_of("ours", results)[0]
    differences = (
        max(abs(a - b) for a, b in zip(ours.losses, results_of(way, results)[0].losses, strict=True))
        for way in ("dynamic", "free")
    )
    overhead = statistics.median(result.overhead_share for result in results_of("ours", results))
    return [
        "Losses of ours and of dynamic padding, and of ours and of padding_free: at most "
        f"{' and '.join(f'{each:.1g}' for each in differences)} apart over {len(ours.losses)} steps.",
        f"Our callback, the events and a page that follows: {overhead:.2%} of the processor's time.",
    ]


if __name__ == "__main__":
    main()

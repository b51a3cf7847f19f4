"""How fast a run learns, side by side: padding to the cutoff, HF's dynamic padding, TRL's packing, and ours.

    python3 bench/training.py --model FOLDER [--samples 96] [--rounds 3] [--trl FOLDER] [--threads 2]

Prints the rows of docs/benchmarks.md. Every way trains the same LoRA (q-v, rank 16, dropout 0) on the same
pieces of real text of random lengths, cutoff 256, batch 4, all tokens learned, no checkpointing; each in a
process of its own, in turn, round by round. TRL is no part of the project: it is installed without its
dependencies into the folder that --trl names (by default one in the system's folder for temporary files),
which only that way sees. On a graphics card the same command measures the card's memory and adds MFU.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import package

WAYS = ("cutoff", "dynamic", "trl", "ours")
WORDS = {
    "cutoff": "HF Trainer, each row padded to the cutoff",
    "dynamic": "HF Trainer, each batch padded to its longest",
    "trl": "TRL's SFTTrainer, packed to 1024, batch 1",
    "ours": "Training PRO",
}
TRL = "trl==1.16.0"
CUTOFF, BATCH, RANK, RATE, SEED = 256, 4, 16, 2e-4, 42
MEAN, SPREAD = 4.25, 0.75  # of the logarithm of a length: about 90 tokens on average
CARDS = {
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "4090": 165e12,
    "3090": 71e12,
}
"""What cards can do in bfloat16, in operations a second, by their makers' papers."""


@dataclass(frozen=True)
class Found:
    """What one way took for its steps."""

    way: str
    tokens: int
    seconds: float
    processor_seconds: float
    peak_gb: float
    losses: tuple[float, ...]
    beside_share: float = 0.0  # of the processor's time: our callback, the events, and a page that follows
    mfu: float = 0.0

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds

    @property
    def thrift(self) -> float:
        """Tokens for each second of the processor: what a busy machine cannot spoil."""
        return self.tokens / self.processor_seconds


def main() -> None:
    asked = arguments()
    if asked.way:
        print("FOUND " + json.dumps(asdict(measured(asked))))
        return
    install_trl(asked.trl)
    with tempfile.TemporaryDirectory() as scratch:
        asked.text = Path(scratch) / "text.txt"
        asked.text.write_text(prose(), encoding="utf-8")
        found = [once(way, asked) for _ in range(asked.rounds) for way in WAYS]
    print("\n".join([heading(asked), "", *table(found), "", *beside(found)]))


def arguments() -> argparse.Namespace:
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


def once(way: str, asked: argparse.Namespace) -> Found:
    """One way in a process of its own, so that none inherits memory or warmth of another."""
    command = [sys.executable, __file__, "--way", way, "--model", str(asked.model)]
    command += ["--text", str(asked.text), "--samples", str(asked.samples), "--threads", str(asked.threads)]
    surroundings = {**os.environ, "OMP_NUM_THREADS": str(asked.threads), "TOKENIZERS_PARALLELISM": "false"}
    if way == "trl":
        surroundings["PYTHONPATH"] = str(asked.trl)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=surroundings)
    line = next((line for line in done.stdout.splitlines() if line.startswith("FOUND ")), None)
    if line is None:
        raise SystemExit(f"{way} failed:\n{done.stderr[-3000:]}")
    found = Found(**json.loads(line.removeprefix("FOUND ")))
    print(f"{way}: {found.seconds:.1f} s, {found.processor_seconds:.1f} s of the processor", file=sys.stderr)
    return found


def measured(asked: argparse.Namespace) -> Found:
    """This process's way, timed from the first step to the last."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(asked.threads)
    torch.manual_seed(1)
    on_card = torch.cuda.is_available()
    tokenizer = AutoTokenizer.from_pretrained(asked.model)
    texts = pieces(tokenizer, asked.text.read_text(encoding="utf-8"), asked.samples)
    model = AutoModelForCausalLM.from_pretrained(
        asked.model, dtype=torch.bfloat16 if on_card else torch.float32
    ).to("cuda" if on_card else "cpu")
    watch = Watch(asked.way, sum(len(tokenizer(text).input_ids) for text in texts), model, on_card)
    {"ours": with_ours, "trl": with_trl}.get(asked.way, with_hf)(model, tokenizer, texts, asked, watch)
    assert watch.found is not None
    return watch.found


def prose() -> str:
    """The project's own story and pages."""
    files = [*sorted((package.ROOT / "examples").glob("*.txt")), *sorted((package.ROOT / "docs").glob("*.md"))]
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def pieces(tokenizer: Any, text: str, count: int) -> list[str]:
    """Pieces of it by random lengths; the same for every way."""
    import numpy as np

    chance = np.random.default_rng(3)
    lengths = np.clip(np.exp(chance.normal(MEAN, SPREAD, count)).astype(int), 8, CUTOFF - 4)
    ids = tokenizer(text).input_ids
    ids = ids * (int(lengths.sum()) // len(ids) + 1)
    ends = np.cumsum(lengths)
    texts = [tokenizer.decode(ids[end - length : end]) for length, end in zip(lengths, ends, strict=True)]
    # Cut anew, a text may be a token longer or shorter: what counts is what it is now.
    return [text for text in texts if 4 <= len(tokenizer(text).input_ids) <= CUTOFF]


class Watch:
    """Times a Trainer's steps, and the memory they take above what is there before the first."""

    def __init__(self, way: str, tokens: int, model: Any, on_card: bool) -> None:
        self._way, self._tokens, self._on_card = way, tokens, on_card
        self._weights = sum(p.numel() for p in model.parameters())
        self.beside = 0.0
        self.found: Found | None = None

    def time(self, trainer: Any, train: Callable[[], Any]) -> Any:
        before = self._memory(from_now=True)
        wall, processor = time.perf_counter(), time.process_time()
        result = train()
        seconds, used = time.perf_counter() - wall, time.process_time() - processor
        losses = tuple(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)
        self.found = Found(
            self._way,
            self._tokens,
            seconds,
            used,
            self._memory() - before,
            losses,
            self.beside / used,
            self._mfu(seconds),
        )
        return result

    def _mfu(self, seconds: float) -> float:
        """Forward and backward through frozen weights: four operations a weight and token."""
        import torch

        known = [most for name, most in CARDS.items() if self._on_card and name in torch.cuda.get_device_name()]
        return 4 * self._weights * self._tokens / seconds / known[0] if known else 0.0

    def _memory(self, *, from_now: bool = False) -> float:
        """In GB: what is taken now, or the most since then."""
        import torch

        if self._on_card:
            if from_now:
                torch.cuda.reset_peak_memory_stats()
            return float(torch.cuda.max_memory_allocated()) / 1e9
        if from_now:
            Path("/proc/self/clear_refs").write_text("5")
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e9


def lora() -> Any:
    from peft import LoraConfig

    targets = ["q_proj", "v_proj"]
    return LoraConfig(task_type="CAUSAL_LM", r=RANK, lora_alpha=RANK, lora_dropout=0.0, target_modules=targets)


def common(**more: Any) -> dict[str, Any]:
    """What every Trainer is told."""
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
        **more,
    }


def with_hf(model: Any, tokenizer: Any, texts: list[str], asked: argparse.Namespace, watch: Watch) -> None:
    """HF's Trainer as it is: each row padded to the cutoff, or each batch to its longest."""
    import torch
    from peft import get_peft_model
    from transformers import Trainer, TrainingArguments, set_seed

    rows = [tokenizer(text).input_ids for text in texts]

    def collate(batch: list[list[int]]) -> dict[str, Any]:
        longest = CUTOFF if asked.way == "cutoff" else max(map(len, batch))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in batch])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in batch])
        labels = ids.masked_fill(mask == 0, -100)
        labels[:, 0] = -100
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    class InOrder(Trainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(rows)

    arguments = TrainingArguments(
        **common(per_device_train_batch_size=BATCH, remove_unused_columns=False, label_names=["labels"])
    )
    set_seed(SEED)
    trainer = InOrder(get_peft_model(model, lora()), arguments, train_dataset=rows, data_collator=collate)
    watch.time(trainer, trainer.train)


def with_trl(model: Any, tokenizer: Any, texts: list[str], asked: argparse.Namespace, watch: Watch) -> None:
    """TRL's SFTTrainer with its packing: bins of 1024 tokens, one at a time."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    arguments = SFTConfig(
        **common(per_device_train_batch_size=1, packing=True, max_length=1024, gradient_checkpointing=False)
    )
    trainer = SFTTrainer(
        model,
        args=arguments,
        train_dataset=Dataset.from_dict({"input_ids": [tokenizer(text).input_ids for text in texts]}),
        processing_class=tokenizer,
        peft_config=lora(),
    )
    watch.time(trainer, trainer.train)


def with_ours(model: Any, tokenizer: Any, texts: list[str], asked: argparse.Namespace, watch: Watch) -> None:
    """A whole run of Training PRO, from a file to the LoRA on disk, followed by a page; its steps are timed."""
    package.load()
    from training_pro.core.host import LoadedModel
    from training_pro.core.jobs import Job
    from training_pro.engine.peft_engine import PeftEngine
    from training_pro.engine.training import BetweenSteps, trainer
    from training_pro.hosts.standalone import StandaloneHost, folders
    from training_pro.settings.parsing import training_settings

    _count_what_is_beside(BetweenSteps, watch)
    train = trainer.RunTrainer.train
    trainer.RunTrainer.train = lambda self, **more: watch.time(self, lambda: train(self, **more))
    settings = training_settings(
        {
            **{"name": "bench", "data": ["rows.jsonl"], "format": "text", "add_eos": "never", "cutoff": CUTOFF},
            **{
                "batch_size": BATCH,
                "epochs": 1,
                "batching": "sequential",
                "save_each_epoch": False,
                "sample_every": "never",
            },
            **{"rank": RANK, "alpha": RANK, "targets": "q-v", "learning_rate": RATE, "schedule": "constant"},
            **{"warmup_steps": 0, "gradient_checkpointing": "off", "seed": SEED},
        }
    )
    with tempfile.TemporaryDirectory() as scratch:
        host = StandaloneHost(folders(Path(scratch)), model=str(asked.model))
        host._loaded = LoadedModel(host.card(), model)
        host.folders.datasets.mkdir(parents=True)
        rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (host.folders.datasets / "rows.jsonl").write_text(rows, encoding="utf-8")
        job = Job("training", "bench")
        page = threading.Thread(target=_follow, args=(job, watch), daemon=True)
        page.start()
        PeftEngine().train(settings, host, job)
    assert sum(event.tokens for event in job.log.since(0) if hasattr(event, "smoothed")) == watch._tokens


def _count_what_is_beside(callback: Any, watch: Watch) -> None:
    """Add up the processor's time in our callback: wishes, events, records."""
    for name in [name for name in vars(callback) if name.startswith("on_")]:
        setattr(callback, name, _counted(getattr(callback, name), watch))


def _counted(method: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    def counted(*args: Any, **more: Any) -> Any:
        began = time.thread_time()
        try:
            return method(*args, **more)
        finally:
            watch.beside += time.thread_time() - began

    return counted


def _follow(job: Any, watch: Watch) -> None:
    """What a page does twice a second, in a thread of its own, as the real one."""
    from training_pro.interface.run import RunView

    view = RunView(job)
    while job.running:
        began = time.thread_time()
        view.catch_up()
        view.html()
        watch.beside += time.thread_time() - began
        time.sleep(0.5)


def heading(asked: argparse.Namespace) -> str:
    import torch

    where = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{asked.threads} threads"
    versions = [f"torch {torch.__version__}", *(f"{n} {_version(n)}" for n in ("transformers", "peft")), TRL]
    return f"{platform.processor() or platform.machine()}, {where}, {', '.join(versions)}; {asked.rounds} rounds"


def _version(name: str) -> str:
    from importlib.metadata import version

    return version(name)


def table(found: Sequence[Found]) -> list[str]:
    """Medians, and how ours compares in the same round, by the clock and by the processor's time."""
    lines = [
        "| way | useful tokens/s | ours, by the clock | by the processor | peak above the model, GB | ours |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    own = of("ours", found)
    for way in WAYS:
        theirs = of(way, found)
        middle = statistics.median(one.peak_gb for one in theirs)
        lines.append(
            f"| {WORDS[way]} | {statistics.median(one.speed for one in theirs):.0f} | "
            f"{ratio(own, theirs, 'speed'):.2f} x | {ratio(own, theirs, 'thrift'):.2f} x | "
            f"{middle:.2f} | {ratio(own, theirs, 'peak_gb'):.2f} x |"
        )
    return lines


def of(way: str, found: Sequence[Found]) -> list[Found]:
    return [one for one in found if one.way == way]


def ratio(own: Sequence[Found], theirs: Sequence[Found], figure: str) -> float:
    """The median over the rounds."""
    pairs = zip(own, theirs, strict=True)
    return statistics.median(getattr(mine, figure) / getattr(other, figure) for mine, other in pairs)


def beside(found: Sequence[Found]) -> list[str]:
    """What else was asked: the same losses, and what all that is not training costs."""
    own, dynamic = of("ours", found)[0], of("dynamic", found)[0]
    apart = max(abs(a - b) for a, b in zip(own.losses, dynamic.losses, strict=True))
    share = statistics.median(one.beside_share for one in of("ours", found))
    lines = [
        f"Losses of ours and of dynamic padding: at most {apart:.1g} apart over {len(own.losses)} steps.",
        f"Our callback, the events and a page that follows: {share:.2%} of the processor's time.",
    ]
    if own.mfu:
        lines.append("MFU: " + ", ".join(f"{way} {of(way, found)[0].mfu:.1%}" for way in WAYS))
    return lines


if __name__ == "__main__":
    main()

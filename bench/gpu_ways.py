"""The ways to train on a GPU that bench/gpu.py compares: our own, TRL's and Unsloth's, on the same texts."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..core.jobs import Job, Step
from ..hosts.standalone import StandaloneHost, standalone_folders
from ..hosts.tiny import TRAINING_TEXT
from ..settings.definitions import TrainingSettings
from ..settings.parsing import training_settings
from . import bench_utils

WAYS: Mapping[str, str] = {
    "ours": "Training PRO",
    "ours-liger": "Training PRO with Liger",
    "ours-compile": "Training PRO with compile",
    "trl": "TRL's SFTTrainer, packed",
    "trl-liger": "TRL's SFTTrainer with Liger, packed",
    "trl-free": "TRL's SFTTrainer with Liger, padding-free",
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


@dataclass(frozen=True)
class Task:
    """What every way trains: a model on long or short texts, for some steps."""

    way: str
    model: Path
    texts: str
    steps: int
    loading: str = "auto"  # or 4bit
    checkpointing: str = "off"  # or on

    def cut_texts(self, tokenizer: Any) -> list[str]:
        """Cut the project's docs, repeated, into texts that last for the steps, the same for every way."""
        import numpy as np

        tokens = (self.steps + 1) * ACCUMULATION * CUTOFF
        ids = tokenizer(read_docs(), add_special_tokens=False).input_ids
        ids = ids * (tokens // len(ids) + 2)
        rng, pieces, start = np.random.default_rng(3), list[str](), 0
        while start < tokens:
            length = CUTOFF - 6  # tokenized again, a piece may be a few tokens longer
            if self.texts == "short":
                length = int(np.clip(np.exp(rng.normal(LOG_LENGTH_MEAN, LOG_LENGTH_STD)), 32, 2048))
            pieces.append(tokenizer.decode(ids[start : start + length]))
            start += length
        return pieces


def measure(task: Task) -> Measurement:
    """Measure one way in this process."""
    meter = StepMeter(task.way)
    others = {"unsloth": train_with_unsloth, "trl": train_with_trl, "trl-liger": train_with_trl}
    {**others, "trl-free": train_with_trl}.get(task.way, train_with_ours)(task, meter)
    return meter.measurement()


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


def train_with_ours(task: Task, meter: StepMeter) -> None:
    """Train a whole run of Training PRO."""
    from training_pro.engine.peft_engine import PeftEngine
    from training_pro.engine.training import trainer

    train = trainer.RunTrainer.train

    def watched(self: Any, **options: Any) -> Any:
        meter.watch(self, is_counting=False)
        return train(self, **options)

    trainer.RunTrainer.train = watched
    with tempfile.TemporaryDirectory() as scratch:
        host = loaded_host(Path(scratch), task.model, task.loading)
        write_rows(host, task.cut_texts(host.card().tokenizer))
        job = Job("training", "bench")
        changes = {"batch_size": ROWS_PER_BATCH[task.texts], "max_steps": task.steps, **OUR_SETTINGS[task.way]}
        changes["gradient_checkpointing"] = task.checkpointing
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


def train_with_trl(task: Task, meter: StepMeter) -> None:
    """Train with TRL's SFTTrainer and its packing, with or without Liger's kernels and loss."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
    from trl import SFTTrainer

    tokenizer = AutoTokenizer.from_pretrained(task.model)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    more: dict[str, Any] = {"attn_implementation": "flash_attention_2"} if find_spec("flash_attn") else {}
    if task.loading == "4bit":
        more["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        )
    model = AutoModelForCausalLM.from_pretrained(task.model, dtype="auto", device_map={"": device}, **more)
    ways = {"packing": True}
    if task.way == "trl-free":
        ways = {"padding_free": True, "per_device_train_batch_size": ROWS_PER_BATCH[task.texts]}
    trainer = SFTTrainer(
        model,
        args=sft_arguments(task, use_liger_kernel=task.way != "trl" and device == "cuda", **ways),
        train_dataset=text_dataset(task.cut_texts(tokenizer)),
        processing_class=tokenizer,
        peft_config=lora_config(),
    )
    train_and_log(trainer, meter)


def train_with_unsloth(task: Task, meter: StepMeter) -> None:
    """Train with Unsloth's model and its packing in TRL's SFTTrainer."""
    import torch
    from unsloth import FastLanguageModel  # isort: skip - it patches the libraries that come after it
    from trl import SFTTrainer

    model, tokenizer = FastLanguageModel.from_pretrained(
        str(task.model), max_seq_length=CUTOFF, dtype=torch.bfloat16, load_in_4bit=task.loading == "4bit"
    )
    targets = list(lora_config().target_modules)
    model = FastLanguageModel.get_peft_model(
        model,
        r=RANK,
        lora_alpha=RANK,
        lora_dropout=0,
        bias="none",
        target_modules=targets,
        use_gradient_checkpointing="unsloth" if task.checkpointing == "on" else False,
        random_state=SEED,
    )
    trainer = SFTTrainer(
        model,
        args=sft_arguments(task, packing=True),
        train_dataset=text_dataset(task.cut_texts(tokenizer)),
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


def text_dataset(texts: list[str]) -> Any:
    from datasets import Dataset

    return Dataset.from_dict({"text": texts})


def sft_arguments(task: Task, **more: Any) -> Any:
    import torch
    from trl import SFTConfig

    on_gpu = torch.cuda.is_available()
    return SFTConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=task.steps,
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
        max_length=CUTOFF,
        gradient_checkpointing=task.checkpointing == "on",
        **{"per_device_train_batch_size": 1, **more},
    )

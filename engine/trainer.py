"""The Trainer of transformers with our schedule, our collator and our way of saving a LoRA."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainingArguments

from ..data.examples import Example, Examples
from . import adapter
from .blueprint import Blueprint
from .callback import BetweenSteps
from .collator import TOKENS, collate


class _AsDataset(Dataset[Example]):
    def __init__(self, examples: Examples) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> Example:
        return self._examples[index]


class RunTrainer(Trainer):  # type: ignore[misc]
    """HF's loop. Ours are the schedule, the count of tokens, and what is saved of the model and where."""

    def __init__(
        self, blueprint: Blueprint, model: torch.nn.Module, callback: BetweenSteps, scratch: Path
    ) -> None:
        self._blueprint = blueprint
        self._tokens = 0
        super().__init__(
            model=model,
            args=_arguments(blueprint, model, scratch),
            train_dataset=_AsDataset(blueprint.data.examples),
            data_collator=collate,
            callbacks=[callback],
        )
        for printing in (ProgressCallback, PrinterCallback):
            self.remove_callback(printing)
        self.args._n_gpu = min(self.args.n_gpu, 1)  # never wrapped in DataParallel
        callback.tokens = lambda: self._tokens

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        if self.lr_scheduler is None:
            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, self._blueprint.multiplier)
        return self.lr_scheduler

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """A run that goes on under a new plan takes that plan's rates, not the rates it was saved with."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        schedule, rate = self.lr_scheduler, self._blueprint.settings.learning.learning_rate
        schedule.base_lrs = [rate for _ in schedule.base_lrs]
        now = rate * self._blueprint.multiplier(schedule.last_epoch)
        schedule._last_lr = [now for _ in schedule.base_lrs]
        for group in schedule.optimizer.param_groups:
            group["initial_lr"], group["lr"] = rate, now

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **more: Any) -> torch.Tensor:
        self._tokens += inputs.pop(TOKENS)
        return super().training_step(model, inputs, *args, **more)

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._blueprint.folder.aside)

    def _save(self, output_dir: str | None = None, state_dict: Mapping[str, Any] | None = None) -> None:
        adapter.write(self.accelerator.unwrap_model(self.model), Path(output_dir or self._get_output_dir(None)))


def _arguments(blueprint: Blueprint, model: torch.nn.Module, scratch: Path) -> TrainingArguments:
    steps, learning, what = blueprint.settings.steps, blueprint.settings.learning, blueprint.settings.what
    device, precision = _device(model), computing_type(model)
    return TrainingArguments(
        output_dir=str(scratch),
        per_device_train_batch_size=steps.batch_size,
        gradient_accumulation_steps=blueprint.plan.accumulated,
        max_steps=blueprint.plan.steps,
        learning_rate=learning.learning_rate,
        weight_decay=learning.weight_decay,
        max_grad_norm=learning.max_grad_norm,
        adam_beta1=learning.adam_beta1,
        adam_beta2=learning.adam_beta2,
        adam_epsilon=learning.adam_epsilon,
        optim="adamw_torch",
        bf16=precision == "bfloat16",
        fp16=precision == "float16",
        seed=what.seed,
        data_seed=what.seed,
        use_cpu=device.type == "cpu",
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=["labels"],
        dataloader_num_workers=0,
        dataloader_pin_memory=device.type == "cuda",
    )


def _device(model: torch.nn.Module) -> torch.device:
    return next(model.parameters()).device


def computing_type(model: Any) -> str:
    """The type that is computed in, asked of the model itself: 'bfloat16', 'float16' or 'float32'."""
    quantized = getattr(model.config, "quantization_config", None)
    asked = (
        getattr(quantized, "bnb_4bit_compute_dtype", None) if getattr(model, "is_loaded_in_4bit", False) else None
    )
    kind = str(asked or model.dtype).removeprefix("torch.")
    if kind == "float16" and _device(model).type == "cpu":
        return "float32"  # the CPU has no scaled float16; the LoRA itself is float32 anyway
    return kind if kind in ("bfloat16", "float16") else "float32"

"""Trainer of transformers with our own sampler, collator, loss, schedule and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback, TrainingArguments

from ...core.errors import ModelError, Remedy
from ...data.examples import BatchItem, Example, Examples
from ..checks import optimizer_problems, raise_problems
from ..compute import (
    Batch,
    BatchSplitter,
    DivergenceError,
    ModelCapabilities,
    StepSums,
    add_neftune_noise,
    collate,
    count_workers,
    distributed,
    explain_out_of_memory,
    find_divergence,
    has_finite_weights,
    out_of_memory_error,
    undo_on_error,
)
from ..lora import compute_dtype, model_device
from ..plan import RunPlan, apply_to_scheduler
from ..saving import full_finetune
from .callback import RunCallback
from .param_groups import split_param_groups
from .sampler import EpochSampler

_Item = tuple[Example, BatchItem]
_FROM_SETTINGS = ("weight_decay", "betas", "eps")
"""Keys of an optimizer's groups that a resume may change; the others may hold its state."""


class _Arguments(TrainingArguments):  # type: ignore[misc]
    """Settings of the Trainer."""

    @property
    def device(self) -> torch.device:
        """With several processes accelerate says `cpu:0`, and torch can't load a saved optimizer to that name."""
        device: torch.device = super().device
        return torch.device("cpu") if device.type == "cpu" else device


class _ExampleDataset(Dataset[_Item]):  # type: ignore[misc]
    def __init__(self, examples: Examples) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, place: BatchItem) -> _Item:
        return self._examples[place.number], place


class RunTrainer(Trainer):  # type: ignore[misc]
    """The loop is that of transformers; order, batches, loss, schedule and saving are our own."""

    lr_scheduler: Any

    def __init__(
        self,
        run_plan: RunPlan,
        model: torch.nn.Module,
        capabilities: ModelCapabilities,
        sums: StepSums,
        callback: RunCallback,
        scratch: Path,
        *other_callbacks: TrainerCallback,
    ) -> None:
        self._run_plan, self._capabilities, self._sums, self._callback = run_plan, capabilities, sums, callback
        super().__init__(
            model=model,
            args=_training_arguments(run_plan, model, scratch),
            train_dataset=_ExampleDataset(run_plan.data.examples),
            data_collator=partial(_collate, in_one_row=capabilities.packed),
            callbacks=[callback, *other_callbacks],
        )
        if self.args.world_size != run_plan.plan.processes:
            raise ModelError(
                f"The launcher started {run_plan.plan.processes} processes, but the number of connected processes "
                f"is {self.args.world_size}. Start the run with torchrun."
            )
        for callback_class in (ProgressCallback, PrinterCallback):
            self.remove_callback(callback_class)
        self.model_accepts_loss_kwargs = True  # our loss is divided by the labels of the whole step
        # Several processes would have to split together; the gradients of a whole model do not fit twice.
        self._split_refusal = "With full fine-tuning" if run_plan.settings.lora.whole_model else ""
        if self.accelerator.num_processes > 1:
            self._split_refusal = "With several processes"
        self._splitter = BatchSplitter(enabled=not self._split_refusal)

    def _init_training_state(self, max_steps: int, per_epoch: int, epochs: int, *more: Any) -> tuple[int, int]:
        """Leave no epoch if the run is over: within one, the Trainer would train a step before it stops."""
        trained: tuple[int, int] = super()._init_training_state(max_steps, per_epoch, epochs, *more)
        return (epochs, 0) if self._callback.controller.is_over(self.state.global_step) else trained

    def create_optimizer(self, *args: Any) -> torch.optim.Optimizer:
        """Create the optimizer, with its groups split by learning rate."""
        if self.optimizer is None:
            split_param_groups(super().create_optimizer(*args), self.model, self._run_plan.settings)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        if self.lr_scheduler is None:
            controller = self._callback.controller
            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, lambda done: controller.rates.share(done))
        return self.lr_scheduler

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load both, then apply the current settings and learning rates in place of the saved ones."""
        if checkpoint is None:
            return
        requested = [
            {key: group[key] for key in _FROM_SETTINGS if key in group} for group in self.optimizer.param_groups
        ]
        super()._load_optimizer_and_scheduler(checkpoint)
        for group, values in zip(self.optimizer.param_groups, requested, strict=True):
            group.update(values)
        apply_to_scheduler(self._callback.controller.rates, self.lr_scheduler)

    def _get_train_sampler(self, *_: Any) -> EpochSampler:
        return EpochSampler(self._run_plan, self._callback.phases, lambda: self.state.global_step)

    def floating_point_ops(self, _: Any) -> int:
        """Skip the count of transformers: nothing reads it, and it would visit all modules at each step."""
        return 0

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """Train on a batch, in parts if it runs out of memory."""
        numbers, examples = inputs.pop("numbers"), self._run_plan.data.examples
        whole_batch = replace(inputs["batch"], examples=tuple(examples[number] for number in numbers))
        trained = list(model.parameters()) if self._splitter.enabled else []

        def step(batch: Batch) -> torch.Tensor:
            explained = explain_out_of_memory(partial(self._out_of_memory_error, batch))
            with (
                nullcontext() if self._splitter.can_split(batch) else explained,
                undo_on_error(trained, self._sums),
            ):
                loss: torch.Tensor = super(RunTrainer, self).training_step(
                    model, _trainer_inputs(batch), *args, **kwargs
                )
            return loss

        losses = self._splitter.run(whole_batch, step, self._callback.log_split_batch)
        return torch.stack(list(losses)).sum()

    def _out_of_memory_error(self, batch: Batch) -> ModelError:
        """Return the error for a batch that cannot be split further, with the last checkpoint."""
        plan, checkpoint = self._run_plan.plan, self._callback.last_saved
        if self._split_refusal:
            size, accumulation = max(1, plan.batch_size // 2), 2 * plan.effective_accumulation
            advice = f"True Batch Size {size} and Gradient Accumulation {accumulation}"
            error = ModelError(
                f"Out of memory. {self._split_refusal}, a batch can't be split. Start again with "
                f"{advice}. The effective batch size stays the same.",
                [Remedy(advice, {"batch_size": size, "accumulation": accumulation})],
            )
        else:
            error = out_of_memory_error(self.args.device, self._run_plan.remedies, batch.tokens)
        last = f"The last checkpoint is {checkpoint.name}." if checkpoint else "There is no checkpoint yet."
        return ModelError(f"{error} {last}", error.remedies)

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """Check the step just before the weights change: one that would break them ends the run."""
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        # The mean of all processes: one that stops by its own part would leave the others waiting.
        loss = float(self.accelerator.reduce(self._tr_loss, reduction="mean"))
        done, vocabulary = self.state.global_step, int(self._embeddings.weight.shape[0])
        smoothed, fp16 = self._callback.step_log.smoothed, self.args.fp16
        if reason := find_divergence(loss, float(norm), smoothed, vocabulary, scaled=fp16):
            self.refuse_broken_weights()
            raise DivergenceError(
                f"Step {done + 1} would have damaged the weights: {reason}. The weights stay as they were after "
                f"step {done}.",
                self._callback.controller.rates.rate(done + 1),
                fp16=fp16,
            )
        return norm

    def refuse_broken_weights(self) -> None:
        """Raise an error if the finished steps have left weights that are NaN or infinite."""
        if has_finite_weights(self.model):
            return
        done = self.state.global_step
        raise DivergenceError(
            f"Training diverged: after step {done}, some weights are NaN or infinite.",
            self._callback.controller.rates.rate(max(1, done)),
            fp16=self.args.fp16,
            spoiled=True,
        )

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Return the mean loss over all labels of a step, across its micro-batches and processes."""
        batch: Batch = inputs["batch"]
        alpha = self._run_plan.settings.learning.neftune_noise
        with self.accelerator.autocast(), add_neftune_noise(self._embeddings, alpha, batch):
            rows = self._capabilities.loss(model, batch.inputs, batch.labels)
        self._sums.add(batch, rows)
        losses = rows.losses
        count = len(losses) if num_items_in_batch is None else num_items_in_batch
        loss = losses.sum() / torch.as_tensor(count, device=losses.device).clamp(min=1)
        loss = loss.to(self.args.device)  # the head of a model on several GPUs is often on another one
        return loss * self.accelerator.num_processes

    @property
    def _embeddings(self) -> torch.nn.Module:
        embeddings: torch.nn.Module = self.accelerator.unwrap_model(self.model).get_input_embeddings()
        return embeddings

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self._callback.save_checkpoint(partial(super()._save_checkpoint, model, trial))

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._run_plan.folder.partial_folder)

    def _save(self, output_dir: str | None = None, state_dict: Mapping[str, Any] | None = None) -> None:
        folder = Path(output_dir or self._get_output_dir(None))
        full_finetune.save_trained_model(self._run_plan, self.accelerator.unwrap_model(self.model), folder)


def _collate(items: Sequence[_Item], *, in_one_row: bool) -> dict[str, Any]:
    """Collate a batch, with the numbers of its examples in their place.

    A worker process would send each example with all data that it is from, and a tokenizer can't be sent at all.
    """
    batch = collate([example for example, _ in items], [place.joins for _, place in items], in_one_row=in_one_row)
    return _trainer_inputs(replace(batch, examples=())) | {"numbers": [place.number for _, place in items]}


def _trainer_inputs(batch: Batch) -> dict[str, Any]:
    """Return a batch as the Trainer takes it, with the labels, which it counts for each step."""
    return {"batch": batch, "labels": batch.labels}


def _training_arguments(run_plan: RunPlan, model: torch.nn.Module, scratch: Path) -> _Arguments:
    steps, learning, general = run_plan.settings.steps, run_plan.settings.learning, run_plan.settings.what
    target, precision = model_device(model), compute_dtype(model)
    raise_problems(optimizer_problems(learning.optimizer, target.type))
    arguments = _Arguments(
        output_dir=str(scratch),
        per_device_train_batch_size=steps.batch_size,
        gradient_accumulation_steps=run_plan.plan.effective_accumulation,
        max_steps=run_plan.plan.steps,
        learning_rate=learning.learning_rate,
        weight_decay=learning.weight_decay,
        max_grad_norm=learning.max_grad_norm,
        adam_beta1=learning.adam_beta1,
        adam_beta2=learning.adam_beta2,
        adam_epsilon=learning.adam_epsilon,
        optim=learning.optimizer,
        bf16=precision == "bfloat16",
        fp16=precision == "float16",
        seed=general.weights_seed,
        data_seed=general.order_seed,
        use_cpu=target.type == "cpu",
        ddp_backend=distributed.ddp_backend(),
        ddp_find_unused_parameters=False,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        eval_strategy="no",
        report_to="none",  # tracking.py has our own reporters
        run_name=run_plan.settings.records.run_name or run_plan.folder.name,
        project="training_pro",
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=["labels"],
        dataloader_num_workers=count_workers(run_plan.settings.machine.workers),
        dataloader_pin_memory=target.type == "cuda",
    )
    # Train on one GPU even where there are more: the Trainer multiplies the batch size by their number.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments

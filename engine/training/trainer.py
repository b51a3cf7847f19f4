"""Trainer of transformers with our own sampler, collator, loss, schedule and checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback, TrainingArguments

from ...core.errors import ModelError
from ...core.files import is_disk_full, write_error_reason
from ...data.examples import BatchItem, Example, Examples, find_example_datasets
from ..checks import optimizer_problems, raise_problems
from ..compute import (
    EXAMPLES,
    JOINS,
    OWNERS,
    TOKENS,
    BatchSplitter,
    LossByDataset,
    MicroBatch,
    ModelCapabilities,
    SpillDetector,
    StepFns,
    add_neftune_noise,
    broken_weights_error,
    collate,
    count_workers,
    ddp_backend,
    device_memory,
    divergence_error,
    find_divergence,
    out_of_memory_error,
    unsplittable_batch_error,
)
from ..inference import Evaluator
from ..lora import compute_dtype, model_device
from ..plan import RunPlan, apply_to_scheduler
from ..saving import WRITE_ATTEMPTS, full_finetune, is_write_error
from .callback import RunCallback
from .finite_check import has_finite_weights
from .param_groups import split_param_groups
from .sampler import EpochSampler


class _BatchItem(NamedTuple):
    """Example, and whether it continues the one before it in the batch."""

    example: Example
    joins: bool


class _ExampleDataset(Dataset[_BatchItem]):  # type: ignore[misc]
    def __init__(self, examples: Examples) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, place: BatchItem) -> _BatchItem:
        return _BatchItem(self._examples[place.number], place.joins)


class RunTrainer(Trainer):  # type: ignore[misc]
    """The loop is that of transformers; order, batches, loss, schedule and saving are our own."""

    lr_scheduler: Any

    def __init__(
        self,
        blueprint: RunPlan,
        model: torch.nn.Module,
        capabilities: ModelCapabilities,
        callback: RunCallback,
        scratch: Path,
        *other_callbacks: TrainerCallback,
    ) -> None:
        self._blueprint, self._capabilities = blueprint, capabilities
        self._tokens = 0
        self._loss_by_dataset = LossByDataset(find_example_datasets(blueprint.data.examples, blueprint.settings))
        self._examples: Sequence[Example] = ()
        self._splitter = BatchSplitter()
        self._callback = callback
        super().__init__(
            model=model,
            args=_training_arguments(blueprint, model, scratch),
            train_dataset=_ExampleDataset(blueprint.data.examples),
            data_collator=self._collate,
            callbacks=[callback, *other_callbacks],
        )
        if self.args.world_size != blueprint.plan.processes:
            raise ModelError(
                f"The launcher says {blueprint.plan.processes} processes, but {self.args.world_size} found each "
                "other. Start the run with torchrun."
            )
        for callback_class in (ProgressCallback, PrinterCallback):
            self.remove_callback(callback_class)
        self.model_accepts_loss_kwargs = True  # our loss is divided by the labels of the whole step
        callback.course.tokens = lambda: self._tokens
        if sys.platform == "win32" and self.args.device.type == "cuda":
            callback.spill_detector = SpillDetector()
        callback.course.by_source = self._loss_by_dataset.taken
        if len(blueprint.data.kept_aside):
            testing = callback.eval_scheduler
            testing.evaluate = Evaluator(blueprint, model, capabilities, testing.stopping, testing.report_progress)

    def create_optimizer(self, *args: Any) -> torch.optim.Optimizer:
        """Create the optimizer, with its groups split by learning rate."""
        if self.optimizer is None:
            split_param_groups(super().create_optimizer(*args), self.model, self._blueprint.settings)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        if self.lr_scheduler is None:
            steering = self._callback.steering
            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, lambda done: steering.rates.share(done))
        return self.lr_scheduler

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load both, then apply the current plan's learning rates in place of the saved ones."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            apply_to_scheduler(self._callback.rates, self.lr_scheduler)

    def _get_train_sampler(self, *_: Any) -> EpochSampler:
        examples = self._blueprint.data.examples
        return EpochSampler(examples, self._blueprint, self._callback.phases, lambda: self.state.global_step)

    def floating_point_ops(self, _: Any) -> int:
        """Skip the count of transformers: nothing reads it, and it would visit all modules at each step."""
        return 0

    def _collate(self, items: Sequence[_BatchItem]) -> dict[str, Any]:
        examples, joins = [item.example for item in items], [item.joins for item in items]
        return collate(examples, joins, in_one_row=self._capabilities.packed)

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """Train on a batch, in parts if it runs out of memory."""
        self._tokens += inputs.pop(TOKENS)
        batch = MicroBatch(inputs.pop(EXAMPLES), inputs.pop(JOINS))

        def step(micro_batch: MicroBatch, inputs: dict[str, Any]) -> torch.Tensor:
            self._examples = micro_batch.examples
            loss: torch.Tensor = super(RunTrainer, self).training_step(model, inputs, *args, **kwargs)
            return loss

        step_fns = StepFns(
            inputs=self._inputs,
            step=step,
            parameters=list(model.parameters()),
            apart=self._loss_by_dataset,
            log_split=self._callback.log_split_batch,
            out_of_memory_error=self._out_of_memory_error,
            can_split=not self._why_not_splittable(),
        )
        return self._splitter.done(batch, inputs, step_fns)

    def _inputs(self, micro_batch: MicroBatch) -> dict[str, Any]:
        tensors = collate(micro_batch.examples, micro_batch.joins, in_one_row=self._capabilities.packed)
        return {name: value for name, value in tensors.items() if name not in (TOKENS, EXAMPLES, JOINS)}

    def _why_not_splittable(self) -> str:
        """Return why a batch cannot be split, or an empty string.

        Several processes would have to split together; the gradients of a whole model do not fit twice.
        """
        if self.accelerator.num_processes > 1:
            return "with several processes"
        return "with the whole model in training" if self._blueprint.settings.lora.whole_model else ""

    def _out_of_memory_error(self, micro_batch: MicroBatch) -> ModelError:
        plan, checkpoint = self._blueprint.plan, self._callback.last_saved
        if reason := self._why_not_splittable():
            error = unsplittable_batch_error(plan.batch_size, plan.effective_accumulation, reason)
        else:
            target = self.args.device
            error = out_of_memory_error(
                target, self._blueprint.remedies(device_memory(target)), micro_batch.tokens
            )
        last = f"The last checkpoint is {checkpoint.name}." if checkpoint else "There is no checkpoint yet."
        return ModelError(f"{error} {last}", error.remedies)

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """Check the step just before the weights change: one that would break them ends the run."""
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        # The mean of all processes: one that stops by its own part would leave the others waiting.
        loss = float(self.accelerator.reduce(self._tr_loss, reduction="mean"))
        step = self.state.global_step + 1
        reason = find_divergence(
            loss, float(norm), self._callback.course.smoothed, self._vocabulary, scaled=self.args.fp16
        )
        if reason:
            self.refuse_broken_weights(step - 1)
            raise divergence_error(
                reason, step, self._callback.rates.rate(step), "float16" if self.args.fp16 else ""
            )
        return norm

    def refuse_broken_weights(self, done: int) -> None:
        """Raise an error if the finished steps have left weights that are NaN or infinite."""
        if not has_finite_weights(self.model):
            raise broken_weights_error(
                done, self._callback.rates.rate(max(1, done)), "float16" if self.args.fp16 else ""
            )

    @property
    def _vocabulary(self) -> int:
        return int(self._embeddings.weight.shape[0])

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Return the mean loss over all labels of a step, across its micro-batches and processes."""
        labels, owners = inputs.pop("labels"), inputs.pop(OWNERS)
        alpha = self._blueprint.settings.learning.neftune_noise
        with self.accelerator.autocast(), add_neftune_noise(self._embeddings, alpha, owners, inputs):
            rows = self._capabilities.loss(model, inputs, labels)
        self._loss_by_dataset.add(rows, owners, self._examples)
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
        """Save a checkpoint; a failure does not end the run but is passed to the callback."""
        for _ in range(WRITE_ATTEMPTS):
            self._callback.save_error, full = self._try_save(model, trial)
            if not self._callback.save_error:
                return
            self._callback.clean_up_failed_save(for_want_of_room=full)  # the half-written file is closed by now

    def _try_save(self, model: Any, trial: Any) -> tuple[str, bool]:
        """Save; returns why that failed, or an empty string, and whether the disk is full."""
        folder = self._blueprint.folder.path
        try:
            super()._save_checkpoint(model, trial)
        except (OSError, RuntimeError) as error:  # torch.save raises RuntimeError if the disk is full
            if not is_write_error(error):
                raise
            return write_error_reason(error, folder), is_disk_full(error, folder)
        return "", False

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._blueprint.folder.aside)

    def _save(self, output_dir: str | None = None, state_dict: Mapping[str, Any] | None = None) -> None:
        folder = Path(output_dir or self._get_output_dir(None))
        full_finetune.save_trained_model(self._blueprint, self.accelerator.unwrap_model(self.model), folder)


def _training_arguments(blueprint: RunPlan, model: torch.nn.Module, scratch: Path) -> TrainingArguments:
    steps, learning, general = blueprint.settings.steps, blueprint.settings.learning, blueprint.settings.what
    target, precision = model_device(model), compute_dtype(model)
    raise_problems(optimizer_problems(learning.optimizer, target.type))
    arguments = TrainingArguments(
        output_dir=str(scratch),
        per_device_train_batch_size=steps.batch_size,
        gradient_accumulation_steps=blueprint.plan.effective_accumulation,
        max_steps=blueprint.plan.steps,
        learning_rate=learning.learning_rate,
        weight_decay=learning.weight_decay,
        max_grad_norm=learning.max_grad_norm,
        adam_beta1=learning.adam_beta1,
        adam_beta2=learning.adam_beta2,
        adam_epsilon=learning.adam_epsilon,
        optim=learning.optimizer,
        bf16=precision == "bfloat16",
        fp16=precision == "float16",
        seed=general.seed,
        data_seed=general.seed,
        use_cpu=target.type == "cpu",
        ddp_backend=ddp_backend(),
        ddp_find_unused_parameters=False,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        eval_strategy="no",
        report_to="none",  # tracking.py has our own reporters
        run_name=blueprint.folder.name,
        project="training_pro",
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=["labels"],
        dataloader_num_workers=count_workers(blueprint.settings.machine.workers),
        dataloader_pin_memory=target.type == "cuda",
    )
    # Train on one GPU even where there are more: the Trainer multiplies the batch size by their number.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments

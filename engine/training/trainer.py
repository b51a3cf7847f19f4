"""The Trainer of transformers with our schedule, our collator and our way of saving a LoRA."""

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
from ...core.files import is_full, why_not_written
from ...data.examples import Example, Examples, Place, origins
from ..checks import optimizer_problems, refuse_for
from ..compute import (
    EXAMPLES,
    JOINS,
    OWNERS,
    TOKENS,
    Halving,
    LossesApart,
    Piece,
    Spilling,
    Ways,
    Work,
    backend,
    batched,
    broken_down,
    cannot_halve,
    does_not_fit,
    memory_of,
    noisy,
    spoiled,
    why_unsound,
    workers,
)
from ..inference import Measuring
from ..lora import computing_type, device
from ..plan import Blueprint, give
from ..saving import TRIES, full_finetune, is_about_files
from .callback import BetweenSteps
from .finite_check import is_sound
from .param_groups import set_apart
from .sampler import EachEpoch


class _Picked(NamedTuple):
    """An example, and whether it goes on from the one before it in the batch."""

    example: Example
    joins: bool


class _AsDataset(Dataset[_Picked]):  # type: ignore[misc]
    def __init__(self, examples: Examples) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, place: Place) -> _Picked:
        return _Picked(self._examples[place.number], place.joins)


class RunTrainer(Trainer):  # type: ignore[misc]
    """HF's loop. Ours are order, batches, loss and schedule, and what is saved of the model and where."""

    lr_scheduler: Any

    def __init__(
        self,
        blueprint: Blueprint,
        model: torch.nn.Module,
        ways: Ways,
        callback: BetweenSteps,
        scratch: Path,
        *others: TrainerCallback,
    ) -> None:
        self._blueprint, self._ways = blueprint, ways
        self._tokens = 0
        self._apart = LossesApart(origins(blueprint.data.examples, blueprint.settings))
        self._examples: Sequence[Example] = ()
        self._halving = Halving()
        self._between = callback
        super().__init__(
            model=model,
            args=_arguments(blueprint, model, scratch),
            train_dataset=_AsDataset(blueprint.data.examples),
            data_collator=self._batch,
            callbacks=[callback, *others],
        )
        if self.args.world_size != blueprint.plan.processes:
            raise ModelError(
                f"The launcher says {blueprint.plan.processes} processes, but {self.args.world_size} found each "
                "other. Start the run with torchrun."
            )
        for printing in (ProgressCallback, PrinterCallback):
            self.remove_callback(printing)
        self.model_accepts_loss_kwargs = True  # our loss divides by the labels of the whole step
        callback.course.tokens = lambda: self._tokens
        if sys.platform == "win32" and self.args.device.type == "cuda":
            callback.spilling = Spilling()
        callback.course.by_source = self._apart.taken
        if len(blueprint.data.kept_aside):
            testing = callback.testing
            testing.measure = Measuring(blueprint, model, ways, testing.stopping, testing.told)

    def create_optimizer(self, *args: Any) -> torch.optim.Optimizer:
        """HF's, with groups of their own for what learns at a rate of its own."""
        if self.optimizer is None:
            set_apart(super().create_optimizer(*args), self.model, self._blueprint.settings)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        if self.lr_scheduler is None:
            steering = self._between.steering
            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, lambda done: steering.rates.share(done))
        return self.lr_scheduler

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """A run that goes on under a new plan takes that plan's rates, not the rates it was saved with."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            give(self._between.rates, self.lr_scheduler)

    def _get_train_sampler(self, *_: Any) -> EachEpoch:
        examples = self._blueprint.data.examples
        return EachEpoch(examples, self._blueprint, self._between.phases, lambda: self.state.global_step)

    def floating_point_ops(self, _: Any) -> int:
        """Nobody reads HF's count, for which it would go through all modules at each step."""
        return 0

    def _batch(self, picked: Sequence[_Picked]) -> dict[str, Any]:
        examples, joins = [p.example for p in picked], [p.joins for p in picked]
        return batched(examples, joins, in_one_row=self._ways.packed)

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **more: Any) -> torch.Tensor:
        """A batch at once, or in pieces where that is too much for the memory."""
        self._tokens += inputs.pop(TOKENS)
        batch = Piece(inputs.pop(EXAMPLES), inputs.pop(JOINS))

        def step(piece: Piece, inputs: dict[str, Any]) -> torch.Tensor:
            self._examples = piece.examples
            done: torch.Tensor = super(RunTrainer, self).training_step(model, inputs, *args, **more)
            return done

        work = Work(
            inputs=self._inputs,
            step=step,
            parameters=list(model.parameters()),
            apart=self._apart,
            told=self._between.told_of_halves,
            refused=self._does_not_fit,
            may_halve=not self._why_not_in_halves(),
        )
        return self._halving.done(batch, inputs, work)

    def _inputs(self, piece: Piece) -> dict[str, Any]:
        made = batched(piece.examples, piece.joins, in_one_row=self._ways.packed)
        return {name: value for name, value in made.items() if name not in (TOKENS, EXAMPLES, JOINS)}

    def _why_not_in_halves(self) -> str:
        """Several would have to do so together; of a whole model's gradients there is no room for two."""
        if self.accelerator.num_processes > 1:
            return "with several processes"
        return "with the whole model in training" if self._blueprint.settings.lora.whole_model else ""

    def _does_not_fit(self, piece: Piece) -> ModelError:
        plan, saved = self._blueprint.plan, self._between.last_saved
        if why := self._why_not_in_halves():
            error = cannot_halve(plan.batch_size, plan.accumulated, why)
        else:
            place = self.args.device
            error = does_not_fit(place, self._blueprint.remedies(memory_of(place)), piece.tokens)
        last = f"The last checkpoint is {saved.name}." if saved else "There is no checkpoint yet."
        return ModelError(f"{error} {last}", error.remedies)

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """The last moment before the weights change: a step that would spoil them ends the run."""
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        # Of all processes: judged by its own part, one would leave the others waiting for it.
        loss = float(self.accelerator.reduce(self._tr_loss, reduction="mean"))
        step = self.state.global_step + 1
        why = why_unsound(
            loss, float(norm), self._between.course.smoothed, self._vocabulary, scaled=self.args.fp16
        )
        if why:
            self.refuse_spoiled(step - 1)
            raise broken_down(why, step, self._between.rates.rate(step), "float16" if self.args.fp16 else "")
        return norm

    def refuse_spoiled(self, done: int) -> None:
        """BreakdownError where the steps that are done have left weights that are no numbers."""
        if not is_sound(self.model):
            raise spoiled(done, self._between.rates.rate(max(1, done)), "float16" if self.args.fp16 else "")

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
        """The mean over all labels of a step, however many batches and processes it is made of."""
        labels, owners = inputs.pop("labels"), inputs.pop(OWNERS)
        alpha = self._blueprint.settings.learning.neftune_noise
        with self.accelerator.autocast(), noisy(self._embeddings, alpha, owners, inputs):
            rows = self._ways.loss(model, inputs, labels)
        self._apart.add(rows, owners, self._examples)
        losses = rows.losses
        count = len(losses) if num_items_in_batch is None else num_items_in_batch
        loss = losses.sum() / torch.as_tensor(count, device=losses.device).clamp(min=1)
        loss = loss.to(self.args.device)  # of a model on several cards the head is often on another one
        return loss * self.accelerator.num_processes

    @property
    def _embeddings(self) -> torch.nn.Module:
        embeddings: torch.nn.Module = self.accelerator.unwrap_model(self.model).get_input_embeddings()
        return embeddings

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """A checkpoint that cannot be written does not end the run: the callback is told why."""
        for _ in range(TRIES):
            self._between.unsaved, full = self._why_unsaved(model, trial)
            if not self._between.unsaved:
                return
            self._between.could_not_save(for_want_of_room=full)  # nothing holds the half-written file any more

    def _why_unsaved(self, model: Any, trial: Any) -> tuple[str, bool]:
        """Why the checkpoint could not be written, and whether the disk is full."""
        folder = self._blueprint.folder.path
        try:
            super()._save_checkpoint(model, trial)
        except (OSError, RuntimeError) as error:  # torch.save says RuntimeError where the disk is full
            if not is_about_files(error):
                raise
            return why_not_written(error, folder), is_full(error, folder)
        return "", False

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._blueprint.folder.aside)

    def _save(self, output_dir: str | None = None, state_dict: Mapping[str, Any] | None = None) -> None:
        folder = Path(output_dir or self._get_output_dir(None))
        full_finetune.write(self._blueprint, self.accelerator.unwrap_model(self.model), folder)


def _arguments(blueprint: Blueprint, model: torch.nn.Module, scratch: Path) -> TrainingArguments:
    steps, learning, what = blueprint.settings.steps, blueprint.settings.learning, blueprint.settings.what
    place, precision = device(model), computing_type(model)
    refuse_for(optimizer_problems(learning.optimizer, place.type))
    made = TrainingArguments(
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
        optim=learning.optimizer,
        bf16=precision == "bfloat16",
        fp16=precision == "float16",
        seed=what.seed,
        data_seed=what.seed,
        use_cpu=place.type == "cpu",
        ddp_backend=backend(),
        ddp_find_unused_parameters=False,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        eval_strategy="no",
        report_to="none",  # reporters.py has those that were asked for
        run_name=blueprint.folder.name,
        project="training_pro",
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=["labels"],
        dataloader_num_workers=workers(blueprint.settings.machine.workers),
        dataloader_pin_memory=place.type == "cuda",
    )
    # One card trains, also where there are more: by their number the Trainer would multiply its batches.
    made._n_gpu = min(made.n_gpu, 1)
    return made

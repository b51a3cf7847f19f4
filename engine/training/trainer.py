"""Trainer of transformers with our own order of examples, batches, loss, schedule and checkpoints."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import PrinterCallback, ProgressCallback, TrainerCallback, TrainingArguments

from ...chunking import Ints
from ...core import dist_env
from ...core.errors import ModelError, Remedy
from ...data import batch_order
from ...data.batch_order import BatchItem
from ...data.examples import Example, Examples
from ..checks import optimizer_problems, raise_problems
from ..compute import Batch, Objective, StepSums, TrainerHooks, count_workers, failures
from ..lora import compute_dtype, model_device
from ..plan import BY_LENGTH, LR_SHARE_KEY, NEIGHBOR_PAIRS, NOT_KNOWN, BatchingPhases, RunPlan
from ..saving import safe_save
from .callback import RunCallback

_Item = tuple[Example, BatchItem]
# Keys of an optimizer's groups that a resume may change; the others may hold its state.
_FROM_SETTINGS = ("weight_decay", "betas", "eps")


class RunTrainer(TrainerHooks):
    """The loop is that of transformers; order, batches, loss, schedule and saving are our own."""

    lr_scheduler: Any

    def __init__(
        self,
        run_plan: RunPlan,
        model: torch.nn.Module,
        objective: Objective,
        sums: StepSums,
        callback: RunCallback,
        scratch: Path,
        *other_callbacks: TrainerCallback,
    ) -> None:
        self._run_plan, self._objective, self._sums, self._callback = run_plan, objective, sums, callback
        self.check_step, self.write_checkpoint = self._check_step, callback.save_checkpoint
        callback.save_now = self.save_now
        self._step_loss: Any = 0.0
        self._skipped = 0  # steps in a row, by the scaler of float16
        super().__init__(
            model=model,
            args=_training_arguments(run_plan, model, scratch),
            train_dataset=_ExampleDataset(run_plan.data.examples),
            data_collator=self._collate,
            callbacks=[callback, *other_callbacks],
        )
        # Only now: the Trainer makes this folder when it is created, and nothing may be written under loras/
        # before the first step is done.
        self.args.output_dir = str(run_plan.folder.partial_folder)
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
        self._splitter = failures.BatchSplitter(enabled=not self._split_refusal)

    # Batches

    def get_train_dataloader(self) -> Any:
        callback = self._callback
        sampler = EpochSampler(self._run_plan, callback.phases, lambda: self.state.global_step, callback.draw)
        loader = DataLoader(
            self.train_dataset,
            batch_size=self.args.per_device_train_batch_size,
            sampler=sampler,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )
        return self.accelerator.prepare(loader)  # it shares the batches among the processes

    def _collate(self, items: Sequence[_Item]) -> dict[str, Any]:
        """Collate a batch, with the numbers of its examples in their place."""
        batch = self._objective.collate([example for example, _ in items], [place.joins for _, place in items])
        # The Trainer counts the losses of a step in `labels`. A worker process would send each example with all
        # data that it is from, and a tokenizer can't be sent.
        numbers = [place.number for _, place in items]
        counted = self._objective.counted(batch)
        return {"batch": replace(batch, examples=()), "labels": counted, "numbers": numbers}

    # Loss and gradients

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """Train on a batch, in parts if it runs out of memory."""
        numbers, examples = inputs.pop("numbers"), self._run_plan.data.examples
        whole_batch = replace(inputs["batch"], examples=tuple(examples[number] for number in numbers))
        trained = list(model.parameters()) if self._splitter.enabled else []
        tokens = 0  # of the part that is trained on

        def step(batch: Batch) -> torch.Tensor:
            nonlocal tokens
            tokens = batch.tokens
            with failures.undo_on_error(trained), self._sums.undo_on_error():
                part = {"batch": batch, "labels": batch.labels}
                loss: torch.Tensor = super(RunTrainer, self).training_step(model, part, *args, **kwargs)
            return loss

        with failures.explain_out_of_memory(lambda: self._out_of_memory_error(tokens)):
            losses = list(self._splitter.run(whole_batch, step, self._callback.log_split_batch))
        loss = torch.stack(losses).sum()
        self._step_loss += loss
        return loss

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Return the mean loss over all tokens or pairs of a step, across its micro-batches and processes."""
        batch: Batch = inputs["batch"]
        with self.accelerator.autocast():  # the Trainer's own covers the model, but not a head in chunks
            rows = self._objective(model, batch)
        self._sums.add(batch, rows)
        losses = rows.losses
        # Divided by the labels of the whole step, not of this batch: the mean of the batches' means would weigh a
        # token by the length of its batch (measured in docs/engine.md, "Batch size and accumulation").
        count = len(losses) if num_items_in_batch is None else num_items_in_batch
        loss = losses.sum() / torch.as_tensor(count, device=losses.device).clamp(min=1)
        loss = loss.to(self.args.device)  # the head of a model on several GPUs is often on another one
        return loss * self.accelerator.num_processes  # DDP takes the mean of the processes' gradients

    def _check_step(self, norm: float) -> None:
        """Check the step just before the weights change: one that would break them ends the run."""
        # The mean of all processes: one that stops by its own part would leave the others waiting.
        loss = float(self.accelerator.reduce(self._step_loss, reduction="mean"))
        self._step_loss = 0.0
        embeddings = self.accelerator.unwrap_model(self.model).get_input_embeddings()
        done, vocabulary = self.state.global_step, int(embeddings.weight.shape[0])
        smoothed, fp16 = self._callback.step_log.smoothed, self.args.fp16
        self._skipped = 0 if math.isfinite(norm) else self._skipped + 1
        reason = failures.find_divergence(loss, norm, smoothed, vocabulary, scaled=fp16)
        if self._skipped > failures.MAX_SKIPPED:
            reason = reason or f"the gradients of {self._skipped} steps in a row were not finite"
        if reason:
            self.refuse_broken_weights()
            raise failures.DivergenceError(
                f"Step {done + 1} would have damaged the weights: {reason}. The weights stay as they were after "
                f"step {done}.",
                self._callback.controller.rates.rate(done + 1),
                fp16=fp16,
            )

    def refuse_broken_weights(self) -> None:
        """Raise an error if the finished steps have left weights that are NaN or infinite."""
        trained = [weights for weights in self.model.parameters() if weights.requires_grad]
        if all(bool(torch.isfinite(weights).all()) for weights in trained):
            return
        done = self.state.global_step
        raise failures.DivergenceError(
            f"Training diverged: after step {done}, some weights are NaN or infinite.",
            self._callback.controller.rates.rate(max(1, done)),
            fp16=self.args.fp16,
            spoiled=True,
        )

    def floating_point_ops(self, _: Any) -> int:
        """Skip the count of transformers: nothing reads it, and it would visit all modules at each step."""
        return 0

    def _out_of_memory_error(self, tokens: int) -> ModelError:
        """Return the error for a batch of `tokens` that cannot be split further, with the last checkpoint."""
        plan = self._run_plan.plan
        if self._split_refusal and plan.batch_size > 1:
            parts = next(n for n in range(2, plan.batch_size + 1) if plan.batch_size % n == 0)
            size, accumulation = plan.batch_size // parts, parts * plan.effective_accumulation
            advice = f"True Batch Size {size} and Gradient Accumulation {accumulation}"
            error = ModelError(
                f"Out of memory. {self._split_refusal}, a batch can't be split. Start again with "
                f"{advice}. The effective batch size stays the same.",
                [Remedy(advice, {"batch_size": size, "accumulation": accumulation})],
            )
        else:
            error = failures.out_of_memory_error(self.args.device, self._run_plan.remedies, tokens)
        return ModelError(f"{error} {self._callback.last_checkpoint()}", error.remedies)

    # Optimizer and schedule

    def create_optimizer(self, *args: Any) -> torch.optim.Optimizer:
        """Create the optimizer, with its groups split by learning rate."""
        if self.optimizer is None:
            optimizer, lora = super().create_optimizer(*args), self._run_plan.settings.lora
            if bitsandbytes := sys.modules.get("bitsandbytes"):
                # It keeps the embeddings, for which transformers asks 32-bit states, when the model is unloaded.
                bitsandbytes.optim.GlobalOptimManager.get_instance().initialize()
            shares = {}
            for name, weight in self.model.named_parameters():
                # LoRA+ (Hayou et al., 2024): B, which is zero at the start, learns faster than A.
                share = lora.lora_plus if "lora_B" in name or "lora_embedding_B" in name else 1.0
                shares[id(weight)] = lora.head_rate if "modules_to_save" in name else share
            groups = []
            for group in optimizer.param_groups:
                # An empty group stays, since transformers relies on its own two groups.
                for share in sorted({shares[id(weight)] for weight in group["params"]}) or [1.0]:
                    weights = [weight for weight in group["params"] if shares[id(weight)] == share]
                    groups.append({**group, "params": weights, "lr": group["lr"] * share, LR_SHARE_KEY: share})
            # The plain rate comes first: the Trainer logs the rate of the first group.
            optimizer.param_groups = sorted(groups, key=lambda group: bool(group[LR_SHARE_KEY] != 1))
            self._callback.group_settings = [
                {key: group[key] for key in _FROM_SETTINGS if key in group} for group in optimizer.param_groups
            ]
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        if self.lr_scheduler is None:
            controller = self._callback.controller  # its rates may change during the run
            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, lambda done: controller.rates.share(done))
        return self.lr_scheduler

    # Checkpoints

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the weights of a checkpoint: the LoRA, or all weights if they are trained."""
        if self.args.should_save and output_dir is not None:
            model = self.accelerator.unwrap_model(self.model)
            safe_save.save_trained_model(self._run_plan, model, Path(output_dir))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load the weights of a checkpoint.

        Those of a whole model are on disk under the names of the Hub, which may be other ones than in memory, and
        the Trainer would leave out what it does not know.
        """
        if not self._run_plan.settings.lora.whole_model:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        trained = self.accelerator.unwrap_model(model or self.model)
        saved, found = type(trained).from_pretrained(
            resume_from_checkpoint, dtype=trained.dtype, output_loading_info=True, trust_remote_code=False
        )
        if missing := sorted(found["missing_keys"]):
            raise ModelError(f"{resume_from_checkpoint} lacks weights of the model ({', '.join(missing[:3])}).")
        trained.load_state_dict(saved.state_dict())


class _Arguments(TrainingArguments):  # type: ignore[misc]
    """Settings of the Trainer."""

    @property
    def device(self) -> torch.device:
        """With several processes accelerate says `cpu:0`, and torch can't load a saved optimizer to that name."""
        device: torch.device = super().device
        return torch.device("cpu") if device.type == "cpu" else device

    @property
    def n_gpu(self) -> int:
        """Train on one GPU even where there are more: the Trainer multiplies the batch size by their number."""
        return min(int(super().n_gpu), 1)


def _training_arguments(run_plan: RunPlan, model: torch.nn.Module, scratch: Path) -> _Arguments:
    steps, learning, general = run_plan.settings.steps, run_plan.settings.learning, run_plan.settings.what
    target, precision = model_device(model), compute_dtype(model)
    raise_problems(optimizer_problems(learning.optimizer, target.type))
    # On a GPU, the same update in a few kernels instead of some for each weight.
    is_fused = learning.optimizer == "adamw_torch" and target.type == "cuda"
    return _Arguments(
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
        optim="adamw_torch_fused" if is_fused else learning.optimizer,
        bf16=precision == "bfloat16",
        fp16=precision == "float16",
        seed=general.weights_seed,
        data_seed=general.order_seed,
        use_cpu=target.type == "cpu",
        # Accelerate's choice is NCCL, without which PyTorch for Windows is built.
        ddp_backend="gloo" if sys.platform == "win32" and dist_env.world_size() > 1 else None,
        ddp_find_unused_parameters=False,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",  # the callback decides
        eval_strategy="no",
        report_to="none",  # outside.py has our own reporters
        run_name=run_plan.settings.records.run_name or run_plan.folder.name,
        project="training_pro",
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=["labels"],
        dataloader_num_workers=count_workers(run_plan.settings.machine.workers),
        dataloader_pin_memory=target.type == "cuda",
        # The next batch is copied while the GPU computes: accelerate asks for it one ahead.
        accelerator_config={"non_blocking": target.type == "cuda"},
    )


@dataclass(eq=False)
class _ExampleDataset(Dataset[_Item]):  # type: ignore[misc]
    examples: Examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, place: BatchItem) -> _Item:
        return self.examples[place.number], place


@dataclass(eq=False)
class EpochSampler(Sampler[BatchItem]):  # type: ignore[misc]
    """Draws all examples once per epoch, which is known from the finished steps: a resume needs no state.

    With the order "not_known", a later epoch consists of those that `draw` gives, as many as all.
    """

    run_plan: RunPlan
    phases: BatchingPhases
    steps_done: Callable[[], int]
    draw: Callable[[int], Sequence[int]]

    def __len__(self) -> int:
        return len(self.run_plan.data.examples)

    def __iter__(self) -> Iterator[BatchItem]:
        """Yield the examples of an epoch; when the phase changes, the rest follows in the new order."""
        # On a resume, accelerate draws and drops the examples that were trained on, so `taken` counts from 0.
        plan, taken = self.run_plan.plan, 0
        epoch = self.steps_done() // plan.steps_per_epoch
        phase, places = "", iter([BatchItem(0)])
        rest = dict.fromkeys(range(len(self)))
        drawn = self.draw(epoch) if epoch and self.phases.names == (NOT_KNOWN,) else range(len(self))
        while rest:
            if (current := self.phases.at((epoch, taken))) != phase:
                phase, places = current, iter(self.order(current, np.fromiter(rest, np.int64), epoch))
            for _ in range(min(plan.batch_size, len(rest))):
                place = next(places)
                del rest[place.number]
                taken += 1
                self.phases.position = (epoch, taken)
                yield place._replace(number=drawn[place.number])

    def order(self, phase: str, numbers: Ints, epoch: int) -> list[BatchItem]:
        """Order these examples by the rule of a phase."""
        examples, seed = self.run_plan.data.examples, self.run_plan.settings.what.order_seed
        size = self.run_plan.plan.batch_size
        if phase in ("shuffled", NOT_KNOWN):
            numbers = batch_order.shuffle(numbers, seed, epoch)
        elif phase in ("by_length", BY_LENGTH):
            numbers = batch_order.order_by_length(numbers, examples.lengths(), size, seed, epoch)
        elif phase == NEIGHBOR_PAIRS:
            successors, lengths, longest = examples.successors(), examples.lengths(), self.run_plan.card.context
            return batch_order.order_in_pairs(numbers, successors, lengths, longest, size, seed, epoch)
        return [BatchItem(int(number)) for number in numbers]

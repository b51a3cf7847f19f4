"""How many operations a decoder layer starts in a training step: on a GPU, each is at least one kernel.

    python3 bench/operations.py [--json] [--names]

Counts forward and backward on the CPU, in bfloat16, for a layer with the shape of SmolLM2-135M and a LoRA of rank
32 on all linear layers, without gradient checkpointing: the difference between a model of three layers and one of
two, so that what is done once a step counts for no layer. Operations that only make a view or allocate are free.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import bench_utils

LENGTH = 128  # tokens of a text
# They allocate, or name a tensor anew; views are recognized by their schema.
FREE = {
    "aten.detach.default", "aten.empty.memory_format", "aten.empty_like.default", "aten.empty_strided.default",
    "aten.new_empty.default", "aten.new_empty_strided.default", "aten._unsafe_view.default",
}  # fmt: skip
WAITING = {
    "aten._local_scalar_dense.default", "aten.nonzero.default", "aten.is_nonzero.default", "aten.equal.default",
    "aten.masked_select.default", "aten._unique2.default",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--names", action="store_true", help="list the operations of a patched layer")
    args = parser.parse_args()
    bench_utils.load()
    patched, plain = operations_per_layer(patched=True), operations_per_layer(patched=False)
    waits = waits_per_batch()
    if args.json:
        print(json.dumps({"operations_per_layer": patched.total(), "plain": plain.total(), "waits": waits}))
        return
    print(f"{patched.total()} operations in a layer, {plain.total()} with PEFT's and transformers' own layers.")
    print(f"{waits.total()} operations of a packed batch of two texts wait for the device: {', '.join(waits)}.")
    for name, count in patched.most_common() if args.names else ():
        print(f"{count:4} {name}  (plain: {plain[name]})")


def operations_per_layer(*, patched: bool) -> Counter[str]:
    """Count the operations of a layer in a training step, by name."""
    counts = []
    for layers in (2, 3):
        with _training_step(layers, patched=patched) as step:
            counts.append(count_operations(step))
    return counts[1] - counts[0]


def waits_per_batch() -> Counter[str]:
    """Count the operations whose result or its size Python needs, for which it waits until a GPU has done all."""
    with _training_step(2, patched=True, texts=2) as step:
        counted = count_operations(step)
    return Counter({name: count for name, count in counted.items() if name in WAITING})


def count_operations(step: Callable[[], None]) -> Counter[str]:
    """Count the operations that a function dispatches, without free ones."""
    from torch.utils._python_dispatch import TorchDispatchMode

    counted: Counter[str] = Counter()

    class Counting(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, operation: Any, _: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            infos = [value.alias_info for value in operation._schema.returns]
            is_view = any(info is not None and not info.is_write for info in infos)
            if not is_view and str(operation) not in FREE:
                counted[str(operation)] += 1
            return operation(*args, **(kwargs or {}))

    with Counting():
        step()
    return counted


@contextmanager
def _training_step(layers: int, *, patched: bool, texts: int = 1) -> Iterator[Callable[[], None]]:
    """Yield a step of a model with so many layers, which has already done one."""
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model
    from training_pro.core.jobs import Job
    from training_pro.data.examples import Example
    from training_pro.engine.compute import apply_machine_settings, make_objective, patch_lora_layers, probe_model
    from training_pro.engine.lora import autocast_model
    from training_pro.settings.parsing import training_settings

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=576, intermediate_size=1536, num_hidden_layers=layers, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=2048, tie_word_embeddings=True,
    )  # fmt: skip
    base = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).requires_grad_(False)
    settings = training_settings({"name": "a", "data": ["x.txt"]})
    examples = [Example(torch.arange(3, 3 + LENGTH).numpy(), None, None, 0)] * texts

    def step() -> None:
        model.zero_grad()
        with autocast_model(model):
            losses = objective(model, batch).losses
        losses.sum().backward()

    with apply_machine_settings(settings.machine, base, Job("training", "a count")) if patched else nullcontext():
        model = get_peft_model(base, LoraConfig(r=32, lora_alpha=32, target_modules="all-linear"))
        with patch_lora_layers(model) if patched else nullcontext():
            model.train()
            objective = make_objective(probe_model(model, settings), settings, model)
            batch = objective.collate(examples)
            step()
            yield step


if __name__ == "__main__":
    main()

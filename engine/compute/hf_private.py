"""The private names of transformers that training needs, in one file: checked with transformers 5.6.2 and 5.23.0.

If a new version breaks a run, look here first. Whatever can be done with public names is done with them: the order
of examples with `get_train_dataloader`, the weights of a checkpoint with `save_model`, the rest in a callback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from transformers import Trainer


class TrainerHooks(Trainer):  # type: ignore[misc]
    """Two moments of the Trainer's loop that no callback sees as they have to be seen."""

    # Called with the norm just before the weights change; an error ends the run with the weights as they were.
    check_step: Callable[[float], None]
    # Called instead of the function that it is given, which writes a checkpoint below `args.output_dir`.
    write_checkpoint: Callable[[Callable[[], None]], None]

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        # `on_pre_optimizer_step`, the callback of the same moment, is not told the norm. To compute it a second
        # time, after clipping, would take a pass over all gradients, and would not tell infinite from not a
        # number.
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        self.check_step(float(norm))
        return norm

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        # A full disk must not end a run, and `on_save` comes only after everything was written.
        self.write_checkpoint(partial(super()._save_checkpoint, model, trial))

    def save_now(self) -> None:
        """Save a checkpoint while a callback waits, for which the loop would save only afterwards."""
        self._save_checkpoint(self.model, None)


def attention_of(model: Any) -> str:
    """Return the name of the attention implementation that a model uses."""
    return str(getattr(model.config, "_attn_implementation", ""))


@contextmanager
def preserve_attention(model: Any) -> Iterator[None]:
    """Restore the attention implementation of all parts of a model on exit."""
    # The public setter passes a value on to the parts of a composite model, so it can't restore different ones.
    configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "set_attn_implementation")}
    saved = [(config, config._attn_implementation_internal) for config in configs.values()]
    try:
        yield
    finally:
        for config, implementation in saved:
            config._attn_implementation_internal = implementation

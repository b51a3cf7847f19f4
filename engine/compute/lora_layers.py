"""LoRA layers that start few operations: in a short step, a GPU waits for the start of its kernels.

PEFT computes each layer by itself, casts its two weights, and casts their gradients back. Here the weights of all
layers are cast at once when a pass begins, and the layers that read the same rows (query, key and value; gate and
up) are one function: one product with all of their `lora_A`, and one gradient of the rows. A layer starts 99
operations in a training step, and 224 without this and the other patches (bench/operations.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from peft.tuners.lora import LoraLayer
from torch.autograd.function import once_differentiable

from .packed_gguf import PackedLinear, plain_weight

# PEFT's LoRA layers around a single matrix product; embeddings, experts and convolutions do more.
LINEAR_LAYERS = frozenset({"Linear", "Linear4bit", "Linear8bitLt"})
SAME_ROWS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


@contextmanager
def patch_lora_layers(model: Any) -> Iterator[None]:
    """Patch the LoRA layers of a model within this context."""
    groups = list(_find_groups(model))
    weights = CastWeights(groups)
    # PEFT calls the forward of its base model without hooks, `generate` does not call PEFT's, and OPT's own model
    # calls the decoder inside of its base model.
    base = model.get_base_model()
    modules = {id(m): m for m in (model, base, getattr(base, "base_model", model))}
    hooks = [m.register_forward_pre_hook(lambda m, _: weights.begin_pass(m.training)) for m in modules.values()]
    layers = [layer for group in groups for layer in group.layers]
    for group in groups:
        for number, layer in enumerate(group.layers):
            layer.forward = partial(_lora_forward, weights, group, number, layer.forward)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for layer in layers:
            vars(layer).pop("forward", None)


def _find_groups(model: torch.nn.Module) -> Iterator[LayerGroup]:
    """Yield the layers with one plain LoRA, those that read the same rows together."""
    for parent in model.modules():
        layers = {name: child for name, child in parent.named_children() if _is_plain(child)}
        for names in SAME_ROWS:
            together = [layers[name] for name in names if name in layers]
            # Dropout gives each layer rows of its own.
            if len(together) > 1 and not any(map(_dropout, together)):
                yield LayerGroup(together)
                layers = {name: layer for name, layer in layers.items() if layer not in together}
        yield from (LayerGroup([layer]) for layer in layers.values())


def _is_plain(layer: Any) -> bool:
    if not isinstance(layer, LoraLayer) or type(layer).__name__ not in LINEAR_LAYERS or layer.lora_variant:
        return False
    active = layer.active_adapters
    return len(active) == 1 and active[0] in layer.lora_A and not layer.lora_bias[active[0]]


def _dropout(layer: Any) -> Any:
    """Return the dropout of a layer, or None for one that drops nothing."""
    dropout = layer.lora_dropout[layer.active_adapters[0]]
    return None if isinstance(dropout, torch.nn.Identity) else dropout


class LayerGroup:
    """LoRA layers that read the same rows; the first one that is called computes the others, too."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self.layers = layers
        self.adapter = layers[0].active_adapters[0]
        self.downs = [layer.lora_A[self.adapter].weight for layer in layers]
        self.ups = [layer.lora_B[self.adapter].weight for layer in layers]
        self._rows: torch.Tensor | None
        self._outputs: dict[int, torch.Tensor]
        self.clear()

    def clear(self) -> None:
        """Forget what a pass that ran out of memory left, which keeps the graph of all layers before."""
        self._rows, self._outputs = None, {}

    def output(self, number: int, rows: torch.Tensor, weights: CastWeights) -> torch.Tensor:
        if rows is not self._rows or number not in self._outputs:
            down, ups = weights.of(self)
            scales = [layer.scaling[self.adapter] for layer in self.layers]
            dropout, bases = _dropout(self.layers[0]), [layer.base_layer for layer in self.layers]
            if dropout is None and all(_is_frozen_linear(base, down.dtype) for base in bases):
                products, own = [None] * len(bases), bases
            else:
                products, own = [base(rows) for base in bases], [None] * len(bases)
            kept = rows if dropout is None else dropout(rows)
            flat = [None if product is None else product.flatten(0, -2) for product in products]
            outputs = LoraProducts.apply(kept.flatten(0, -2), down, scales, own, *flat, *ups)
            # Views made outside of the function: some models change a layer's output in place.
            views = (output.unflatten(0, rows.shape[:-1]) for output in outputs)
            self._rows, self._outputs = rows, dict(enumerate(views))
        output = self._outputs.pop(number)
        if not self._outputs:
            self._rows = None
        return output


def _is_frozen_linear(layer: Any, dtype: torch.dtype) -> bool:
    """Whether a layer is a plain matrix product, packed or not, which accelerate has not replaced."""
    if type(layer) not in (torch.nn.Linear, PackedLinear) or "forward" in vars(layer):
        return False
    own = layer.compute_dtype if isinstance(layer, PackedLinear) else layer.weight.dtype
    return own == dtype and not any(p.requires_grad for p in layer.parameters())


def _lora_forward(
    weights: CastWeights,
    group: LayerGroup,
    number: int,
    original: Any,
    x: torch.Tensor,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Compute a layer with the LoRA that it was patched with; PEFT's forward runs in any other case."""
    layer = group.layers[number]
    if args or kwargs or layer.disable_adapters or layer.merged or layer.active_adapters != [group.adapter]:
        return original(x, *args, **kwargs)
    return group.output(number, x, weights)


class CastWeights:
    """The LoRA's weights in the dtype of the matrix products, cast once a pass."""

    def __init__(self, groups: Sequence[LayerGroup]) -> None:
        self._groups = groups
        self._cast: dict[LayerGroup, tuple[torch.Tensor, list[torch.Tensor]]] = {}
        self._made_for: object = None

    def begin_pass(self, training: bool) -> None:
        """Forget the weights of the pass before, unless nothing can have changed since."""
        for group in self._groups:
            group.clear()
        # Not by the versions alone: the optimizers of bitsandbytes change weights without a new version.
        versions = [weight._version for group in self._groups for weight in (*group.downs, *group.ups)]
        made_for = (versions, torch.is_grad_enabled())
        if training or made_for != self._made_for:
            self._cast.clear()
        self._made_for = None if training else made_for

    def of(self, group: LayerGroup) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the `lora_A` of the layers of a group, one below the other, and each `lora_B`."""
        if not self._cast:
            device_of = lambda group: str(group.downs[0].device)  # noqa: E731
            for _, on_device in groupby(sorted(self._groups, key=device_of), key=device_of):
                self._cast_all(list(on_device))
        return self._cast[group]

    def _cast_all(self, groups: Sequence[LayerGroup]) -> None:
        own, device = groups[0].downs[0].dtype, groups[0].downs[0].device.type
        # The dtype in which torch would compute a matrix product now; inside a Function it would not autocast.
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else own
        parts = [part for group in groups for part in (group.downs, *([up] for up in group.ups))]
        # One operation for all; what neither changes its dtype nor is joined is used as it is.
        changed = [part for part in parts if len(part) > 1 or dtype != own]
        whole = torch.cat([weight.flatten() for part in changed for weight in part] or [torch.empty(0)]).to(dtype)
        cast = iter(whole.split([sum(weight.numel() for weight in part) for part in changed]))
        ready = [
            next(cast).view(-1, part[0].shape[1]) if len(part) > 1 or dtype != own else part[0] for part in parts
        ]
        for group in groups:
            count = 1 + len(group.ups)
            (down, *ups), ready = ready[:count], ready[count:]
            self._cast[group] = down, ups


class LoraProducts(torch.autograd.Function):  # type: ignore[misc]
    """rows @ weight.T + bias + scale * rows @ down.T @ up.T, for several layers that read the same rows.

    A layer whose own product can't be computed here, such as one of bitsandbytes, gives the product.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        down: torch.Tensor,
        scales: Sequence[float],
        layers: Sequence[Any],
        *products_and_ups: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        count, dtype = len(scales), down.dtype
        ups: Any = products_and_ups[count:]
        ctx.set_materialize_grads(False)
        ctx.scales, ctx.layers, ctx.rows_dtype = scales, layers, rows.dtype
        with torch.autocast(rows.device.type, enabled=False):
            rows = rows.to(dtype)
            hidden = rows @ down.t()
            ctx.save_for_backward(rows, hidden, down, *ups)
            outputs = []
            parts = hidden.split([up.shape[1] for up in ups], dim=1)
            for part, up, scale, product, layer in zip(parts, ups, scales, products_and_ups, layers, strict=False):
                if layer is not None:
                    own = F.linear(rows, plain_weight(layer), layer.bias)
                    outputs.append(own.addmm_(part, up.t(), alpha=scale))
                else:
                    assert product is not None
                    added = torch.addmm(product.to(dtype), part, up.t(), alpha=scale)
                    outputs.append(added.to(product.dtype))
        return tuple(outputs)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        # With y = x @ w.T + s * h @ u.T and h = x @ d.T: du = s * g.T @ h, dh = s * g @ u, dd = dh.T @ x,
        # dx = g @ w + dh @ d, where the layers share d and dh, and dx is their sum.
        rows, hidden, down, *ups = ctx.saved_tensors
        d_hidden = torch.empty_like(hidden)
        d_ups: list[torch.Tensor | None] = []
        cast = [None if grad is None else grad.to(rows.dtype) for grad in grads]
        ranks = [up.shape[1] for up in ups]
        parts = zip(hidden.split(ranks, dim=1), d_hidden.split(ranks, dim=1), ups, ctx.scales, cast, strict=True)
        for part, d_part, up, scale, grad in parts:
            if grad is None:
                d_part.zero_()
                d_ups.append(None)
                continue
            torch.addmm(d_part, grad, up, beta=0, alpha=scale, out=d_part)
            d_up = grad.t() @ part
            d_ups.append(d_up if scale == 1 else d_up.mul_(scale))
        d_rows = None
        if ctx.needs_input_grad[0]:
            d_rows = d_hidden @ down
            for grad, layer in zip(cast, ctx.layers, strict=True):
                if grad is not None and layer is not None:
                    d_rows.addmm_(grad, plain_weight(layer))
            d_rows = d_rows.to(ctx.rows_dtype)
        d_products = [grad if layer is None else None for grad, layer in zip(grads, ctx.layers, strict=True)]
        return d_rows, d_hidden.t() @ rows, None, None, *d_products, *d_ups

"""The simulation of a training step on one or many GPUs, and the published rates that it is compared with."""

from __future__ import annotations

from .published_rates import LORA, OURS, POINTS, SOURCES, TOLERANCE, Point, hits
from .simulator import GPUS, HALF, MODELS, SINGLE, Setup, Step, llama, model_flops, simulate, traffic

__all__ = [
    "GPUS",
    "HALF",
    "LORA",
    "MODELS",
    "OURS",
    "POINTS",
    "SINGLE",
    "SOURCES",
    "TOLERANCE",
    "Point",
    "Setup",
    "Step",
    "hits",
    "llama",
    "model_flops",
    "simulate",
    "traffic",
]

"""The experiments of the recipes: for each question, the arms that are compared and what each of them changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal, NamedTuple

from ...train_utils import format_count

DataName = Literal["story", "notes", "notes+questions", "chats"]
EqualBy = Literal["tokens", "passes"]
Metric = Literal["recall", "validation_loss", "general_loss", "closed_book", "seconds"]

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
ALL_LINEAR = (*ATTENTION, *MLP)
BASE: Mapping[str, object] = {
    "cutoff": 128, "overlap": False, "batch_size": 4, "rank": 16, "alpha": 16, "targets": ALL_LINEAR,
    "learning_rate": 3e-3, "schedule": "constant", "warmup_steps": 0.05,
}  # fmt: skip
"""What an arm does not change. The rate is higher than the default because the runs are short:
at 1e-3 the model continues too little of a story to compare arms by it."""
HALF_DECADES = ("1e-4", "3e-4", "1e-3", "3e-3", "1e-2")
MAIN_RATES = ("1e-3", "3e-3", "1e-2")
CONTEXTS = (4, 8, 16, 32)
"""Tokens of a prompt in the law of recall."""


@dataclass(frozen=True)
class Arm:
    """A way to train: the settings that differ from `BASE`."""

    name: str
    changes: Mapping[str, object] = field(default_factory=dict)
    data: DataName = "story"
    passes: float | None = None
    """Times that the data are seen, for an arm that is about this number; 0 is the untrained model."""
    equal_parameters: bool = False
    """The rank is chosen so that there are as many parameters as in `BASE`."""


@dataclass(frozen=True)
class Experiment:
    """A question, and the arms that answer it by a metric."""

    name: str
    question: str
    arms: tuple[Arm, ...]
    metric: Metric = "recall"
    equal_by: tuple[EqualBy, ...] = ("tokens",)
    small: tuple[str, ...] = ()
    """Arms of the small form, at the first way to be equal; empty if it leaves the experiment out."""
    flaw: str = ""
    """Why its runs can't answer the question; its tables are shown all the same."""


class Run(NamedTuple):
    """One run to make: an arm of an experiment with a seed."""

    experiment: str
    arm: Arm
    equal_by: EqualBy
    seed: int


def _slicing() -> Iterator[Arm]:
    for cutoff in (64, 128, 256):
        yield Arm(f"blocks, {cutoff}", {"cutoff": cutoff})
        yield Arm(f"overlap, {cutoff}", {"cutoff": cutoff, "overlap": True})
        for repeats in (2, 4, 8):
            changes = {"cutoff": cutoff, "chunking": "dementor", "dementor_repeats": repeats}
            yield Arm(f"DEMENTOR {repeats}, {cutoff}", changes)


def _at_rates(arms: Sequence[Arm], rates: Sequence[str] = MAIN_RATES) -> tuple[Arm, ...]:
    """Each arm at each learning rate."""
    return tuple(
        Arm(f"{arm.name}, {rate}", {**arm.changes, "learning_rate": float(rate)}, arm.data)
        for arm, rate in product(arms, rates)
    )


SCHEDULES = (
    "constant", "linear", "cosine", "warmup_stable_decay", "FP_low_epoch_annealing", "FP_half_time_annealing",
    "FP_raise_fall_creative", "FP_3epoch_raise_hold_fall", "FP_step_decay_with_warmup",
)  # fmt: skip
TARGETS = {"q-v": ("q_proj", "v_proj"), "attention": ATTENTION, "MLP": MLP, "all-linear": ALL_LINEAR}
NOTES_ARMS = (
    Arm("notes, untrained", {}, "notes", passes=0),
    Arm("notes", {}, "notes"),
    Arm("notes, rank 64", {"rank": 64, "alpha": 64}, "notes"),
    Arm("notes and questions about others", {}, "notes+questions"),
)
EXPERIMENTS: Mapping[str, Experiment] = {
    each.name: each
    for each in (
        Experiment(
            "slicing",
            "Do overlap blocks or DEMENTOR help the model learn a text by heart?",
            tuple(_slicing()),
            equal_by=("tokens", "passes"),
            small=("blocks, 128", "overlap, 128", "DEMENTOR 4, 128"),
            flaw="The passages for recall are the very blocks on which `blocks, 64` trains, which favors that "
            "setup. With the same number of tokens, `blocks, 64` has 39 steps and `DEMENTOR 8, 256` has 9. "
            "DEMENTOR as its presets use it (a window at every sentence, a learning rate of 2e-4) was not run.",
        ),
        Experiment(
            "rates",
            "What do higher learning rates teach, and what do they cost?",
            (
                *_at_rates([Arm("story"), Arm("notes", data="notes")], HALF_DECADES),
                *_at_rates([Arm("chats", data="chats")], HALF_DECADES),
                Arm("chats, untrained", {}, "chats", passes=0),
            ),
            small=("story, 1e-3", "story, 3e-3", "story, 1e-2"),
        ),
        Experiment(
            "schedules",
            "Is FP_low_epoch_annealing better than cosine?",
            _at_rates([Arm(name, {"schedule": name}) for name in SCHEDULES]),
            small=("FP_low_epoch_annealing, 3e-3", "cosine, 3e-3"),
        ),
        Experiment(
            "targets",
            "Which layers should get the LoRA if the number of parameters is the same?",
            tuple(Arm(name, {"targets": names}, equal_parameters=True) for name, names in TARGETS.items()),
            small=("q-v", "all-linear"),
        ),
        Experiment(
            "ranks",
            "What does a higher rank teach, and what does it cost?",
            _at_rates([Arm(f"rank {n}", {"rank": n, "alpha": n}) for n in (4, 8, 16, 32, 64, 128, 256)]),
            small=("rank 4, 3e-3", "rank 64, 3e-3"),
        ),
        Experiment(
            "strength",
            "What does a larger alpha teach, and what does it cost?",
            tuple(Arm(f"alpha {n} at rank 16", {"alpha": n}) for n in (4, 8, 16, 32, 64)),
        ),
        Experiment(
            "batches",
            "Does the batch size matter?",
            _at_rates([Arm(f"batch {n}", {"batch_size": n}) for n in (1, 4, 16, 64)]),
        ),
        Experiment(
            "accumulation",
            "Is gradient accumulation the same as a larger batch?",
            tuple(
                Arm(f"batch {n} x accumulation {8 // n}", {"batch_size": n, "accumulation": 8 // n})
                for n in (8, 4, 2, 1)
            ),
        ),
        Experiment(
            "packing",
            "Is packing faster, and does the model learn just as well with it?",
            tuple(Arm(f"packing {way}", {"packing": way}, "chats") for way in ("on", "off")),
            metric="seconds",
        ),
        Experiment(
            "orders",
            "Does the batch order matter for chats?",
            tuple(
                Arm(way, {"batching": way}, "chats")
                for way in ("shuffled", "by_length", "length_then_order", "sequential")
            ),
            metric="validation_loss",
        ),
        Experiment(
            "dropout",
            "Does dropout help?",
            tuple(Arm(f"dropout {share}", {"dropout": share}) for share in (0, 0.05, 0.1, 0.2)),
            metric="validation_loss",
        ),
        Experiment(
            "facts",
            "Can the model answer questions about notes that it was trained on?",
            NOTES_ARMS,
            metric="closed_book",
            small=("notes, untrained", "notes", "notes and questions about others"),
        ),
        Experiment(
            "law",
            "How does recall grow with the number of times that the model sees a text?",
            tuple(Arm(format_count(n, "time"), passes=n) for n in (0, 1, 2, 4, 8, 16)),
            equal_by=("passes",),
        ),
    )
}


def list_runs(names: Sequence[str], seeds: Sequence[int], *, small: bool) -> list[Run]:
    """All runs, one seed after the other, so that a stopped series has every arm before it has a second seed."""
    return [
        Run(name, arm, equal_by, seed)
        for seed in seeds
        for name in names
        for equal_by in EXPERIMENTS[name].equal_by[: 1 if small else None]
        for arm in EXPERIMENTS[name].arms
        if not small or arm.name in EXPERIMENTS[name].small
    ]

"""The questions, in the order of what a user gains from an answer, and the ways of training that each compares.

A way is compared over several learning rates, because every way learns more at a higher rate and forgets more:
only how much is learned for how much forgotten tells two ways apart. All ways train on the same number of tokens,
except where that number is the question. Blocks, overlap blocks and windows of one cutoff have nearly the same
length, and with another cutoff the batch is adapted, so equal tokens are also equal steps, within a tenth.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal, NamedTuple

from . import texts
from .texts import AUTHORS, TEXTS, Form, TextName

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
BASE: Mapping[str, object] = {
    "cutoff": 128, "overlap": False, "batch_size": 4, "rank": 32, "alpha": 32, "targets": (*ATTENTION, *MLP),
    "schedule": "cosine", "warmup_steps": 0.05,
}  # fmt: skip
"""What a way does not change. The default schedule depends on epochs, of which DEMENTOR has fewer for the same
tokens, so the base has one that does not."""
TOKENS = 36_000
"""What a run trains on: about three passes over a text."""
RATES = (2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3)
FOUR_RATES = (*RATES[:2], *RATES[3:])
"""Of these, unseen text is best at the second, and the highest raises the loss on general text by over 0.3."""
LOWER_RATES = (1e-4, *RATES[:2], RATES[3])
"""For ways that do as much as others at twice the rate, such as a constant one."""
Measure = Literal["recall_01", "recall_03", "inside_03", "general_50", "unseen", "copied", "answers_03"]


@dataclass(frozen=True)
class Way:
    """A way to train: the settings that differ from `BASE`, and what of the text is trained on, for how long."""

    name: str
    changes: Mapping[str, object] = field(default_factory=dict)
    tokens: int = TOKENS
    share: float = 1.0
    form: Form = "text"
    equal_parameters: bool = False
    """The rank is chosen so that there are as many parameters as in `BASE`."""
    rates: tuple[float, ...] = ()
    """Its own, if the question's do not reach from less than its best one to enough forgetting."""

    @property
    def recipe(self) -> str:
        """All that a run depends on besides its text, rate, tokens and seed: ways with the same one share runs."""
        changes = {name: value for name, value in self.changes.items() if BASE.get(name) != value}
        extra = {"share": (self.share, 1.0), "form": (self.form, "text"), "equal": (self.equal_parameters, False)}
        changes |= {name: value for name, (value, usual) in extra.items() if value != usual}
        return json.dumps(changes, sort_keys=True)


class Key(NamedTuple):
    """What makes two runs the same one."""

    text: TextName
    digest: str
    model: str
    recipe: str
    rate: float
    tokens: int
    seed: int


class Run(NamedTuple):
    """One run to make: a way with a rate and a seed on a text. The untrained model is a run of no tokens."""

    text: TextName
    way: Way
    rate: float
    seed: int

    def key(self, model: str) -> Key:
        return Key(
            self.text, texts.digest(self.text), model, self.way.recipe, self.rate, self.way.tokens, self.seed
        )


@dataclass(frozen=True)
class Question:
    """Ways that are compared with the first of them, on several texts and rates, by some measures."""

    name: str
    words: str
    ways: tuple[Way, ...]
    texts: tuple[TextName, ...] = AUTHORS
    rates: tuple[float, ...] = FOUR_RATES
    measures: tuple[Measure, ...] = ("recall_01", "recall_03", "unseen")
    required: bool = False
    pictured: bool = False
    """The page draws it."""
    background: str = ""
    """What the page says of it besides the runs."""

    def rates_of(self, way: Way) -> tuple[float, ...]:
        return way.rates or self.rates


UNTRAINED = Way("untrained", tokens=0)


def _ranks(*ranks: int, alpha: int | None = None) -> Iterator[Way]:
    for rank in ranks:
        words = f"rank {rank}" + (f" with alpha {alpha}" if alpha else "")
        yield Way(words, {"rank": rank, "alpha": alpha or rank})


DEMENTOR: Mapping[str, object] = {"chunking": "dementor", "dementor_repeats": 0}
SCHEDULES: Mapping[str, tuple[float, ...]] = {
    "cosine": (), "FP_low_epoch_annealing": (), "constant": (5e-5, *LOWER_RATES), "linear": (),
    "warmup_stable_decay": LOWER_RATES, "FP_half_time_annealing": LOWER_RATES,
    "FP_3epoch_raise_hold_fall": LOWER_RATES, "FP_raise_fall_creative": (), "FP_step_decay_with_warmup": (),
}  # fmt: skip
"""And their own rates."""
QUESTIONS: Mapping[str, Question] = {
    each.name: each
    for each in (
        Question(
            "rate",
            "What does a learning rate teach, and what does it cost?",
            tuple(_ranks(32)),
            TEXTS,
            RATES,
            ("recall_01", "recall_03", "general_50", "unseen"),
            required=True,
            pictured=True,
        ),
        Question(
            "epochs",
            "How many passes, until the model gets worse on unseen text of the author?",
            (
                Way("3 passes"),
                Way("1 pass", tokens=TOKENS // 3, rates=(*RATES[2:], 6.4e-3, 1.28e-2)),
                Way("2 passes", tokens=TOKENS * 2 // 3, rates=(4e-4, 8e-4, 1.6e-3, 6.4e-3)),
                Way("6 passes", tokens=TOKENS * 2, rates=(5e-5, *LOWER_RATES)),
            ),
            measures=("recall_01", "recall_03", "unseen", "copied"),
            required=True,
        ),
        Question(
            "slicing",
            "Does DEMENTOR teach more than plain blocks?",
            (Way("blocks"), Way("DEMENTOR at every sentence", DEMENTOR)),
            measures=("recall_01", "recall_03", "inside_03", "unseen"),
            required=True,
            pictured=True,
        ),
        Question(
            "overlap",
            "And with fewer repeats: do overlap blocks, or DEMENTOR with 2 repeats?",
            # With 128 tokens, a window at every sentence repeats each about four times.
            (
                Way("blocks"),
                Way("overlap", {"overlap": True}),
                Way("DEMENTOR with 2 repeats", {**DEMENTOR, "dementor_repeats": 2}),
            ),
            measures=("recall_01", "recall_03", "inside_03", "unseen"),
            required=True,
        ),
        Question(
            "slicing-long",
            "And with twice the tokens, where DEMENTOR reaches every sentence?",
            (
                Way("blocks for twice the tokens", tokens=2 * TOKENS),
                Way("overlap for twice the tokens", {"overlap": True}, 2 * TOKENS),
                Way("DEMENTOR at every sentence for twice the tokens", DEMENTOR, 2 * TOKENS),
            ),
            measures=("recall_01", "recall_03", "inside_03", "unseen"),
        ),
        Question(
            "schedule",
            "Which schedule?",
            tuple(Way(name, {"schedule": name}, rates=rates) for name, rates in SCHEDULES.items()),
            required=True,
            pictured=True,
        ),
        Question(
            "layers",
            "Which layers should get the LoRA if the number of parameters is the same?",
            (
                Way("all-linear"),
                Way("q-v", {"targets": ("q_proj", "v_proj")}, equal_parameters=True),
                Way("attention", {"targets": ATTENTION}, equal_parameters=True),
                Way("MLP", {"targets": MLP}, equal_parameters=True),
            ),
        ),
        Question(
            "rank",
            "Which rank, and should alpha follow it?",
            (*_ranks(32, 8, 128), *_ranks(8, 128, alpha=32)),
        ),
        Question(
            "amount",
            "How much text does an author's manner take?",
            (
                Way("the whole text"),
                Way("half of it", share=0.5),
                Way("a quarter", share=0.25),
                Way("an eighth", share=0.125),
            ),
            measures=("unseen", "copied"),
        ),
        Question(
            "form",
            "Should facts be trained as text, as questions and answers, or as both?",
            (
                Way("notes as text"),
                Way("as questions and answers", form="questions"),
                Way("as both", form="text and questions"),
                Way("as text with questions about other notes", form="text and questions about others"),
            ),
            ("notes",),
            measures=("answers_03", "unseen"),
        ),
        Question(
            "study",
            "What do notes teach that a small model has written on a text?",
            (
                Way("notes as text"),
                Way("with what the model wrote", {"too_long": "cut_end"}, form="text and what the model wrote"),
                Way(
                    "with a second round of that",
                    {"too_long": "cut_end"},  # a few of these notes are longer than the cutoff
                    form="text and two rounds of what the model wrote",
                ),
                Way("with 1 token for a token", {"too_long": "cut_end"}, form="text and as many tokens of notes"),
                Way("with 3 tokens for a token", {"too_long": "cut_end"}, form="text and 3 x the notes"),
                Way("with questions by a person", form="text and questions"),
            ),
            ("notes",),
            rates=RATES[3:],
            measures=("answers_03",),
            pictured=True,
            background="In one round of `data study`, the demo model wrote 613 notes. 57 passed the "
            "checks, 0.3 tokens for a token of text, and we judge 42 of them wrong. A LoRA with them "
            "answered 1 of 68 questions at 8e-4, so a second round went to 67 passages: 45 of 324 notes "
            "passed, 40 wrong. More rounds, with links, gave 1 and 3 tokens: of the first 1,865 notes 242 "
            "passed, and of 50 of them we judge 44 wrong. 10 tokens, six more hours of writing, were not "
            "made. The questions by a person are one on each note; the exam asks about half of the notes in "
            "other words.",
        ),
        Question(
            "passes",
            "Should later passes be spent on what is not known yet?",
            (
                Way("all examples", tokens=2 * TOKENS),
                Way("what is not known", {"batching": "not_known"}, 2 * TOKENS),
            ),
            rates=(1.6e-3, 3.2e-3, 6.4e-3),
        ),
        Question(
            "cutoff",
            "What does a short cutoff cost?",
            (
                Way("cutoff 128"),
                *(Way(f"cutoff {n}", {"cutoff": n, "batch_size": 512 // n}) for n in (64, 256, 512)),
            ),
            measures=("recall_01", "recall_03", "unseen", "copied"),
        ),
    )
}


def plan_runs(names: Sequence[str], seeds: int) -> list[Run]:
    """All runs of some questions, none twice, in the order of their value.

    First the untrained model; then one seed of every question; then the other seeds of the required questions;
    then those of the rest. A question about one text has twice the seeds, so
    that it has as many pairs as one about two.
    """
    turns: dict[Key, int] = {}
    runs: dict[Key, Run] = {}
    for question in (QUESTIONS[name] for name in names):
        each_seed = range(1, 1 + (seeds if len(question.texts) > 1 else 2 * seeds))
        trained = ((way, *rest) for way in question.ways for rest in product(question.rates_of(way), each_seed))
        for text, (way, rate, seed) in product(question.texts, [(UNTRAINED, 0.0, 1), *trained]):
            run = Run(text, way, rate, seed)
            turn = seed + (0 if question.required or seed == 1 else seeds) if rate else 0
            key = run.key("")
            turns[key] = min(turn, turns.get(key, turn))
            runs.setdefault(key, run)
    return sorted(runs.values(), key=lambda run: turns[run.key("")])

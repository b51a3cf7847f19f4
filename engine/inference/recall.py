"""Recall of passages: how many tokens of the data a model reproduces word for word.

Greedy generation follows the data as long as each next token of the data is the most likely one. One pass over the
prompt and the tokens after it shows where that ends, so nothing has to be generated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

from ...core.host import ModelCard
from ...core.jobs import PartRecall, RecallFigures, Request
from ...data.examples import Passage, pick_passages
from ...data.prepare import TrainingData
from ..tokenizer import make_working_tokenizer
from .eval_loop import EvalLoop, GroupSums, ProgressFn, evaluation_context
from .general_loss import pick_general_passages


class PassageScore(NamedTuple):
    """How a model continued a passage: its tokens, those before the first wrong one, and the loss of all."""

    part: str
    tokens: int
    matched: int
    loss: float

    @property
    def recall(self) -> float:
        return self.matched / self.tokens


class RecallScores(NamedTuple):
    """Scores of passages that are trained on, of `control` passages that are not, and of general prose."""

    learned: list[PassageScore]
    control: list[PassageScore]
    general: list[PassageScore]


class RecallPassages(NamedTuple):
    """Passages that are trained on, as many of the validation split, and some of general prose."""

    learned: Sequence[Passage]
    control: Sequence[Passage]
    general: Sequence[Passage]


@dataclass(frozen=True)
class RecallMeter:
    """Measures the recall of a model by the same passages each time, and restores its state."""

    make_eval_loop: Callable[[Request], EvalLoop]
    """Makes a loop that ends when the user makes this request."""
    passages: RecallPassages

    @property
    def tokens(self) -> int:
        """The number of tokens that one measurement reads; 0 if the data have no passage."""
        return sum(len(passage.example.ids) for passage in chain(*self.passages))

    def measure(self, ended_by: Request, report: ProgressFn = lambda share: None) -> RecallScores | None:
        """Measure; None if the user made the request that ends the measurement."""
        scores = score_passages(self.make_eval_loop(ended_by), list(chain(*self.passages)), report)
        if scores is None:
            return None
        remaining = iter(scores)
        return RecallScores(*(list(islice(remaining, len(passages))) for passages in self.passages))


def pick_recall_passages(data: TrainingData, count: int, card: ModelCard) -> RecallPassages | None:
    """Pick the passages to measure; None if the data have none."""
    tokenizer = make_working_tokenizer(card.tokenizer)
    bos = tokenizer.bos  # some tokenizers have a start token that they never add
    learned = pick_passages(data.examples, count, bos)
    if not learned:
        return None
    return RecallPassages(
        learned, pick_passages(data.validation, count, bos), pick_general_passages(tokenizer, card.context)
    )


def score_passages(
    eval_loop: EvalLoop, passages: Sequence[Passage], report: ProgressFn = lambda share: None
) -> list[PassageScore] | None:
    """Score each passage, and restore the state of the model; None if the run was stopped."""
    ends = np.cumsum([len(passage.example.ids) for passage in passages], dtype=np.int64)
    groups = [np.arange(end - len(p.example.ids), end) for p, end in zip(passages, ends.tolist(), strict=True)]
    with evaluation_context(eval_loop.model):
        examples = [passage.example for passage in passages]
        sums = eval_loop.sums(examples, groups, int(ends[-1]) if passages else 0, report)
    if sums is None:
        return None
    return [_score(passage, group, sums) for passage, group in zip(passages, groups, strict=True)]


def _score(passage: Passage, tokens: np.ndarray[tuple[int], np.dtype[np.int64]], sums: GroupSums) -> PassageScore:
    target = tokens[passage.prompt_tokens :]
    wrong = np.flatnonzero(sums.hits[target] == 0)
    matched = int(wrong[0]) if len(wrong) else len(target)
    return PassageScore(passage.part, len(target), matched, float(sums.losses[target].mean()))


def summarize(scores: Sequence[PassageScore]) -> RecallFigures:
    """Summarize the scores of several passages."""
    return RecallFigures(
        passages=len(scores),
        recall=float(np.mean([score.recall for score in scores])),
        verbatim=sum(score.matched == score.tokens for score in scores),
        longest=max(score.matched for score in scores),
        loss=float(np.mean([score.loss for score in scores])),
    )


def mean_loss(scores: Sequence[PassageScore]) -> float | None:
    """The mean loss of several passages; None without any."""
    return float(np.mean([score.loss for score in scores])) if scores else None


def summarize_by_part(scores: Sequence[PassageScore]) -> tuple[PartRecall, ...]:
    """Summarize the scores by chapter or file, in the order of the data; empty if all are from one."""
    by_part: dict[str, list[PassageScore]] = defaultdict(list)
    for score in scores:
        by_part[score.part].append(score)
    if len(by_part) < 2:
        return ()
    summaries = {part: summarize(members) for part, members in by_part.items()}
    return tuple(
        PartRecall(part, figures.passages, figures.recall, figures.loss) for part, figures in summaries.items()
    )

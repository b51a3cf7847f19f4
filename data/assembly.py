"""One road for Check and for training: from the settings and a tokenizer to examples and their report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, cast

from ..chunking import Cutting, Encoder, unescaped
from ..core.errors import DataError, TrainingProError
from ..core.host import Folders, ModelCard
from ..settings import rules
from ..settings.declared import Text, TrainingSettings
from ..train_utils import StepPlan
from . import library, reading
from .examples import Examples, Source
from .library import DataSet
from .report import DatasetReport, SourceReport
from .slice_map import slice_map, together
from .slicing import slices

AUTO_CUTOFF = 256
Say = Callable[[str, float], None]


class Tokenizer(Protocol):
    """What slicing asks of a tokenizer."""

    @property
    def encode(self) -> Encoder: ...
    @property
    def bos(self) -> int | None: ...
    @property
    def eos(self) -> int | None: ...


@dataclass(frozen=True)
class TrainingData:
    """What a run learns from, and what Check says of it."""

    examples: Examples
    report: DatasetReport
    plan: StepPlan


def prepare(
    settings: TrainingSettings, folders: Folders, card: ModelCard, tokenizer: Tokenizer, say: Say
) -> TrainingData:
    """Read, cut and count; DataError or SettingsError where that is not possible."""
    rules_of_cut = cutting(settings.text, card, tokenizer)
    sets = library.found(settings.what.data, folders)
    cut = []
    for number, data in enumerate(sets):
        say(f"Cutting {data.name}", number / len(sets))
        cut.append(_cut(data, tokenizer.encode, rules_of_cut))
    examples = Examples([source for sources, _ in cut for source in sources])
    plan = _plan(settings, len(examples))
    return TrainingData(examples, _report(settings, card, rules_of_cut, plan, examples, [r for _, r in cut]), plan)


def checked(
    settings: TrainingSettings, folders: Folders, card: ModelCard, tokenizer: Tokenizer, say: Say
) -> DatasetReport:
    """The report, also where nothing could be prepared: then its problems say why."""
    try:
        return prepare(settings, folders, card, tokenizer, say).report
    except TrainingProError as error:
        return DatasetReport(0, 0, 0, 0, 0, 0, 0, problems=tuple(str(error).splitlines()))


def cutting(text: Text, card: ModelCard, tokenizer: Tokenizer) -> Cutting:
    cutoff = AUTO_CUTOFF if text.cutoff == "auto" else int(text.cutoff)
    if text.cutoff == "auto" and card.context:
        cutoff = min(cutoff, card.context)
    return Cutting(
        cutoff=cutoff,
        chunking=cast(Literal["blocks", "dementor"], text.chunking),
        overlap=text.overlap,
        dementor_repeats=text.dementor_repeats,
        hard_cut=unescaped(text.hard_cut),
        min_chars=text.min_chars,
        bos=tokenizer.bos if text.add_bos else None,
        eos=tokenizer.eos,
        add_eos=cast(Literal["hard_cut", "every_block", "never"], text.add_eos),
    )


def _cut(data: DataSet, encode: Encoder, cutting: Cutting) -> tuple[list[Source], SourceReport]:
    texts = reading.read(data.path)
    sources = [Source(_label(data, t.name), slices(t.text, encode, cutting)) for t in texts]
    return sources, _source_report(data, sources, [note for t in texts for note in t.notes])


def _label(data: DataSet, file: str) -> str:
    return f"{data.name}{file}" if data.name.endswith("/") else data.name


def _source_report(data: DataSet, sources: Sequence[Source], notes: Sequence[str]) -> SourceReport:
    maps = [slice_map(s.sliced) for s in sources]
    seen = together(maps)
    return SourceReport(
        name=data.name,
        what="raw text" + (" (an example of the project's)" if data.example else ""),
        files=len(sources),
        parts=sum(m.sections for m in maps),
        sentences=sum(m.sentences for m in maps),
        blocks=sum(m.blocks + m.windows for m in maps),
        overlaps=sum(m.overlaps for m in maps),
        tokens=sum(m.trained_tokens for m in maps),
        text_tokens=sum(m.tokens for m in maps),
        characters=sum(m.characters for m in maps),
        left_out=sum(m.left_out for m in maps),
        characters_lost=sum(m.lost_characters for m in maps),
        seen_least=seen.least,
        seen_mean=seen.mean,
        seen_most=seen.most,
        notes=tuple(notes),
        maps=tuple(zip((s.name for s in sources), maps, strict=True)),
    )


def _plan(settings: TrainingSettings, examples: int) -> StepPlan:
    steps = settings.steps
    if not examples:
        raise DataError(
            "Data: nothing is left to learn from. Lower 'Leave out blocks up to', or choose another text."
        )
    return StepPlan(examples, steps.batch_size, steps.accumulation, steps.epochs, steps.max_steps)


def _report(
    settings: TrainingSettings,
    card: ModelCard,
    cutting: Cutting,
    plan: StepPlan,
    examples: Examples,
    sources: Sequence[SourceReport],
) -> DatasetReport:
    tokens = sum(s.tokens for s in sources)
    return DatasetReport(
        examples=len(examples),
        tokens=tokens,
        trained_tokens=tokens - len(examples),
        longest=examples.longest(),
        cutoff=cutting.cutoff,
        steps_per_epoch=plan.steps_per_epoch,
        steps=plan.steps,
        sources=tuple(sources),
        problems=tuple(_problems(card, cutting)),
        advice=(*rules.advice(settings), *_advice(settings, cutting, plan)),
        notes=tuple(rules.notes(settings)),
        resolved={"cutoff": cutting.cutoff, "accumulation": plan.accumulated},
    )


def _problems(card: ModelCard, cutting: Cutting) -> list[str]:
    if card.context and cutting.cutoff > card.context:
        return [
            f"Maximum context length (Cutoff): {cutting.cutoff} is more than {card.name} takes "
            f"({card.context} tokens). Use {card.context} or less."
        ]
    return []


def _advice(settings: TrainingSettings, cutting: Cutting, plan: StepPlan) -> list[str]:
    said = []
    if plan.accumulated < plan.accumulation:
        said.append(
            f"Gradient Accumulation {plan.accumulation} is more than the {plan.batches} batches of an epoch: "
            f"it is lowered to {plan.accumulated}."
        )
    if cutting.eos is None and cutting.add_eos != "never":
        said.append("This tokenizer has no end token: the model will not learn where a text ends.")
    return said

"""What is worked out once from settings, data and model: the slicing rules, and the value of every "auto"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from ..chunking import BlockEnds, SlicingRules, unescape_hard_cut
from ..core.findings import Finding, Suggestion, advice, note, problem
from ..core.host import ModelCard
from ..settings.definitions import TextSettings, TrainingSettings
from .load import LoadedDataset
from .rows import Tokenizer

AUTO_CUTOFF = 256  # of raw text
CUTOFF_STEP, MAX_AUTO_CUTOFF = 32, 2048


@dataclass(frozen=True)
class ResolvedSettings:
    """The values that a run uses for settings that may be "auto" or lowered."""

    cutoff: int
    accumulation: int
    gradient_checkpointing: bool
    alpha: float

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "gradient_checkpointing": "on" if self.gradient_checkpointing else "off"}


def longest_row(datasets: Sequence[LoadedDataset]) -> int:
    """The tokens of the longest row, before truncation; 0 where there are no rows."""
    lengths = [rows.source.lengths.max(initial=0) for dataset in datasets for rows in dataset.rows]
    return int(max(lengths, default=0))


def auto_cutoff(longest: int, context: int) -> int:
    """The length of the longest row, rounded up to a multiple of 32; at most 2048 and the model's context."""
    rounded = min(-(-max(longest, 1) // CUTOFF_STEP) * CUTOFF_STEP, MAX_AUTO_CUTOFF)
    return min(rounded, context) if context else rounded


def slicing_rules(
    text: TextSettings, card: ModelCard, tokenizer: Tokenizer, datasets: Sequence[LoadedDataset] = ()
) -> SlicingRules:
    """The rules for slicing raw text; a cutoff of "auto" depends on all of the data."""
    return SlicingRules(
        cutoff=_resolve_cutoff(text, card, datasets),
        chunking=cast(Literal["blocks", "dementor"], text.chunking),
        overlap=text.overlap,
        dementor_repeats=text.dementor_repeats,
        hard_cut=unescape_hard_cut(text.hard_cut),
        min_chars=text.min_chars,
        bos=tokenizer.bos if text.add_bos else None,
        eos=tokenizer.eos,
        add_eos=cast(Literal["hard_cut", "every_block", "never"], text.add_eos),
        block_ends=cast(BlockEnds, text.block_ends),
    )


def _resolve_cutoff(text: TextSettings, card: ModelCard, datasets: Sequence[LoadedDataset]) -> int:
    """The cutoff of the settings; for "auto" by the longest row, and 256 for raw text."""
    if text.cutoff != "auto":
        return int(text.cutoff)
    for_texts = min(AUTO_CUTOFF, card.context or AUTO_CUTOFF)
    if not (longest := longest_row(datasets)):
        return for_texts
    for_rows = auto_cutoff(longest, card.context)
    return max(for_rows, for_texts) if any(dataset.texts for dataset in datasets) else for_rows


def check_rules(settings: TrainingSettings, card: ModelCard, rules: SlicingRules) -> Iterator[Finding]:
    """Yield what the model makes of the cutoff and of the end token."""
    if card.context and rules.cutoff > card.context:
        yield problem(
            "cutoff",
            f"Maximum context length (Cutoff): {rules.cutoff} is more than {card.name} supports "
            f"({card.context} tokens). Use {card.context} or less.",
        )
    if rules.eos is None and rules.add_eos != "never":
        yield advice("add_eos", "This tokenizer has no EOS token, so the model will not learn where a text ends.")
    if settings.text.cutoff == "auto":
        yield note("cutoff", f"Maximum context length (Cutoff): with auto, the cutoff is {rules.cutoff} tokens.")


def suggest_cutoff(text: TextSettings, rules: SlicingRules, card: ModelCard, longest: int) -> Suggestion:
    """Suggest a cutoff that fits the longest row, or keep the present one."""
    fitting = auto_cutoff(longest, card.context)
    if not longest:
        why = f"Raw text is sliced into blocks of at most {rules.cutoff} tokens."
        return Suggestion("cutoff", text.cutoff, why, keep=True)
    why = f"The longest row has {longest} tokens, and the cutoff is {rules.cutoff}."
    if longest > rules.cutoff and fitting > rules.cutoff:
        return Suggestion("cutoff", fitting, why)
    return Suggestion("cutoff", text.cutoff, why, keep=True)

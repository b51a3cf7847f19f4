"""Perplexity of a dataset, with and without LoRAs: of texts in sliding windows, or of each row."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np

from ... import train_utils
from ...core import dist_env
from ...core.engine import PerplexityRequest
from ...core.errors import DataError, SettingsError, TrainingProError
from ...core.evaluations_table import EvaluationRow
from ...core.findings import texts as sentences
from ...core.host import Host, ModelCard, get_model_card
from ...core.jobs import Advice, Job, JobEnded, Note, PerplexityMeasured, Request, RowScores, Segment, Stage
from ...data import dataset_index
from ...data.arrow_store import Store
from ...data.dataset_index import DatasetEntry
from ...data.examples import IGNORE_INDEX, Example, Examples, Source, truncate_rows
from ...data.load import PrepareContext, load_dataset
from ...data.prepare import TrainingData, prepare
from ...data.readers import LoadedText
from ...data.rows import RowDataset, Tokenizer, detect_prompt_style
from ...settings.definitions import TrainingSettings
from ...train_utils import format_count, plural
from ..lora import adapter
from ..tokenizer import make_working_tokenizer
from .eval_loop import EvalLoop, ExampleSequence, Group, GroupSums, Numbers, ProgressFn, lora_phrase, measure_each

MAX_LENGTH = 2048
NO_LORA = "-"
MAX_SEGMENTS, MIN_SEGMENT_TOKENS = 100, 16  # most segments of a dataset, and fewest tokens of one
MAX_ROWS = 1000  # of very many rows, only both ends of the ranking are kept
EXCERPT_LENGTH = 60  # characters
ELLIPSIS = "\u2026"
# Rows are ranked as if they had this many more tokens of average loss, since a few tokens prove little.
PRIOR_TOKENS = 16


# Scores along the length of a dataset, and for rows those of the least and best known ones.
Scores: TypeAlias = tuple[tuple[Segment, ...], tuple[RowScores, ...]]


@dataclass(frozen=True)
class PerplexityInput:
    """Windows of a text, or rows, with a function that turns the sums of their groups into scores."""

    name: str
    examples: ExampleSequence
    groups: Sequence[Group]
    count: int  # of groups
    stride: int
    max_length: int
    score: Callable[[GroupSums], Scores]
    notes: tuple[str, ...] = ()


def measure_perplexity(request: PerplexityRequest, settings: TrainingSettings, host: Host, job: Job) -> JobEnded:
    """Measure a dataset with each LoRA in turn, and restore the model."""
    folders = [(str(lora), adapter.lora_folder(lora, host)) for lora in request.loras]
    if not request.data.strip():
        raise DataError("No dataset is chosen. Choose one, then measure again.")
    path, card = dataset_index.locate_dataset(request.data, host.folders), get_model_card(host)
    dataset = DatasetEntry(path.name + "/" * path.is_dir(), path)
    inputs = _load_input(dataset, request, load_context(settings, host, card, job))
    for note in inputs.notes:
        job.log.append(Note(text=note))
    lines: list[str] = []

    def measure(name: str, eval_loop: EvalLoop, progress: ProgressFn) -> PerplexityMeasured | None:
        started = time.monotonic()
        sums = eval_loop.sums(inputs.examples, inputs.groups, inputs.count, progress)
        if sums is None:
            return None
        stretches, rows = inputs.score(sums)
        result = PerplexityMeasured(
            model=card.name,
            lora=name or NO_LORA,
            dataset=inputs.name,
            perplexity=train_utils.perplexity(sums.loss),
            loss=sums.loss,
            tokens=int(sums.tokens.sum()),
            stride=inputs.stride,
            max_length=inputs.max_length,
            seconds=time.monotonic() - started,
            right=float(sums.hits.sum() / sums.tokens.sum()),
            stretches=stretches,
            rows=rows,
        )
        job.log.append(result)
        lines.append(f"{inputs.name} {lora_phrase(name)}: perplexity {result.perplexity:.4f}")
        date = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")
        figures = (result.perplexity, result.stride, result.max_length)
        try:
            host.add_evaluation(
                EvaluationRow(card.name, result.lora, inputs.name, *figures, date, request.comment)
            )
        except (TrainingProError, OSError) as error:
            job.log.append(Advice(text=f"The result could not be saved in the evaluations table: {error}"))
        return result

    base = [("", None)] * request.include_base
    measure_each([*base, *folders], settings, host, job, f"Perplexity of {inputs.name}", measure)
    return JobEnded(outcome="stopped" if job.control.asked(Request.STOP) else "finished", text="\n".join(lines))


def load_context(settings: TrainingSettings, host: Host, card: ModelCard, job: Job) -> PrepareContext:
    """Return the context for loading data, the same as for a run."""
    tokenizer = make_working_tokenizer(card.tokenizer, host.chat_template())
    return PrepareContext(
        settings,
        host.folders,
        card,
        tokenizer,
        lambda text, share: job.log.append(Stage(text=text, share=share)),
        store=Store(host.folders.prepared_data),
    )


def prepare_for_host(settings: TrainingSettings, host: Host, card: ModelCard, job: Job) -> TrainingData:
    """Prepare the data of a run, or take them from the cache."""
    return prepare(
        settings,
        host.folders,
        card,
        make_working_tokenizer(card.tokenizer, host.chat_template()),
        lambda text, share: job.log.append(Stage(text=text, share=share)),
        machine=host.memory(),
        keep=dist_env.is_main_process() and not host.read_only_reason,
        is_stopped=lambda: job.control.asked(Request.STOP),
    )


def _load_input(dataset: DatasetEntry, request: PerplexityRequest, context: PrepareContext) -> PerplexityInput:
    """Load a dataset as windows over its texts, or as its rows."""
    card = context.card
    length = request.max_length or min(card.context or MAX_LENGTH, MAX_LENGTH)
    if length < 2:
        raise SettingsError(
            [
                f"Window length: {length} is too short. Use 2 tokens or more, or 0 for the model's context (up to "
                f"{MAX_LENGTH} tokens)."
            ]
        )
    if card.context and length > card.context:
        raise SettingsError(
            [f"Window length: {length} is more than {card.name} supports. Use {card.context} tokens or fewer."]
        )
    loaded = load_dataset(context, dataset)
    if loaded.texts and loaded.rows:
        raise DataError(
            f"{dataset.name} contains both text and rows, which are measured differently. Choose one of its files."
        )
    if not loaded.rows:
        return window_input(dataset.path.name, loaded.texts, context.tokenizer, length, request.stride)
    if request.stride:
        raise SettingsError(
            [f"Stride: {dataset.name} has rows, and each row is measured as a whole. Set Stride to 0."]
        )
    return row_input(dataset.path.name, loaded.rows, context, length)


def window_input(
    name: str, texts: Sequence[LoadedText], tokenizer: Tokenizer, length: int, stride: int
) -> PerplexityInput:
    """Return windows over texts as input, each with a start token if the tokenizer adds one."""
    # A stride of 0 stands for half a window.
    stride, max_stride = stride or max(1, length // 2), max(length - 1, 1)
    if not 0 < stride <= max_stride:
        raise SettingsError(
            [f"Stride: {stride} would skip tokens or count some twice. Use a value from 1 to {max_stride}."]
        )
    strings = [str(text.text) for text in texts]
    encoded = tokenizer.encode(strings)
    # The texts are one sequence of tokens, divided into equal segments: the groups.
    ends: Numbers = np.cumsum([len(text.ids) for text in encoded])
    total = int(ends[-1])
    count = max(1, min(MAX_SEGMENTS, total // MIN_SEGMENT_TOKENS))
    segment_of_token: Numbers = (np.arange(total) * count // max(1, total)).astype(np.int32)
    examples: list[Example] = []
    groups: list[Numbers] = []
    for ids, segments in zip((text.ids for text in encoded), np.split(segment_of_token, ends[:-1]), strict=True):
        start_ids = np.array([] if tokenizer.bos is None else [tokenizer.bos], ids.dtype)
        start, counted_end = 0, 0
        while counted_end < len(ids):
            end = min(start + length - len(start_ids), len(ids))
            window, first = np.concatenate([start_ids, ids[start:end]]), start - len(start_ids)
            if len(window) > 1:
                # Tokens that an earlier window has counted do not count again.
                is_counted = np.arange(first, end) >= counted_end
                examples.append(Example(window, is_counted, cast("Source", None), start))  # no dataset
                # The segment of the start token is arbitrary, as it never counts.
                groups.append(segments[np.arange(first, end).clip(0)])
            counted_end, start = end, start + stride
    if not examples:
        raise DataError(f"{name} is too short: it needs at least two tokens.")

    def score(sums: GroupSums) -> Scores:
        stretches: list[Segment] = []
        # The first token of each segment, whose text names the segment.
        for segment, first in enumerate(np.flatnonzero(np.diff(segment_of_token, prepend=-1)).tolist()):
            text = int(np.searchsorted(ends, first, side="right"))
            start = int(encoded[text].starts[first - int(ends[text]) + len(encoded[text].ids)])
            begins = " ".join(strings[text][start : start + 2 * EXCERPT_LENGTH].split())[:EXCERPT_LENGTH]
            if sums.tokens[segment]:
                stretches.append(Segment(**sums.figures(segment), begins=begins))
        return tuple(stretches), ()

    return PerplexityInput(name, examples, groups, count, stride, length, score)


def row_input(name: str, sets: Sequence[RowDataset], context: PrepareContext, length: int) -> PerplexityInput:
    """Return the rows as input: only tokens that a run would learn count, and longer rows are cut."""
    if problems := [problem for row_set in sets for problem in sentences(row_set.findings, "problem")]:
        raise DataError("\n".join(problems))
    tokenizer = context.tokenizer
    truncated = [truncate_rows(row_set.source, length, "cut_end", tokenizer.bos) for row_set in sets]
    examples = Examples([row_set.source for row_set in truncated])
    count = len(examples)
    if not count:
        marker = context.settings.rows.train_only_after
        advice = "Change 'Train on', or use a longer window."
        if marker:
            advice = f"No row contains {marker!r} followed by text. Change 'Train only after'."
        raise DataError(f"The rows of {name} have no tokens to measure. {advice}")
    style = detect_prompt_style(context.settings, context.folders, tokenizer, examples)

    def words(index: int) -> dict[str, Any]:
        """The place of a row, the message before its first counted part, if any, and how that part begins."""
        example = examples[index]
        counted = example.labels != IGNORE_INDEX
        first = int(np.argmax(counted))  # every row has one
        end = first + int(np.argmin(np.append(counted[first:], False)))
        start, read = 0, ""
        if first > 1:
            start = first
            read = style.asked(tokenizer.decode([n for n in example.ids[:start].tolist() if n != tokenizer.bos]))
        begins = tokenizer.decode([n for n in example.ids[start:end].tolist() if n not in tokenizer.stops])
        place = f"{example.source.name}, {example.place}" if len(sets) > 1 else example.place
        return {"place": place, "read": _shorten(read), "begins": _shorten(begins)}

    def score(sums: GroupSums) -> Scores:
        # The mean loss of a row, drawn toward that of all rows: (sum + prior * mean) / (tokens + prior).
        ranked = (sums.losses + PRIOR_TOKENS * sums.loss) / (sums.tokens + PRIOR_TOKENS)
        order = np.argsort(-ranked, kind="stable")  # the least known first
        if len(order) > MAX_ROWS:
            order = np.concatenate([order[: MAX_ROWS // 2], order[-(MAX_ROWS // 2) :]])
        rows = tuple(RowScores(**sums.figures(n), **words(n)) for n in order.tolist())
        segments = min(MAX_SEGMENTS, count)
        segment_of_row: Numbers = np.arange(count) * segments // count
        merged = GroupSums(*(np.bincount(segment_of_row, each, segments) for each in sums))
        stretches: list[Segment] = []
        for n, first in enumerate(np.flatnonzero(np.diff(segment_of_row, prepend=-1)).tolist()):
            said = words(first)
            begins = (said["read"] or said["begins"]).removesuffix(f" {ELLIPSIS}")
            stretches.append(Segment(**merged.figures(n), begins=f"{said['place']}: {begins}"))
        return tuple(stretches), rows

    notes: list[str] = []  # how the rows of each file were read, and which were cut or dropped
    for row_set in sets:
        row_count = format_count(row_set.report.rows, "row")
        notes.append(f"{row_set.source.name}: {row_count}, read as {row_set.what.removeprefix('rows: ')}.")
        notes += [*row_set.notes, *sentences(row_set.findings, "advice")]
    if long := sum(source.too_long for source in truncated):
        are, they_are = plural(long, "is", "are"), plural(long, "it is", "they are")
        notes.append(
            f"{format_count(long, 'row')} {are} longer than {length} tokens, so {they_are} truncated at the end."
        )
    if empty := sum(source.nothing_learned for source in truncated):
        has, was = plural(empty, "has", "have"), plural(empty, "was", "were")
        notes.append(f"{format_count(empty, 'row')} {has} no tokens to measure and {was} dropped.")
    return PerplexityInput(name, examples, range(count), count, 0, length, score, tuple(notes))


def _shorten(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= EXCERPT_LENGTH else f"{words[:EXCERPT_LENGTH].rstrip()} {ELLIPSIS}"

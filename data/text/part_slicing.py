"""Slice the parts of a large text, each by itself, into the blocks that the whole text would have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ... import chunking, dementor
from ...chunking import Encoder, SlicedText, SlicingRules, find_sections
from .. import arrow_store
from ..arrow_store import Store, StoreEntry
from ..stored_text import StoredText
from .sentences import split_stretches
from .slicing import restore_sliced, sliced_arrays
from .text_units import find_part_bounds, is_by_lines


def store_text(text: str, store: Store) -> StoredText:
    """Write a text as a part of its own."""
    return StoredText.save(store, text, 0, len(text), tuple(end for _, end in split_stretches(text)))


class PartJob(NamedTuple):
    """A part to slice, and the key under which its blocks are stored.

    `by_lines`: whether its sections with few lines are judged to be made of lines.
    """

    text: StoredText
    rules: SlicingRules
    by_lines: bool
    key: str


SliceFn = Callable[[Sequence[PartJob]], None]


def slice_parts(
    texts: Sequence[StoredText], rules: SlicingRules, fingerprint: str, slice_all: SliceFn
) -> tuple[list[SlicedText], bool]:
    """The sliced parts of one text, and whether all were stored; `slice_all` slices the others.

    Short sections are judged by the whole text, which is known only when all parts were read. So they are first
    judged by its beginning; where that was wrong, the parts that have some are sliced again.
    """

    def make_job(text: StoredText, by_lines: bool) -> PartJob:
        key = arrow_store.cache_key("sliced", fingerprint, astuple(rules), text.key, by_lines)
        return PartJob(text, rules, by_lines, key)

    by_lines = _judge_beginning(texts[0], rules)
    jobs = [make_job(text, by_lines) for text in texts]
    entries, stored = _slice(jobs, slice_all)
    judged = bool(is_by_lines(np.sum([entry.metadata["counts"] for entry in entries], axis=0)))
    if judged != by_lines:
        jobs = [
            make_job(job.text, judged) if entry.metadata["has_short"] else job
            for job, entry in zip(jobs, entries, strict=True)
        ]
        entries, stored = _slice(jobs, slice_all)
    return [restore_sliced(entry, 0, job.text, rules) for job, entry in zip(jobs, entries, strict=True)], stored


def _slice(jobs: Sequence[PartJob], slice_all: SliceFn) -> tuple[list[StoreEntry], bool]:
    stored = [job.text.store.load(job.key, mapped=True) for job in jobs]
    missing = [job for job, entry in zip(jobs, stored, strict=True) if not entry]
    if missing:
        slice_all(missing)
    return [entry or _load(job) for job, entry in zip(jobs, stored, strict=True)], not missing


def _load(job: PartJob) -> StoreEntry:
    if entry := job.text.store.load(job.key, mapped=True):
        return entry
    raise arrow_store.full_error(job.text.store)


def slice_part(job: PartJob, encoder: Encoder) -> None:
    """Slice a part and store its blocks."""
    text, rules = str(job.text), job.rules
    found = find_part_bounds(
        _stretches(job.text),
        job.text.start,
        len(text),
        find_sections(text, rules.hard_cut),
        rules.block_ends,
        by_lines=job.by_lines,
    )
    slice_with = partial(dementor.slice_windows if rules.chunking == "dementor" else chunking.slice_blocks, text)
    sliced = slice_with(encoder, rules, lambda *_: found.bounds)
    metadata = {"counts": found.counts.tolist(), "has_short": found.has_short}
    job.text.store.save(job.key, StoreEntry(sliced_arrays(0, sliced), metadata))


def _stretches(text: StoredText) -> list[str]:
    whole = text.with_stretches()
    return [whole[start:end] for start, end in pairwise((0, *text.stretches))]


def _judge_beginning(text: StoredText, rules: SlicingRules) -> bool:
    """Whether the first stretch of a text is made of lines."""
    beginning = _stretches(replace(text, stretches=text.stretches[:1]))
    sections = find_sections(beginning[0], rules.hard_cut)
    found = find_part_bounds(beginning, 0, len(beginning[0]), sections, rules.block_ends, by_lines=False)
    return bool(is_by_lines(found.counts))

"""The map of a dataset: its rows in clusters by what they are about, and a share of each cluster.

A map is a file with the rows in it, so it can be drawn, and a share of each cluster be written, without the model.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ...core.errors import DataError
from ...core.files import new_files
from ..likeness import SIMILARITY, Likeness
from ..unspaced import WORD
from .cleaning import Cleaned
from .records import Dataset, Record, check_ending, write_records
from .study import read_passages

Vectors: TypeAlias = np.ndarray[Any, np.dtype[Any]]
MIN_ROWS, MAX_CLUSTERS = 20, 12
AXES = 24  # of the directions in which the rows differ most, those that clusters are found in
SAMPLE, RESTARTS, ROUNDS, SEED = 800, 20, 60, 7
LARGE = 3.0  # a feature with a deviation of so many times the usual one counts no more than that
OUTLIER = 3.0  # standard deviations farther from the middle of its cluster than its other rows
NAME_WORDS, MIN_LETTERS = 4, 3


def read_rows(dataset: Dataset) -> list[tuple[str, Mapping[str, Any]]]:
    """The passages of texts, and all rows of tables: the words, and the columns that are written again."""
    rows: list[tuple[str, Mapping[str, Any]]]
    rows = [(part.text, {"text": part.text}) for part in read_passages(dataset)]
    for record in () if dataset.is_text else dataset.records():
        if record.gap is None and not record.problem and record.words.strip():
            rows.append((record.words, record.columns))
    if len(rows) < MIN_ROWS:
        raise DataError(f"{dataset.path.name} has {len(rows)} rows or passages. A map needs {MIN_ROWS} or more.")
    return rows


def write_map(rows: Sequence[tuple[str, Mapping[str, Any]]], vectors: Vectors, out: Path) -> None:
    """Find the clusters of rows, and write the map: a line for each row, with its place in it."""
    rng = np.random.default_rng(SEED)
    # A few of the model's features are far larger than all others, and would be all that counts.
    deviations = vectors.std(0)
    vectors = (vectors - vectors.mean(0)) / np.maximum(deviations, LARGE * np.median(deviations) + 1e-9)
    _, directions = np.linalg.eigh(vectors.T @ vectors)  # PCA; the last one has the largest deviation
    points = vectors @ directions[:, : -AXES - 1 : -1]
    spread = points / (np.linalg.norm(points, axis=1, keepdims=True) + 1e-9)
    sample = spread[rng.permutation(len(spread))[:SAMPLE]]
    counts = range(2, min(MAX_CLUSTERS, len(sample) - 1) + 1)
    best = max(counts, key=lambda count: _silhouette(sample, _k_means(sample, count, rng)))
    found = _k_means(spread, best, rng)
    numbers = {label: number for number, (label, _) in enumerate(Counter(found.tolist()).most_common(), start=1)}
    labels = np.array([numbers[label] for label in found.tolist()])  # the largest one is number 1
    texts = [words for words, _ in rows]
    names, like = _name_clusters(texts, labels), _find_like(texts)
    is_outlier: Vectors = np.zeros(len(rows), bool)
    for number in names:
        own = labels == number
        far = np.linalg.norm(points[own] - points[own].mean(0), axis=1)
        is_outlier[own] = far > far.mean() + OUTLIER * far.std()
    with new_files(out) as (temporary,), temporary.open("w", encoding="utf-8", errors="replace") as file:
        for n, (words, columns) in enumerate(rows):
            place = {"cluster": int(labels[n]), "name": names[labels[n]], "x": float(points[n, 0])}
            place |= {"y": float(points[n, 1]), "outlier": bool(is_outlier[n]), "like": like.get(n)}
            begin = " ".join(words[:400].split())[:80]
            line = json.dumps(place | {"begin": begin, "row": columns}, ensure_ascii=False, default=str)
            file.write(line + "\n")


def _distances(points: Vectors, others: Vectors) -> Vectors:
    distances: Vectors = (points**2).sum(1)[:, None] + (others**2).sum(1) - 2 * points @ others.T
    np.sqrt(np.maximum(distances, 0), out=distances)
    return distances


def _k_means(points: Vectors, count: int, rng: np.random.Generator) -> Vectors:
    """The cluster of each point, from the best of several beginnings."""
    best: Vectors = np.zeros(len(points), int)
    least = math.inf
    for _ in range(RESTARTS):
        centers = points[rng.integers(len(points))][None]
        while len(centers) < count:  # the farther a point is from all centers, the likelier it is the next one
            chances = _distances(points, centers).min(1) ** 2 + 1e-12
            centers = np.vstack([centers, points[rng.choice(len(points), p=chances / chances.sum())]])
        for _ in range(ROUNDS):
            labels = _distances(points, centers).argmin(1)
            groups = [points[labels == n] for n in range(count)]
            moved = np.array([own.mean(0) if len(own) else centers[n] for n, own in enumerate(groups)])
            if np.allclose(moved, centers):
                break
            centers = moved
        error = float((_distances(points, centers).min(1) ** 2).sum())
        if error < least:
            best, least = labels, error
    return best


def _silhouette(points: Vectors, labels: Vectors) -> float:
    """How much nearer points are to their own cluster than to the next one: from -1 to 1, on average."""
    distances, groups = _distances(points, points), np.unique(labels)
    own = labels[:, None] == groups
    if len(groups) < 2:
        return -1.0
    means = distances @ own / np.maximum(own.sum(0) - own, 1)
    inside, outside = means[own], np.where(own, np.inf, means).min(1)
    return float(((outside - inside) / np.maximum(np.maximum(inside, outside), 1e-12)).mean())


def _name_clusters(texts: Sequence[str], labels: Vectors) -> dict[int, str]:
    """The words that many rows of a cluster have, and few of the others."""
    rows_with = {int(number): Counter[str]() for number in np.unique(labels)}
    for text, label in zip(texts, labels.tolist(), strict=True):
        rows_with[label].update({*WORD.findall(text.casefold())})
    everywhere, sizes = sum(rows_with.values(), Counter[str]()), Counter(labels.tolist())
    names = {}
    for number, counts in rows_with.items():
        weights = dict[str, float]()
        for word, count in counts.items():
            if len(word) >= MIN_LETTERS and not word.isdigit():
                inside = count / sizes[number]
                outside = (everywhere[word] - count + 0.5) / (len(texts) - sizes[number] + 1)
                weights[word] = inside * math.log(inside / outside)
        names[number] = ", ".join(sorted(weights, key=weights.__getitem__, reverse=True)[:NAME_WORDS])
    return names


def _find_like(texts: Sequence[str]) -> dict[int, int]:
    """Rows that are nearly the same as an earlier one, with the number of that one, counted from 0."""
    found = dict[int, int]()
    earlier = Likeness(SIMILARITY, texts)
    for n, text in enumerate(texts):
        for place in earlier.find(text, str(n))[:1]:
            found[n] = int(place)
    return found


@dataclass(frozen=True)
class TopicMap:
    """A map as it is in its file: of each row its cluster, its place, and what is odd about it."""

    rows: Sequence[Mapping[str, Any]]

    @cached_property
    def clusters(self) -> dict[int, tuple[str, int]]:
        """The name and the number of rows of each cluster."""
        counts, names = Counter(row["cluster"] for row in self.rows), {r["cluster"]: r["name"] for r in self.rows}
        return {number: (names[number], counts[number]) for number in sorted(counts)}

    def lines(self) -> Iterator[str]:
        for number, (name, count) in self.clusters.items():
            yield f"{number}: {count:,} rows ({count / len(self.rows):.0%}): {name}"
        yield f"far from all others of their cluster: {sum(row['outlier'] for row in self.rows):,}"
        if count := sum(row["like"] is not None for row in self.rows):
            yield f"nearly the same as an earlier one: {count:,}"


def read_map(path: Path) -> TopicMap:
    """Read a map, which its user may have edited; a DataError names the line that is none."""
    kinds = {"cluster": int, "name": str, "x": float, "y": float, "outlier": bool, "begin": str, "row": dict}
    rows, number = list[dict[str, Any]](), 0
    with path.open(encoding="utf-8") as file:
        try:
            for line in file:
                number += 1
                row = json.loads(line)
                rows.append({key: kind(row[key]) for key, kind in kinds.items()} | {"like": row["like"]})
                if not math.isfinite(rows[-1]["x"] + rows[-1]["y"]):
                    raise ValueError("its place is not a number")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"line {number} is no row of a map ({type(error).__name__}: {error})"
            raise DataError(f"{path.name} can't be read: {reason}. Draw the map again.") from error
    if not rows:
        raise DataError(f"{path.name} is empty. Draw the map again.")
    return TopicMap(rows)


def parse_shares(words: Iterable[str]) -> dict[int, float]:
    """Shares such as `2=0.5 5=0` by the number of their cluster."""
    shares = {}
    for word in words:
        found = re.fullmatch(r"(\d{1,3})=(0|1|[01]?\.\d+)", word.rstrip(","))
        if not found or float(found[2]) > 1:
            raise DataError(f"{word!r} is not a share of a cluster. Write its number and a share, such as 2=0.5.")
        shares[int(found[1])] = float(found[2])
    return shares


def keep_shares(topic_map: TopicMap, shares: Mapping[int, float], seed: int, out: Path) -> Cleaned:
    """Write the rows again, in their order, of some clusters only a share, which is drawn at random."""
    if unknown := [str(number) for number in shares if number not in topic_map.clusters]:
        known = ", ".join(map(str, topic_map.clusters))
        raise DataError(f"The map has no cluster {', '.join(unknown)}. Its clusters are {known}.")
    check_ending(out, is_text=False)
    rng, kept, result = np.random.default_rng(seed), set[int](), Cleaned(rows=len(topic_map.rows))
    for number, (name, count) in topic_map.clusters.items():
        own = [n for n, row in enumerate(topic_map.rows) if row["cluster"] == number]
        wanted = round(shares.get(number, 1.0) * count)
        kept |= {own[n] for n in rng.permutation(count)[:wanted].tolist()}
        result.dropped[f"{number}, {name}"] += count - wanted
    if not kept:
        raise DataError("Nothing is left. Raise a share.")
    with new_files(out) as (temporary,):
        rows = (Record("", row["row"]) for n, row in enumerate(topic_map.rows) if n in kept)
        write_records(temporary, out.name, rows)
    result.kept = len(kept)
    return result

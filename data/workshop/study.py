"""Notes on a text: what a model is asked to write about each passage, and what of its replies may be learned.

A model that only read a text recites it, and can't answer about it. Notes say the same in many other ways. Small
models invent, copy and refuse, so each note is compared with its passage, and dropped where it does not hold.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from ...chunking import find_sections
from ...core.errors import DataError
from ..examples import section_title
from ..likeness import COMMON_WORDS, exact_key, find_language
from ..readers import json_rows
from ..rows import lower
from ..text import find_stop_ends
from ..unspaced import WORD
from .cleaning import Cleaned
from .exam import Exam, Question
from .records import HARD_CUT, PARAGRAPH_GAP, Dataset

# Small models lose sight of long passages; shorter ones have too little to ask about.
PART_CHARS, MIN_PART_CHARS = 1200, 80
# A note with more than this share of its runs of four words in the passage is a copy; eight words are a quotation.
RUN, COPIED_SHARE, QUOTED_WORDS = 4, 0.5, 8
# Of 64 notes of a small model on a novel, 22 had fewer of their telling words in the passage, and spoke of other
# things. Half of the rest said the same six words twice.
KNOWN_SHARE, SAID_TWICE = 0.25, 6
ROW_START = b'{"instruction": "'  # of each row in a file of notes
EXAM_ROUNDS = 3  # how often a passage is asked for questions of an exam, if all of its notes are dropped
# 'one' is mostly no number
NUMBER_WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
NUMBERS = {word: str(number) for number, word in enumerate(NUMBER_WORDS, start=2)}
OUTSIDE_VIEW = re.compile(
    r"\b(?:(?:this|the|above|given|original) (?:passage|text|excerpt|paragraph|sentence|author|narrator|story"
    r"|article)s?|the above|the words|example of an?)\b"
)
SENTENCE_START = re.compile(r"(?:^|[.!?:;\n…])[\s\"'“”‘’(*_-]*$")


@dataclass(frozen=True)
class Part:
    """A passage that notes are taken on, and where it is from."""

    text: str
    file: str
    section: str  # its first words; of a row, its place
    start: int  # characters of the file as it is read
    end: int
    private: bool = False  # of chats


class Note(NamedTuple):
    """A row to train on, and what of it a model has written."""

    prompt: str
    reply: str
    written: str


class Task(NamedTuple):
    """What is asked about a passage; `about` is the name that two passages have in common, or a way to tell it."""

    round: int
    kind: str
    number: int  # of the passage
    parts: Sequence[Part]
    about: str = ""
    most: int = sys.maxsize  # notes to keep of a reply

    @property
    def place(self) -> tuple[int, int, int]:
        """Tasks are done in this order, so a budget that ends early has treated all passages alike."""
        return self.round, [*KINDS].index(self.kind), self.number


class Kind(NamedTuple):
    """What a model is asked, how its reply begins, which keeps a small model to the form, and the row's prompt."""

    ask: str
    begin: str = ""
    prompt: str = ""
    tokens: int = 160


# No ask names the passage: a small model would ask about "the passage", which nobody sees later.
KINDS = {
    "questions": Kind(
        "Ask three questions about these facts, and answer each in a few words. Name in each question whom or "
        "what it is about. Write a line with Q: and a question, then a line with A: and its answer.",
        begin="Q:",
    ),
    "rewordings": Kind(
        "Tell all of this again {about}. Use other words and sentences, but keep every name and every number.",
        prompt='Tell in other words the passage that begins with "{opening}".',
        tokens=320,
    ),
    "summaries": Kind(
        "Say what this tells in two sentences of your own. Keep the names.",
        prompt='Summarize the passage that begins with "{opening}".',
    ),
    "links": Kind(
        "Say in two sentences what all of this tells of {about}.",
        begin="{about}",
        prompt="What is told of {about}, here and elsewhere?",
    ),
    "briefs": Kind(
        "Write a brief for another writer, without quoting this. A line with Who: names the people, a line with "
        "Where: names the place, and a line with What happens: says in short what they do.",
        begin="Who:",
    ),
}
# One for each round, so that the rewordings of a passage differ.
WAYS = (
    *("in plain words", "as a letter to a friend", "as an entry of an encyclopedia", "for a child"),
    *("as an eyewitness", "from its end to its beginning", "as a talk between two friends"),
)


def read_parts(dataset: Dataset) -> list[Part]:
    """The passages of all texts, and the rows of all tables."""
    parts = list(read_passages(dataset))
    for record in () if dataset.is_text else dataset.records():
        if record.gap is None and len(record.words) >= MIN_PART_CHARS:
            words, name = record.words[: 2 * PART_CHARS], dataset.path.name
            parts.append(Part(words, name, record.place, 0, len(words), bool(record.privacy)))
    if not parts:
        raise DataError(f"{dataset.path.name} has no passage of {MIN_PART_CHARS} characters to take notes on.")
    return parts


def read_passages(dataset: Dataset) -> Iterator[Part]:
    """The passages of all texts, cut at paragraphs or sentences."""
    for text in dataset.texts:
        content = str(text.text)
        sections = find_sections(content, HARD_CUT)
        for start, end in zip(sections.content_start.tolist(), sections.content_end.tolist(), strict=True):
            title = section_title(content, start)
            gaps = [gap.end() for gap in PARAGRAPH_GAP.finditer(content, start, end)]
            stops = (find_stop_ends(content[start:end]) + start).tolist()
            while start < end:
                cut = end
                if end - start > 1.25 * PART_CHARS:  # else the rest would be short
                    furthest = start + PART_CHARS
                    paragraphs = [at for at in gaps if start + PART_CHARS // 2 < at <= furthest]
                    cut = max(paragraphs or [at for at in stops if start < at <= furthest] or [furthest])
                passage = content[start:cut].strip()
                if len(passage) >= MIN_PART_CHARS:
                    begin = content.index(passage, start)
                    yield Part(passage, text.name, title, begin, begin + len(passage))
                start = cut


def plan_tasks(parts: Sequence[Part], kinds: Collection[str], rounds: Iterable[int]) -> Iterator[Task]:
    """All that is asked, in order. Links go from a passage to the next one with the same name."""
    places, links = defaultdict[str, list[int]](list), defaultdict[int, list[tuple[str, int]]](list)
    for number, part in enumerate(parts):
        for name in sorted({*names_in(part.text)}):
            places[name].append(number)
    for name, found in places.items():
        if 2 <= len(found) <= max(2, len(parts) // 4):  # a name of most passages links nothing
            for number, other in pairwise([*found, found[0]]):
                links[number].append((name, other))
    ordered = [kind for kind in KINDS if kind in kinds]
    for turn in rounds:
        for kind in ordered:
            for number, part in enumerate(parts):
                if kind != "links":
                    yield Task(turn, kind, number, [part], WAYS[turn % len(WAYS)])
                elif turn < len(links[number]):
                    name, other = links[number][turn]
                    yield Task(turn, kind, number, [part, parts[other]], name)


def plan_exam(parts: Sequence[Part], per_section: int, book: NoteBook) -> Iterator[list[Task]]:
    """Tasks for so many questions on each section, spread evenly over it, from passages without any as long as
    there are such; each list makes up for what the one before did not give."""
    sections = defaultdict[tuple[str, str], list[int]](list)
    for number, part in enumerate(parts):
        sections[part.file, part.section].append(number)
    for turn in range(EXAM_ROUNDS):
        asked = {*book.counts}
        while True:
            tasks = list[Task]()
            for numbers in sections.values():
                missing = per_section - sum(book.counts[number] for number in numbers)
                left = [number for number in numbers if number not in asked]
                count = max(min(missing, len(left)), 0)
                for n in range(count):
                    number = left[(2 * n + 1) * len(left) // (2 * count)]  # the middle of its share
                    most = missing // count + (n < missing % count)
                    tasks.append(Task(turn, "questions", number, [parts[number]], most=most))
            if not tasks:
                break
            asked |= {task.number for task in tasks}
            yield tasks


def message_of(task: Task) -> str:
    """What a model is asked; the passage comes first, because a small model follows what it read last."""
    ask = KINDS[task.kind].ask.format(about=task.about)
    passages = [part.text for part in task.parts]
    return "\n\n".join([*passages, f"{ask} Write in the language of the above, and nothing else."])


def read_notes(task: Task, reply: str, *, ended: bool) -> list[Note]:
    """The notes in a reply; what was cut off at its end is dropped."""
    if not ended:
        is_form = task.kind in ("questions", "briefs")  # of lines
        ends = [at.end() for at in re.finditer("\n", reply)] if is_form else find_stop_ends(reply).tolist()
        reply = reply[: max(ends, default=0)]
    written, text = reply.strip(), task.parts[0].text
    formless = [Note("", "", written)]
    if task.kind == "questions":
        return [Note(*pair, written="\n".join(pair)) for pair in read_questions(written)] or formless
    if task.kind == "briefs":
        found = re.match(r"Who:.+\s+Where:.+\s+What happens:.+", written)
        return [Note(found[0], text, found[0])] if found else formless
    prompt = KINDS[task.kind].prompt.format(about=task.about, opening=" ".join(text.split()[:8]))
    return [Note(prompt, written, written)]


def read_questions(reply: str) -> list[tuple[str, str]]:
    """Questions with their answers; numbers, stars and other labels do not matter."""
    found, question = list[tuple[str, str]](), ""
    reply = re.sub(r"\s+(?=A(?:nswer)?\s*\d*:)", "\n", reply)  # both in one line
    for line in filter(None, map(str.strip, reply.splitlines())):
        label = re.match(r"[\W\d]*(?:(Q)(?:uestion)?|A(?:nswer)?)\s*\d*\s*[:.)]\W*", line, re.IGNORECASE)
        text = re.sub(r"^[\W\d]+(?=\w)", "", line) if label is None else line[label.end() :].strip(" *_")
        if label[1] if label else line.endswith("?"):
            question = text
        elif question:
            found.append((question, text))
            question = ""
    return found


def fault_of(task: Task, note: Note, refusals: Iterable[str]) -> str:
    """Why a note must not be learned; empty if nothing speaks against it."""
    source = "\n".join(part.text for part in task.parts)
    words, source_words, lowered = _words(note.written), _words(source), lower(note.written)
    known = {word.rstrip("s") for word in source_words}  # also as a plural, or without one
    if not note.prompt.strip() or not _words(note.reply):
        return "not in the form that was asked for"
    if any(phrase in lowered and phrase not in lower(source) for phrase in refusals):
        return "a refusal"
    if (outside := OUTSIDE_VIEW.search(lowered)) and outside[0] not in source.lower():
        return "speaks of the passage, which nobody sees later"
    language, own = find_language(note.written), find_language(source)
    if language and own and language != own:
        return "in another language"
    if len(_runs(words, SAID_TWICE)) <= len(words) - SAID_TWICE:
        return "says the same again and again"
    runs = _runs(words, RUN)
    if runs & _runs(_words(KINDS[task.kind].ask), RUN):
        return "repeats what was asked"
    form = {"who", "where", "what"} if task.kind == "briefs" else set[str]()
    # In German, every noun is written like a name.
    names = {name.casefold() for name in names_in(note.written)} - form if own != "de" else set[str]()
    if any(name.rstrip("s") not in known for name in names):
        return "a name that is not in the passage"
    if any(word.isdigit() and word not in source_words for word in words):
        return "a number that is not in the passage"
    asked, answer = _words(note.prompt), _words(note.reply)
    about = asked if task.kind == "questions" else words
    telling = {word.rstrip("s") for word in about if len(word) > 3 and word not in COMMON_WORDS["en"].split()}
    if len(telling & known) < KNOWN_SHARE * len(telling):
        return "about nothing in the passage"
    if task.kind == "questions":
        if len(telling & known) < 2:
            return "a question about nothing in the passage"
        if {*answer} <= {*asked}:
            return "a question with its answer in it"
        content = {word.rstrip("s") for word in answer if len(word) > 3}
        is_in_other_order = content and content <= known and len(answer) <= QUOTED_WORDS
        if f" {' '.join(answer)} " not in f" {' '.join(source_words)} " and not is_in_other_order:
            return "an answer that is not in the passage"
        return ""
    if task.kind == "briefs" and _runs(words, QUOTED_WORDS) & _runs(source_words, QUOTED_WORDS):
        return "quotes the passage"
    if len(runs & _runs(source_words, RUN)) > COPIED_SHARE * len(runs):
        return "copies the passage"
    is_retold = task.kind == "rewordings"
    least, most = (len(source_words) // 3, 2 * len(source_words)) if is_retold else (RUN, len(source_words))
    return "" if least <= len(words) <= most else "too short or too long"


def names_in(text: str) -> Iterator[str]:
    """Words with a capital letter inside a sentence; at its start, every word has one."""
    for found in re.finditer(r"(?<![\w'’])[^\W\d_]{2,}", text):
        if found[0][0].isupper() and not SENTENCE_START.search(text, max(0, found.start() - 8), found.start()):
            yield found[0]


def _words(text: str) -> list[str]:
    return [NUMBERS.get(word, word) for word in WORD.findall(text.casefold())]


def _runs(words: Sequence[str], length: int) -> set[tuple[str, ...]]:
    return {tuple(words[at : at + length]) for at in range(len(words) - length + 1)}


class NoteBook:
    """The file of notes, a row for each with its origin. Rows are only added, so they may be edited."""

    def __init__(
        self, path: Path, parts: Sequence[Part], refusals: Collection[str] = (), exam: Exam | None = None
    ) -> None:
        """No note is a question of the `exam`. Without one, the book itself is an exam, with no question twice."""
        self.path, self.last = path, (-1, -1, -1)  # the place of the task that was done last
        self._refusals, self._exam, self._is_exam = refusals, exam or Exam(), exam is None
        self.counts = Counter[int]()  # of notes, by passage
        self._seen = set[int]()
        if path.suffix != ".jsonl":
            raise DataError(f"{path.name}: notes and exams are rows. Choose a name with .jsonl.")
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.read_bytes() if path.exists() else b""
        whole = written[: written.rfind(b"\n") + 1]
        tail = written[len(whole) :]
        try:
            # A kill tore the last line if it begins as ours do and is no JSON. All else is of the user.
            with suppress(ValueError):
                if not tail.startswith(ROW_START[: len(tail)]) or json.loads(tail):
                    whole = written
            for row in map(json.loads, filter(bytes.strip, whole.splitlines())):
                origin = row["origin"]
                part = parts[origin["part"]]
                if (part.file, part.start, part.end) != (origin["file"], origin["start"], origin["end"]):
                    raise ValueError("it is on another text")
                # Its user may have sorted the rows.
                self.last = max(self.last, Task(origin["round"], row["note"], origin["part"], [part]).place)
                self.counts[origin["part"]] += 1
                self.is_new(Note(row["instruction"], row["output"], ""))
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            reason = f"a line is no note on this dataset ({error})"
            raise DataError(f"{path.name} can't be continued: {reason}. Choose another name.") from error
        if tail:
            with path.open("ab") as file:
                file.truncate(len(whole))
                file.write(b"\n" * (whole == written))

    def is_new(self, note: Note) -> bool:
        """Whether a note differs from all before it, which it is compared with from now on."""
        before = len(self._seen)
        self._seen.add(exact_key([note.prompt, note.reply]))
        if self._is_exam:
            self._exam.add(Question(note.prompt, note.reply))
        return len(self._seen) > before

    def take(self, task: Task, reply: str, result: Cleaned, *, ended: bool) -> Iterator[tuple[Task, Note]]:
        """The notes of a reply that hold and are new, at most as many as the task wants; the rest is counted."""
        kept = 0
        for note in read_notes(task, reply, ended=ended):
            if kept == task.most:
                return
            result.rows += 1
            fault = fault_of(task, note, self._refusals)
            if not fault and self._exam.has(note.prompt, note.reply):
                fault = "a question of the exam"
            if not fault and self._is_exam and len(_words(note.reply)) > QUOTED_WORDS:
                fault = "an answer that is too long for an exam"
            if fault := fault or ("" if self.is_new(note) else "the same as an earlier one"):
                result.dropped[fault] += 1
                result.show(fault, f"{task.kind}, {task.parts[0].section}", note.written)
            else:
                kept, result.kept = kept + 1, result.kept + 1
                yield task, note

    def add(self, notes: Iterable[tuple[Task, Note]]) -> None:
        """Append notes; once this returns, a kill takes none of them."""
        with self.path.open("a", encoding="utf-8", errors="replace", newline="\n") as file:
            for task, note in notes:
                origin = asdict(task.parts[0]) | {"part": task.number, "round": task.round}
                del origin["text"]
                self.counts[task.number] += 1
                privacy = {json_rows.PRIVATE_COLUMN: True} if origin.pop("private") else {}
                row = {"instruction": note.prompt, "output": note.reply, "note": task.kind, "origin": origin}
                file.write(json.dumps({**row, **privacy}, ensure_ascii=False) + "\n")

"""Notes on a text: what is asked, what is read out of replies, what is dropped, and what a kill leaves."""

from __future__ import annotations

import json

import pytest
from training_pro.core.errors import DataError
from training_pro.data.workshop import Cleaned, Dataset, read_exam
from training_pro.data.workshop.study import (
    KINDS,
    NoteBook,
    Part,
    Task,
    fault_of,
    message_of,
    plan_exam,
    plan_tasks,
    read_notes,
    read_parts,
    read_questions,
)

TEXT = (
    "The hut on Mount Corrin is kept by Emeric Stoat. He serves pea soup to the climbers, and charges 7 coins for "
    "it. In the evening he reads the weather from the smoke, and he is right more often than the radio."
)
PART = Part(TEXT, "a.txt", "The hut", 0, len(TEXT))


def fault(kind, reply, text=TEXT, ended=True):
    """Why each note in a reply to a task is dropped."""
    task = Task(0, kind, 0, [PART if text == TEXT else Part(text, "a.txt", "", 0, len(text))], "Corrin")
    notes = read_notes(task, reply, ended=ended)
    return [fault_of(task, note, ["as an ai"]) for note in notes]


@pytest.mark.parametrize(
    ("kind", "reply", "reason"),
    [
        ("questions", "Q: Who keeps the hut on Mount Corrin?\nA: Emeric Stoat", ""),
        ("questions", "Q: Who keeps the hut on Mount Corrin?\nA: Stoat, Emeric", ""),
        ("questions", "Q: Who keeps the hut on Mount Corrin?\nA: Hugo Brandt", "a name that"),
        ("questions", "Q: What do climbers pay at the hut for soup?\nA: 9 coins", "a number that"),
        ("questions", "Q: What do climbers pay at the hut for soup?\nA: seven coins", ""),
        ("questions", "Q: What does Stoat serve the climbers?\nA: a plate of roasted chestnuts", "an answer that"),
        ("questions", "Q: What is the hut on Mount Corrin?\nA: the hut", "a question with its answer"),
        ("questions", "Q: What is it?\nA: pea soup", "a question about nothing"),
        ("summaries", "The speaker feels lonely and wonders about the meaning of human love.", "about nothing in"),
        (
            "summaries",
            "Stoat serves hot pea soup to all. Stoat serves hot pea soup to me.",
            "says the same",
        ),
        (
            "summaries",
            "The above is an example of how Stoat serves soup at Corrin.",
            "speaks of the passage",
        ),
        ("questions", "Q: Who keeps the hut in the passage?\nA: Emeric Stoat", "speaks of the passage"),
        ("questions", "Emeric Stoat keeps it.", "not in the form"),
        ("summaries", "As an AI, I can't say what Stoat does.", "a refusal"),
        ("summaries", "At Corrin, Stoat cooks for hikers and foretells rain better than any broadcast does.", ""),
        ("summaries", "The hut on Mount Corrin is kept by Emeric Stoat. He serves pea soup.", "copies"),
        ("summaries", "Es ist nicht das Haus von Stoat, und er war auch nicht der Wirt.", "in another language"),
        ("summaries", "Stoat cooks. " * 20, "says the same"),
        ("summaries", "Say what this tells in two sentences of your own.", "repeats what was asked"),
        ("rewordings", "Stoat cooks soup.", "too short"),
        ("briefs", "Who: Emeric Stoat\nWhere: Mount Corrin\nWhat happens: he cooks and foretells rain", ""),
        ("briefs", "Who: Emeric Stoat\nWhere: Corrin\nWhat happens: " + TEXT[50:110], "quotes"),
        ("briefs", "Who: Emeric Stoat", "not in the form"),
    ],
)
def test_a_note_that_does_not_hold_against_its_passage_is_dropped(kind, reply, reason):
    (found,) = fault(kind, reply)
    assert found.startswith(reason) and bool(found) == bool(reason)


def test_german_nouns_are_no_invented_names():
    text = "Die Hütte auf dem Berg ist nicht groß, und der Wirt kocht eine Suppe für die Leute von der Post." * 2
    assert fault("summaries", "Oben auf dem Berg ist der Koch, und er macht Suppe für die Boten.", text) == [""]


def test_questions_are_read_from_other_forms_and_what_was_cut_off_is_not_a_note():
    pairs = [("Who?", "Ada."), ("Where?", "In Venn.")]
    for reply in (
        "Q: Who?\nA: Ada.\nQ: Where?\nA: In Venn.",
        "**Q1:** Who?\n**A1:** Ada.\n\n2. Question: Where?\nAnswer: In Venn.",
        "1. Who?\nAda.\n2. Where?\nIn Venn.", "Q: Who? A: Ada.\nQ: Where? A: In Venn.",
    ):  # fmt: skip
        assert read_questions(reply) == pairs
    assert len(fault("questions", "Q: Who keeps the hut?\nA: Stoat\nQ: What does the", ended=False)) == 1
    assert fault("summaries", "and then he", ended=False) == ["not in the form that was asked for"]


def test_passages_are_cut_at_paragraphs_and_their_characters_are_theirs(tmp_path):
    chapters = ["Chapter One\n\n" + "\n\n".join(f"{n}. {TEXT}" for n in range(20)), "Chapter Two\n\n" + TEXT * 30]
    (tmp_path / "a.txt").write_text("\n\n\n".join(chapters))
    parts = read_parts(Dataset(tmp_path / "a.txt"))
    content = (tmp_path / "a.txt").read_text()
    assert all(part.text == content[part.start : part.end] and len(part.text) <= 1500 for part in parts)
    assert "".join("".join(part.text.split()) for part in parts) == "".join(content.split())
    assert {part.section[:11] for part in parts} == {"Chapter One", "Chapter Two"}
    assert all(part.text.endswith(("radio.", "Stoat.", "it.")) for part in parts)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": TEXT}))
    assert [part.section for part in read_parts(Dataset(tmp_path / "rows.jsonl"))] == ["line 1"]


def test_an_exam_is_spread_over_each_section_and_goes_on_where_it_has_too_little(tmp_path):
    parts = [Part(f"{TEXT} {n}", "a.txt", "One" if n < 9 else "Two", n, n) for n in range(11)]
    book = NoteBook(tmp_path / "exam.jsonl", parts)
    planned = plan_exam(parts, 3, book)
    first = next(planned)
    assert [(task.number, task.most) for task in first] == [(1, 1), (4, 1), (7, 1), (9, 2), (10, 1)]
    who, what = "Q: Who keeps the hut on Mount Corrin?\nA: ", "Q: What does Stoat serve the climbers?\nA: pea soup"
    long = "\nQ: When does Stoat read the weather?\nA: In the evening he reads the weather from the smoke"
    result = Cleaned()
    for task, answer in zip(first, ("Emeric Stoat", "Stoat", long, "Hugo", "Stoat"), strict=True):
        book.add(book.take(task, f"{who}{answer}\n{what}", result, ended=True))
    assert book.counts == {1: 1, 4: 1}, "of each only what is wanted, and nothing twice"
    assert result.dropped["a question of the exam"] == 5
    assert result.dropped["an answer that is too long for an exam"] == 1
    again = NoteBook(book.path, parts)
    assert [task.number for task in next(plan_exam(parts, 3, again))] == [5, 9, 10]


def test_an_exam_is_read_from_any_rows_and_knows_questions_that_are_nearly_its_own(tmp_path):
    rows = [
        {"instruction": "Who keeps the hut on Mount Corrin?", "output": "Stoat", "origin": {"section": "I"}},
        {"instruction": "How many coins is the soup?", "output": "7", "origin": "mine"},
        {"instruction": "What is it?", "output": "..."},
    ]
    path = tmp_path / "exam.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    exam = read_exam([path])
    assert [question.section for question in exam.questions] == ["I", "exam.jsonl"]
    assert exam.has("Who keeps the hut at Mount Corrin?", "a man")
    assert exam.has("Who is keeper of the hut on Mount Corrin?", "Stoat")
    assert not exam.has("Who is keeper of the hut on Mount Corrin?", "Hugo")
    assert not exam.has("Who keeps the hut 7 on Mount Corrin?", "Emeric Stoat")
    asked = "Is the mood of this sentence good or bad?"
    for letter in "abcdefghijklmnopqrstuvwxyz":  # what all share tells none of them
        exam.add(exam.questions[0]._replace(prompt=f"{asked} Word{letter}", answer="bad"))
        exam.add(exam.questions[0]._replace(prompt=f"Who is Emeric's {letter * 3}?", answer=letter))
    assert not exam.has(f"{asked} Another", "bad") and exam.has(f"{asked} Worda", "bad")
    exam.add(exam.questions[0]._replace(prompt="Who is Emeric?", answer="a ferryman"))
    assert exam.has("Who is Emeric?", "a ferryman") and exam.has("Who is Emeric's aaa?", "a")
    assert not exam.has("Who is Nila's aaa?", "a") and exam.has("Who was Emeric's aaa?", "a")
    for content in ("", "Just a text.", '{"text": "one"}'):
        path.write_text(content)
        with pytest.raises(DataError, match="exam"):
            read_exam([path])


def test_every_passage_has_each_kind_before_the_next_round_and_links_share_a_name():
    texts = [
        TEXT,
        "The echo of the Corrin valley answers only questions.",
        "Nothing here is known to anyone.",
    ]
    parts = [Part(text, "a.txt", "", n, n) for n, text in enumerate(texts)]
    tasks = list(plan_tasks(parts, [*reversed(KINDS)], range(2)))
    assert [task.place for task in tasks] == sorted(task.place for task in tasks)
    links = [task for task in tasks if task.kind == "links"]
    assert {(task.number, task.about) for task in links} == {(0, "Corrin"), (1, "Corrin")}
    assert all(part.text in message_of(links[0]) for part in parts[:2])
    assert len({task.about for task in tasks if task.kind == "rewordings"}) == 2


def test_a_torn_line_is_cut_off_and_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "new" / "notes.jsonl"
    task = Task(0, "questions", 0, [PART])
    with pytest.raises(DataError, match=r"Choose a name with \.jsonl"):
        NoteBook(tmp_path / "notes.txt", [PART])
    (note,) = read_notes(task, "Q: Who keeps the hut?\nA: Stoat", ended=True)
    NoteBook(path, [PART]).add([(task, note)])
    whole = path.read_bytes()
    assert json.loads(whole)["origin"] == {
        "file": "a.txt",
        "section": "The hut",
        "start": 0,
        "end": len(TEXT),
        "part": 0,
        "round": 0,
    }
    path.write_bytes(whole + whole[:-20])
    book = NoteBook(path, [PART])
    assert path.read_bytes() == whole and book.last == task.place and not book.is_new(note)
    path.write_bytes(whole.rstrip())  # edited, in an editor that ends no last line
    book = NoteBook(path, [PART])
    assert path.read_bytes() == whole and book.counts == {0: 1}
    row = b'{"instruction": "a", "output": "b"}'
    for other in (row + b"\n", row, b"[]\n", b"no row\n", b'{"mine": [1, 2]}', b"[" * 9999, whole + b'{"mine'):
        path.write_bytes(other)
        with pytest.raises(DataError, match="can't be continued"):
            NoteBook(path, [PART])
        assert path.read_bytes() == other

"""The Data tab: what it shows of a dataset, and that it writes a copy and nothing else."""

from __future__ import annotations

import json

import numpy as np
import pytest
from training_pro.core.jobs import JobEnded, NotesTaken, Request, Session, Stage
from training_pro.data.workshop import mapping
from training_pro.interface.base import PageContext
from training_pro.interface.tabs import DataTab
from training_pro.tests.fakes import FakeHost, make_folders
from training_pro.tests.interface.visit import open_tab

ROWS = [{"prompt": "Who <b>?", "response": reply} for reply in ("Ada.", "Ada.", "OpenAI made me. I write.", "")]


@pytest.fixture
def folders(tmp_path):
    made = make_folders(tmp_path)
    (made.datasets / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    return made


@pytest.fixture
def page(folders):
    page = open_tab(DataTab, PageContext(FakeHost(folders=folders), object(), Session()))
    page.fill(workshop_name="rows.jsonl")
    return page


def test_look_shows_what_is_in_it_and_try_what_would_be_dropped(page, folders):
    for button, lines in (
        ("look", ["questions and answers", "empty_replies: 1 dropped", "refusals: 1 dropped", "kept: 1 of 4"]),
        ("try", ["exact_duplicates: 1 dropped", "refusals: 1 dropped", "kept: 2 of 4", "Who &lt;b&gt;?"]),
    ):
        shown = page.press(f"workshop-{button}")
        html = shown["workshop-said"] + shown["workshop-found"]
        assert all(line in html for line in lines) and "<b>" not in html
    assert [path.name for path in folders.datasets.iterdir()] == ["rows.jsonl"]


def test_a_copy_is_written_once_with_the_steps_of_the_tab(page, folders):
    typed = {"workshop-phrases": "made\n", "workshop-steps": ["Empty replies"], "workshop-out": "new.jsonl"}
    said = page.press("workshop-write", **typed)["workshop-said"]
    assert "new.jsonl is written" in said
    replies = [json.loads(line)["response"] for line in (folders.datasets / "new.jsonl").read_text().splitlines()]
    assert replies == ["Ada.", "Ada."] and (folders.datasets / "new.jsonl.recipe.json").exists()
    assert "exists already" in page.press("workshop-write")["workshop-said"]
    # The next dataset is cleaned by the recipe of that copy, whatever the steps of the tab are.
    named = {"workshop-recipe": "new.jsonl.recipe.json", "workshop-steps": [], "workshop-phrases": ""}
    assert "empty_replies: 1 dropped" in page.press("workshop-try", **named)["workshop-found"]
    assert "is a path" in page.press("workshop-try", workshop_recipe="../new.jsonl.recipe.json")["workshop-said"]


def test_a_dataset_is_split_and_converted(page, folders):
    page.fill(workshop_form="messages", workshop_share=0.4, workshop_folder="parts")
    shown = page.press("workshop-convert", workshop_converted="chats.jsonl")
    assert "chats.jsonl is written" in shown["workshop-said"] and "1 dropped" in shown["workshop-found"]
    assert len((folders.datasets / "chats.jsonl").read_text().splitlines()) == 3
    shown = page.press("workshop-split")
    assert "train.jsonl: " in shown["workshop-found"] and "parts/train.jsonl as Dataset" in shown["workshop-said"]
    assert {path.name for path in (folders.datasets / "parts").iterdir()} == {"train.jsonl", "validation.jsonl"}
    (folders.datasets / "book.txt").write_text("One.\n\nTwo.\n\nThree.\n\nFour.", encoding="utf-8")
    said = page.press("workshop-split", workshop_name="book.txt", workshop_folder="texts")["workshop-said"]
    assert "texts/train.txt as Dataset and texts/validation.txt as Evaluation dataset." in said
    assert "Enter a name under Folder." in page.press("workshop-split", workshop_folder="")["workshop-said"]


def test_chats_are_read_with_the_name_in_the_form(folders):
    page = open_tab(DataTab, PageContext(FakeHost(folders=folders), Student(), Session()), "chat_user")
    names = ("Jo", "Al", "Bo")
    (folders.datasets / "_chat.txt").write_text("\n".join(f"12/03/2024, 18:22 - {name}: Hi" for name in names))
    assert "does not say who you are" in page.press("workshop-look", workshop_name="_chat.txt")["workshop-said"]
    assert "kept: 1 of 1" in page.press("workshop-look", chat_user="Al")["workshop-found"]
    assert "Al" in page.press("workshop-study", workshop_notes="n.jsonl")["workshop-said"]


def test_reading_shows_how_far_it_is_and_can_be_stopped(folders):
    session = Session()
    page = open_tab(DataTab, PageContext(FakeHost(folders=folders), object(), session))
    lines = (json.dumps({"text": f"{number} geese"}) + "\n" for number in range(60_000))
    (folders.datasets / "rows.jsonl").write_text("".join(lines))
    page.fill(workshop_name="rows.jsonl", workshop_out="new.jsonl")
    page.press("workshop-try")
    stages = [event.text for event in session.latest("cleaning").log.since(0) if isinstance(event, Stage)]
    assert "Reading rows.jsonl: 60,000 records" in stages

    def stop():
        session.latest("cleaning").control.ask(Request.STOP)

    shown = page.until("workshop-write", lambda shown: "Stopped." in shown["workshop-said"], stop)
    assert "Nothing was written." in shown["workshop-said"]
    assert [path.name for path in folders.datasets.iterdir()] == ["rows.jsonl"]


class Student:
    """Takes no notes, and says what it was asked for."""

    def study(self, asked, host, job):
        job.log.append(NotesTaken(rows=3, kept=1, dropped={"a copy": 2}, examples={"a copy": ["x <b>"]}, tokens=9))
        asked_for = f"{asked.kinds} {asked.minutes} {asked.out.name} {asked.rounds}"
        exams = [path.name for path in asked.exams]
        return JobEnded(outcome="finished", text=f"{asked_for} {asked.per_section} {exams} {asked.rows}")


def test_notes_are_taken_with_what_is_typed_and_what_was_dropped_is_shown(folders):
    page = open_tab(DataTab, PageContext(FakeHost(folders=folders), Student(), Session()))
    shown = page.press("workshop-study", workshop_name="rows.jsonl", workshop_notes="n.jsonl", workshop_minutes=2)
    assert "questions" in shown["workshop-said"] and "2.0 n.jsonl 0" in shown["workshop-said"]
    assert "0 []" in shown["workshop-said"]
    assert "2 dropped: a copy" in shown["workshop-found"] and "x &lt;b&gt;" in shown["workshop-found"]
    assert "a name with .jsonl" in page.press("workshop-study", workshop_notes="")["workshop-said"]
    assert "is a path" in page.press("workshop-study", workshop_notes="../n.jsonl")["workshop-said"]


def test_an_exam_is_written_into_its_own_file_and_notes_are_taken_without_its_questions(folders):
    page = open_tab(DataTab, PageContext(FakeHost(folders=folders), Student(), Session()))
    shown = page.press("workshop-write-exam", workshop_name="rows.jsonl", workshop_exam="exam.jsonl")
    assert "exam.jsonl 0 4 []" in shown["workshop-said"]
    assert "no dataset named" in page.press("workshop-study", workshop_notes="n.jsonl")["workshop-said"]
    (folders.datasets / "exam.jsonl").write_text("{}")
    assert "n.jsonl 0 0 [&#39;exam.jsonl&#39;]" in page.press("workshop-study")["workshop-said"]
    assert "Exam needs a name" in page.press("workshop-write-exam", workshop_exam="")["workshop-said"]


class Drawer:
    """Sorts rows without a model."""

    calls = 0

    def draw_map(self, asked, host, job):
        self.calls += 1
        texts = [f"<b> {number}" for number in range(30)]
        vectors = np.random.default_rng(0).normal(size=(30, 8)) + 9 * np.eye(8)[np.arange(30) % 2]
        mapping.write_map([(text, {"text": text}) for text in texts], vectors, asked.out)
        return JobEnded(outcome="finished", text="30 rows mapped.")


def test_a_map_is_drawn_once_and_a_share_of_its_clusters_is_written(folders):
    engine = Drawer()
    page = open_tab(DataTab, PageContext(FakeHost(folders=folders), engine, Session()))
    assert "Draw the map first" in page.press("map-write", workshop_name="rows.jsonl")["map-said"]
    shown = page.press("map-draw")
    assert "30 rows mapped." in shown["map-said"] and "1: 15 rows (50%)" in shown["map-drawn"]
    assert shown["map-drawn"].count("<circle") == 30 and "&lt;b&gt; 29" in shown["map-drawn"]
    assert "Remove this file" in page.press("map-draw")["map-said"] and engine.calls == 1
    said = page.press("map-write", map_shares="2=0", map_out="half.jsonl")["map-said"]
    assert "15 of 30 rows" in said and len((folders.datasets / "half.jsonl").read_text().splitlines()) == 15
    assert "is not a share" in page.press("map-write", map_shares="2")["map-said"]


def test_what_can_not_be_downloaded_is_a_sentence(page, folders):
    for address, message in (
        ("http://127.0.0.1:1/a.txt", "address of this machine"),
        ("a b", "neither OWNER/NAME"),
    ):
        assert message in page.press("dataset-get", dataset_from=address)["dataset-said"]
    assert [path.name for path in folders.datasets.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ({"workshop_out": ""}, "Enter a name under Cleaned copy."),
        ({"workshop_out": "../new.jsonl"}, "is a path"),
        ({"workshop_out": "new.jsonl", "workshop_name": ""}, "Choose a dataset first."),
        ({"workshop_out": "new.jsonl", "workshop_name": "../rows.jsonl"}, "is a path, but a name is needed"),
        ({"workshop_out": "new.exe"}, "rows can be written as .jsonl"),
    ],
)
def test_what_can_not_be_done_is_a_sentence(page, folders, typed, message):
    assert message in page.press("workshop-write", **typed)["workshop-said"]
    assert [path.name for path in folders.datasets.iterdir()] == ["rows.jsonl"]

"""What the guide says of preparing a dataset: phrases, SQL, and files for training and validation."""

from __future__ import annotations

import json

import pytest
from training_pro.commands.main import main
from training_pro.data.workshop import Dataset, study
from training_pro.tests.coming_from import read_page
from training_pro.tests.seeds.conftest import checked, write_rows

PHRASES = ("As an AI language model", "harmful or offensive content", "trained by OpenAI")


@pytest.fixture
def data(place, capsys):
    """The data command, with its figures."""

    def call(*arguments):
        assert main(["data", *arguments, "--user-data", str(place.folders.user_data), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return call


def read(place, name):
    return [json.loads(line) for line in (place.folders.datasets / name).read_text().splitlines()]


@pytest.mark.parametrize("phrase", PHRASES)
def test_unwanted_phrases_are_removed_with_their_row_or_their_sentence(place, data, phrase):
    asked = {"input": f"What does '{phrase}' mean?", "output": "It is a phrase."}
    write_rows(place, asked, {"input": "Who are you?", "output": f"I am Ada. I know that: {phrase}. I write."})
    data("clean", "rows.jsonl", "--out", "rows-dropped.jsonl")
    assert read(place, "rows-dropped.jsonl") == [asked], "a prompt with the phrase stays"
    data("clean", "rows.jsonl", "--out", "sentences-dropped.jsonl", "--set", "refusals=sentence")
    assert [row["output"] for row in read(place, "sentences-dropped.jsonl")] == [
        asked["output"],
        "I am Ada. I write.",
    ]
    assert "refusals=sentence" in read_page('truncate or remove phrases such as "As an AI language model"')


def test_train_and_validation_splits_are_generated_as_files_that_a_run_takes(place, data):
    write_rows(place, *({"input": f"What is {n}?", "output": f"The number {n}."} for n in range(1000)))
    data("split", "rows.jsonl", "--out", "parts", "--validation", "0.01")
    assert len(read(place, "parts/validation.jsonl")) == 10
    report = checked(place, data=["parts/train.jsonl"], eval_data=["parts/validation.jsonl"], cutoff="auto")
    assert report.problems == () and report.examples == 990
    assert "validation.jsonl" in read_page("train.jsonl and val.jsonl")


def test_a_dump_in_sql_is_parsed_into_plaintext(place, data):
    place.write("chats.sql", "CREATE TABLE foo (text TEXT);\nINSERT INTO foo VALUES('It''s one.'),('Two.');")
    data("convert", "chats.sql", "--out", "texts.jsonl")
    assert read(place, "texts.jsonl") == [{"text": "It's one."}, {"text": "Two."}]
    assert "nothing is executed" in read_page("sqlparse for a dump in SQL")


def test_texts_are_put_under_a_text_key_in_a_jsonl_file(place, data):
    place.write("book.txt", "One.\n\nTwo.\n\n\nThree.")
    data("convert", "book.txt", "--out", "book.jsonl")
    assert read(place, "book.jsonl") == [{"text": "One.\n\nTwo."}, {"text": "Three."}]


def test_as_many_paraphrases_are_asked_for_as_there_are_rounds(place):
    parts = study.read_parts(Dataset(place.folders.datasets / "story.txt"))
    for rounds in (1, 3, 5):
        asked = [study.message_of(task) for task in study.plan_tasks(parts, ["rewordings"], range(rounds))]
        assert len(set(asked)) == rounds * len(parts), "each in another way"
    assert "as many rounds as you ask for" in read_page("the number of paraphrases added")

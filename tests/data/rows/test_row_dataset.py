"""Rows from a file to the report: custom formats, truncation, and rows that cannot be read."""

from __future__ import annotations

import json

import pytest
from training_pro.core.errors import DataError
from training_pro.hosts import tiny
from training_pro.tests.rowing import LLAMA_3, LLAMA_3_TOKENS, chat, family, prepare_rows, with_template

CHATML = family("ChatML")
MINE = '{"title,body": "# %title%\\n\\n%body%"}'


def pair(answer="No.", question="Hi"):
    return {"instruction": question, "output": answer}


def words(count):
    return " ".join(["word"] * count)


def test_the_report_of_rows(tmp_path):
    data = prepare_rows(tmp_path, CHATML, {"rows.jsonl": [chat("Hi", "No."), chat("Hi", "No, never.")]})
    (source,) = data.report.sources
    assert source.what == "rows: chats, because the rows have the column 'messages'"
    assert source.notes == ("Chats are formatted with the model's own chat template.",)
    assert (source.rows.rows, source.examples, data.report.examples) == (2, 2, 2)
    lengths = [len(example.ids) for example in data.examples]
    assert (source.tokens, source.lengths.longest, source.lengths.second) == (
        sum(lengths),
        max(lengths),
        min(lengths),
    )
    learned = sum(int((example.labels != -100).sum()) for example in data.examples)
    assert (source.trained_tokens, data.report.trained_tokens) == (learned, learned)
    assert data.report.verdict == "ready"
    assert "rows: chats" in data.report.text()
    assert data.report.as_json()["sources"][0]["rows"]["rows"] == 2


@pytest.mark.parametrize(("count", "cutoff"), [(1, 32), (40, None), (3000, 2048)])
def test_auto_cutoff_is_the_rounded_length_of_the_longest_row(tmp_path, count, cutoff):
    data = prepare_rows(tmp_path, CHATML, {"rows.json": [pair(words(count))]}, too_long="cut_end")
    longest = data.report.longest if count < 3000 else 2048
    assert data.report.cutoff == (cutoff or -(-longest // 32) * 32)
    assert data.resolved.cutoff == data.report.cutoff


def test_auto_cutoff_with_raw_text_and_within_the_models_context(tmp_path):
    files = {"rows.json": [pair()], "story.txt": "A story. " * 50}
    assert prepare_rows(tmp_path / "a", CHATML, files).report.cutoff == 256
    config = {"max_position_embeddings": 128}
    assert prepare_rows(tmp_path / "b", CHATML, files, config=config).report.cutoff == 128
    assert prepare_rows(tmp_path / "c", CHATML, {"story.txt": "A story. " * 50}).report.cutoff == 256


def long_rows(tmp_path, too_long, **more):
    rows = [pair(f"{n} {words(n)}") for n in (*range(1, 20), *range(1, 21), 200)]
    return prepare_rows(tmp_path, CHATML, {"rows.json": rows}, cutoff=128, too_long=too_long, **more)


def test_rows_too_long_are_left_out(tmp_path):
    data = long_rows(tmp_path, "drop")
    assert (len(data.examples), data.report.sources[0].rows.too_long) == (39, 1)
    assert data.report.problems == ()
    assert "1 too long (dropped)" in data.report.text()


@pytest.mark.parametrize(("way", "text"), [("cut_end", "<|im_start|>user"), ("cut_start", "word")])
def test_rows_too_long_are_cut(tmp_path, way, text):
    data = long_rows(tmp_path, way)
    last = data.examples[39]
    assert (len(data.examples), len(last.ids)) == (40, 128)
    assert last.text.lstrip().startswith(text)
    assert last.text.endswith("<|im_end|>\n") == (way == "cut_start")


def test_rows_too_long_are_split(tmp_path):
    whole = prepare_rows(tmp_path / "whole", CHATML, {"rows.json": [pair(words(300))]}, cutoff=2048).examples[0]
    data = prepare_rows(
        tmp_path / "split", CHATML, {"rows.json": [pair(words(300))]}, cutoff=128, too_long="split"
    )
    ids = [number for example in data.examples for number in example.ids.tolist()]
    assert ids == whole.ids.tolist()
    flags = [flag for example in data.examples for flag in example.loss_mask.tolist()]
    assert flags == whole.loss_mask.tolist()
    assert max(len(example.ids) for example in data.examples) == 128


def test_pieces_begin_with_bos_where_the_row_does(tmp_path):
    tokenizer = with_template(tiny._make_tokenizer(tiny.TRAINING_TEXT, adds_bos=True), LLAMA_3, LLAMA_3_TOKENS)
    data = prepare_rows(tmp_path, tokenizer, {"rows.json": [pair(words(300))]}, cutoff=64, too_long="split")
    assert {int(example.ids[0]) for example in data.examples} == {tokenizer.bos}
    assert max(len(example.ids) for example in data.examples) == 64


def test_too_many_too_long_stop_a_run(tmp_path):
    rows = [pair(words(n)) for n in (1, 2, 3, 200)]
    data = prepare_rows(tmp_path / "a", CHATML, {"rows.json": rows}, cutoff=64)
    (problem,) = data.report.problems
    assert problem.startswith(
        "rows.json: 1 of 4 rows (25%) is longer than the cutoff of 64 tokens. The longest row has"
    )
    data = prepare_rows(tmp_path / "b", CHATML, {"rows.json": rows}, cutoff=64, too_long="drop_any")
    assert (data.report.problems, len(data.examples)) == ((), 3)


def test_a_cut_that_loses_the_answer_leaves_the_row_out(tmp_path):
    rows = [pair(), pair("No.", words(200))]
    data = prepare_rows(tmp_path, CHATML, {"rows.json": rows}, cutoff=64, too_long="cut_end")
    assert (len(data.examples), data.report.sources[0].rows.nothing_learned) == (1, 1)


def test_broken_rows_stop_a_run_and_are_listed(tmp_path):
    lines = "\n".join(['{"instruction": "a", "output": "b"}', "{", '{"instruction": "a"}', '{"output": 5}'])
    data = prepare_rows(tmp_path, CHATML, {"rows.jsonl": lines})
    assert data.report.verdict == "not ready"
    assert data.report.problems == (
        "rows.jsonl, line 2: the row starts an object that does not end on the same line. Put each row on one "
        "line, or save all rows as an array in a .json file.",
        "rows.jsonl, line 3: the row has no 'output'; its columns are: instruction.",
        "rows.jsonl, line 4: the row has no 'instruction'; its columns are: output.",
    )


def test_only_the_first_broken_rows_are_listed(tmp_path):
    data = prepare_rows(tmp_path, CHATML, {"rows.json": [pair(), *[{"instruction": "a"}] * 25]})
    assert len(data.report.problems) == 11
    assert data.report.problems[-1] == "rows.json: 15 more rows can't be read."


def test_broken_rows_may_be_skipped_up_to_a_tenth(tmp_path):
    rows = [*[pair()] * 18, {"instruction": "a"}, {"instruction": "a"}]
    data = prepare_rows(tmp_path / "a", CHATML, {"rows.json": rows}, bad_rows="skip")
    assert (data.report.problems, len(data.examples)) == ((), 18)
    assert "2 rows can't be read and were skipped." in data.report.sources[0].notes
    data = prepare_rows(tmp_path / "b", CHATML, {"rows.json": rows[1:]}, bad_rows="skip")
    assert data.report.problems[-1] == (
        "rows.json: 2 of 19 rows can't be read, which is more than a tenth. Fix these "
        "rows, or choose another Data format."
    )


TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
OWN = "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are helpful.<|im_end|>\n{% endif %}"
REFUSING = "{% if messages[0].role == 'system' %}{{ raise_exception('none') }}{% endif %}"


@pytest.mark.parametrize(
    ("template", "more", "is_named"),
    [
        (OWN + TURNS, {}, True),
        (OWN + TURNS, {"system": "Be short."}, False),
        (TURNS, {}, False),
        ("Today is a day.\n" + TURNS, {}, False),
        (REFUSING + TURNS, {}, False),
    ],
    ids=["its own", "one is given", "none", "always the same", "refused"],
)
def test_the_system_message_that_a_template_writes_by_itself_is_named(tmp_path, template, more, is_named):
    notes = (
        prepare_rows(tmp_path, with_template(CHATML.tokenizer, template), {"rows.json": [pair()] * 2}, **more)
        .report.sources[0]
        .notes
    )
    expected = "The template adds a system message to chats that have none: 'You are helpful.'."
    assert (expected in notes) == is_named and is_named == any("The template adds" in note for note in notes)


@pytest.mark.parametrize(
    ("header", "more", "expected"),
    [
        ("question,answer", {}, []),
        ("Question,answer,topic", {}, ["Column 'topic' is not used."]),
        ("question,answer,topic,page", {}, ["Columns 'topic', 'page' are not used."]),
        ("text,topic", {}, ["Column 'topic' is not used."]),
        ("q,a,topic", {"columns": "instruction=q output=a"}, ["Column 'topic' is not used."]),
    ],
)
def test_columns_that_are_not_used_are_named(tmp_path, header, more, expected):
    lines = [header, *[",".join(f"some words {n}" for _ in header.split(",")) for n in range(4)]]
    notes = prepare_rows(tmp_path, CHATML, {"faq.csv": "\n".join(lines)}, **more).report.sources[0].notes
    assert [note for note in notes if "not used" in note] == expected


def test_the_setting_that_skips_rows_is_named_where_skipping_is_possible(tmp_path):
    bad_row, label = {"instruction": "a"}, "Invalid rows"
    *problems, last = prepare_rows(
        tmp_path / "a", CHATML, {"rows.json": [*[pair()] * 18, bad_row, bad_row]}
    ).report.problems
    assert [p.partition(":")[0] for p in problems] == ["rows.json, row 19", "rows.json, row 20"]
    assert last == f"{label}: 2 of 20 rows can't be read. Fix them, or choose to skip them."
    few = prepare_rows(tmp_path / "b", CHATML, {"rows.json": [*[pair()] * 2, bad_row]}).report.problems
    assert len(few) == 1 and label not in few[0]


def test_all_files_that_cannot_be_read_are_named_at_once(tmp_path):
    with pytest.raises(DataError) as error:
        prepare_rows(tmp_path, CHATML, {"a.json": "[", "b.jsonl": " ", "c.txt": b"%PDF"})
    lines = str(error.value).splitlines()
    assert [line.split()[0].rstrip(",") for line in lines] == ["a.json", "b.jsonl", "c.txt"]


def test_half_a_surrogate_pair_and_a_huge_row_are_problems(tmp_path):
    lines = '{"text": "a \\ud800 b"}\n{"text": "' + "x" * 6_000_000 + '"}\n{"text": "good"}'
    data = prepare_rows(tmp_path, CHATML, {"rows.jsonl": lines})
    assert "line 1: the row contains an incomplete character" in data.report.problems[0]
    assert "line 2: the row has 6,000,000 characters" in data.report.problems[1]


def test_a_custom_format(tmp_path):
    files = {"rows.json": [{"title": "One", "body": "Text.", "id": 4}], "../formats/mine.json": MINE}
    data = prepare_rows(tmp_path, CHATML, files, data=["rows.json"], format="mine")
    assert data.examples[0].text == "# One\n\nText.<|im_end|>"


@pytest.mark.parametrize("mine", ["[", "[]", "{}", '{"a": 5}', '{"a": "no place"}'])
def test_a_broken_format_is_refused(tmp_path, mine):
    with pytest.raises(DataError, match=r"Data format: mine[.]json"):
        prepare_rows(
            tmp_path, CHATML, {"r.json": [pair()], "../formats/mine.json": mine}, data=["r.json"], format="mine"
        )


def test_a_missing_format_is_refused(tmp_path):
    with pytest.raises(
        DataError, match=r"Data format: there is no format named 'nowhere'[.] Available: auto, chat, text, alpaca"
    ):
        prepare_rows(tmp_path, CHATML, {"rows.json": [pair()]}, format="nowhere")


def test_columns_that_no_template_of_a_format_has(tmp_path):
    data_rows = [pair(), {"instruction": "a", "other": "b"}]
    data = prepare_rows(tmp_path, CHATML, {"rows.json": data_rows}, format="alpaca-format")
    assert data.report.problems == (
        "rows.json, row 2: the row has text in these columns: instruction, other. alpaca-format needs text in: "
        "instruction, output; or input, instruction, output.",
    )


@pytest.mark.parametrize("names", [("Instruction", "Output"), (" OUTPUT", "instruction "), ("Question", "Answer")])
def test_a_format_finds_its_columns_in_any_case(tmp_path, names):
    rows = {"rows.json": [dict.fromkeys(names, "word")]}
    data = prepare_rows(tmp_path / "a", CHATML, rows, format="alpaca-format")
    assert "### Instruction:\nword" in data.examples[0].text
    template = " is ".join(f"%{name.strip().upper()}%" for name in names)
    data = prepare_rows(tmp_path / "b", CHATML, rows, format=template)
    assert data.examples[0].text.startswith("word is word")


def test_blank_columns_choose_another_template(tmp_path):
    rows = [{"instruction": "a", "input": " ", "output": "b"}, {"instruction": "a", "input": "c", "output": "b"}]
    data = prepare_rows(tmp_path, CHATML, {"rows.json": rows}, format="alpaca-format")
    assert ["### Input:" in example.text for example in data.examples] == [False, True]


def test_questions_and_answers_fill_instruction_and_output(tmp_path):
    data = prepare_rows(
        tmp_path, CHATML, {"rows.json": [{"question": "a", "answer": "b"}]}, format="vicuna-format"
    )
    assert data.examples[0].text == "USER: a\nASSISTANT: b<|im_end|>"


def test_a_template_s_refusal_is_a_broken_row(tmp_path):
    rows = [
        chat("Hi", "No."),
        {"messages": [{"role": "tool", "content": "x"}, {"role": "assistant", "content": "y"}]},
    ]
    data = prepare_rows(tmp_path, family("Mistral"), {"rows.json": rows})
    (problem,) = data.report.problems
    assert problem.startswith(
        "rows.json, row 2: the row is rejected by the model's own chat template: Only user and"
    )


def test_folders_of_rows_and_texts(tmp_path):
    files = {"mix/a.jsonl": [pair()], "mix/b.txt": "A story. It ends.", "mix/c.json": [pair(), pair()]}
    data = prepare_rows(tmp_path, CHATML, files, data=["mix/"])
    assert [(source.name, source.examples) for source in data.report.sources] == [
        ("mix/", 1),
        ("mix/a.jsonl", 1),
        ("mix/c.json", 2),
    ]


def test_the_same_data_give_identical_examples(tmp_path):
    rows = [chat("Hi", "No."), chat("You", "Yes.")]
    first, second = (prepare_rows(tmp_path / name, CHATML, {"rows.jsonl": rows}) for name in "ab")
    assert first.examples.digest() == second.examples.digest()
    other = prepare_rows(tmp_path / "c", CHATML, {"rows.jsonl": rows}, train_on="everything")
    assert other.examples.digest() != first.examples.digest()


@pytest.mark.parametrize("choice", ["auto", "everything"])
def test_the_collator_hides_what_is_not_learned(tmp_path, choice):
    from training_pro.tests.engine.batches import padded_batch

    data = prepare_rows(
        tmp_path, CHATML, {"rows.jsonl": [chat("Hi", "No."), chat("Hi", "No, never.")]}, train_on=choice
    )
    batch = padded_batch(list(data.examples))
    for row, example in enumerate(data.examples):
        assert batch["labels"][row, : len(example.ids)].tolist() == example.labels.tolist()
        assert set(batch["labels"][row, len(example.ids) :].tolist()) <= {-100}
    assert batch["labels"][:, 0].tolist() == [-100, -100]


def test_windows_line_ends_inside_rows_are_normalized(tmp_path):
    """Programs on Windows write them into cells and JSON: the learned tokens are the same on all systems."""
    rows = [pair("One.\nTwo.\n", "Say\nit"), chat("Hi\nthere", "No.\nNever.")]
    for number, row in enumerate(rows):
        unix = prepare_rows(tmp_path / f"{number}a", CHATML, {"rows.json": [row]})
        windows_row = json.loads(json.dumps(row).replace("\\n", "\\r\\n"))
        windows = prepare_rows(tmp_path / f"{number}b", CHATML, {"rows.json": [windows_row]})
        assert windows.examples[0].ids.tolist() == unix.examples[0].ids.tolist()
    csv = b'"question","answer"\r\n"Say\r\nit","One.\r\nTwo."\r\n'
    decoded = CHATML.decode(prepare_rows(tmp_path / "c", CHATML, {"rows.csv": csv}).examples[0].ids.tolist())
    assert "Say\nit" in decoded and "One.\nTwo." in decoded and "\r" not in decoded

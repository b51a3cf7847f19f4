"""What Check reports besides figures: suggestions, padding, stop tokens, memory, and the examples themselves."""

from __future__ import annotations

import pytest
from training_pro.core.engine import PreviewQuery
from training_pro.core.errors import DataError
from training_pro.data.report import preview_examples
from training_pro.tests.chapters import CHAPTERS
from training_pro.tests.rowing import chat, family, prepare_rows, with_template

CHATML = family("ChatML")
SMOL = {
    **{"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30},
    **{"num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True},
    **{"max_position_embeddings": 8192, "torch_dtype": "bfloat16"},
}


def check(root, content, name="a.txt", config=None, **values):
    tokenizer = values.pop("tokenizer", CHATML)
    return prepare_rows(root, tokenizer, {name: content}, config=config, **values).report


def suggestion(report, key):
    return next((s for s in report.suggestions if s.key == key), None)


LONG_TEXT = "A sentence of a few words is here. " * 300
SECTIONS = "One is here. Two is here.\n\n\nThree is here."
SHORT_ENDS = "\n\n\n".join(
    ["One sentence of more words is here. " * 2 + "Two."] * 2 + ["Three is the end of it all."]
)
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
CONVERSATION = chat("Hi", "No.", "You", "Yes. " * 200)
CUT = {"train_on": "everything", "cutoff": 64, "too_long": "cut_end"}


@pytest.mark.parametrize(
    ("content", "template", "values", "stops", "told"),
    [
        ([chat("Hi", "No.")] * 3, None, {}, (3, 3), ""),
        ([chat("Hi", "No.", "You", "Yes.")], PLAIN, {}, (0, 1), "only 0 of 1 examples end with a trained stop"),
        ([CONVERSATION] * 2, None, CUT, (0, 2), "only 0 of 2 examples end with a trained stop token"),
        (SECTIONS, None, {}, (2, 2), ""),
        (SHORT_ENDS, None, {"cutoff": 18, "min_chars": 20}, (1, 3), "only 1 of 3 sections ends with an EOS token"),
        (LONG_TEXT, None, {"cutoff": 64}, (1, 1), "a: no hard cut was found, so there is only one EOS token, at"),
        (LONG_TEXT, None, {"cutoff": 64, "eval_share": 0.1}, (0, 0), "the end of the text is in the validation"),
    ],
)
def test_examples_that_stop_and_those_that_do_not(tmp_path, content, template, values, stops, told):
    tokenizer = with_template(CHATML.tokenizer, template) if template else CHATML
    name = "a.txt" if isinstance(content, str) else "a.json"
    report = check(tmp_path, content, name, tokenizer=tokenizer, **values)
    assert (report.stops.stopping, report.stops.of) == stops
    assert any(told.replace("a:", f"{name}:") in sentence for sentence in report.advice) or not told


SHORT_SECTION = " ".join(f"Sentence {n} is here." for n in range(20))
SHORT_SECTIONS = "\n\n\n".join([SHORT_SECTION] * 5)
ONE_SENTENCE_EACH = "\n\n\n".join(f"Sentence {n} is here." for n in range(50))


def check_windows(root, text=SHORT_SECTIONS, **values):
    report = check(root, text, **{"chunking": "dementor", "cutoff": 4096, **values})
    return report, [each for each in report.advice if "DEMENTOR" in each]


def test_dementor_that_repeats_nothing_gets_a_cutoff(tmp_path):
    report, (sentence,) = check_windows(tmp_path / "a", dementor_repeats=3)
    assert sentence.startswith("DEMENTOR has nothing to repeat: the longest section has ")
    (found,) = [each for each in report.suggestions if each.key == "cutoff"]
    assert found.why == sentence and f"With a cutoff of {found.value}, each sentence is seen " in sentence
    better, sentences = check_windows(tmp_path / "b", dementor_repeats=3, cutoff=found.value)
    assert sentences == [] and 2.5 < better.sources[0].text.seen_mean < 3.5


@pytest.mark.parametrize(
    ("text", "values", "end", "suggested"),
    [
        (SHORT_SECTIONS, {"dementor_repeats": 200}, "each sentence 200 times, use longer sections.", True),
        (ONE_SENTENCE_EACH, {}, "because the sections have too few sentences. Use fewer hard cuts.", False),
        (SHORT_SECTION, {"cutoff": 64}, "", False),
        (SHORT_SECTION, {"dementor_repeats": 1}, "", False),
    ],
)
def test_what_is_possible_with_dementor_is_said(tmp_path, text, values, end, suggested):
    report, sentences = check_windows(tmp_path, text, **values)
    assert [sentence.endswith(end) for sentence in sentences] == [True] * bool(end)
    assert any(s.key == "cutoff" and not s.keep for s in report.suggestions) == suggested


@pytest.mark.parametrize(
    ("line", "mark"),
    [("Kapitel {}", "\\nKapitel"), ("---", "\\n---"), ("He said Chapter {} was over, and it was.", "")],
)
def test_a_repeated_divider_is_suggested_as_the_hard_cut(tmp_path, line, mark):
    parts = (f"{line.format(n)}\n\nIt rained. The cat slept on.\n" for n in range(1, 5))
    text = "".join(["Once.\n", *parts])
    found = suggestion(check(tmp_path / "a", text), "hard_cut")
    assert (found.value if found else "") == mark
    if mark:
        assert "4 times at the start of a line" in found.why
        report = check(tmp_path / "b", text, hard_cut=mark)
        assert report.stops.of == 5 and not suggestion(report, "hard_cut")


@pytest.mark.parametrize("text", ["The Lamp\n========\n\nIt rained.\n\n", "---\ntags: [a]\n---\nIt rained.\n\n"])
def test_what_underlines_a_heading_or_ends_front_matter_divides_nothing(tmp_path, text):
    assert not suggestion(check(tmp_path, text if text[0] == "-" else 4 * text), "hard_cut")


def test_headings_of_two_lines_stay_with_their_text(tmp_path):
    chapters = (f"CHAPTER {n}.\nThe Bridge\n\n\nIt rained. The cat slept on.\n\n\n\n" for n in ("I", "II", "III"))
    found = suggestion(check(tmp_path, "".join(chapters)), "hard_cut")
    assert found and found.value == r"\n\n\n\n"


BOOK = "The ferry left at six. Nobody was on board."
FRAMED = (
    "The Project Gutenberg EBook of The Ferry\n\n*** START OF THIS PROJECT GUTENBERG EBOOK THE FERRY ***\n\n\n"
    f"{BOOK}\n\n\nEnd of the Project Gutenberg EBook of The Ferry\n\nThe license.\n"
)


def test_boilerplate_is_named_and_dropped_when_asked_for(tmp_path):
    found = suggestion(check(tmp_path / "a", FRAMED), "drop_boilerplate")
    assert (found.value, found.words, found.keep) == (True, "on", False)
    assert found.why.startswith("a.txt has 2 publisher notices (159 characters).")
    data = prepare_rows(tmp_path / "b", CHATML, {"a.txt": FRAMED}, drop_boilerplate=True)
    assert not suggestion(data.report, "drop_boilerplate")
    assert "Dropped from a.txt: 2 publisher notices (159 characters)." in data.report.text()
    assert "".join(example.text for example in data.examples).removesuffix("<|im_end|>").strip() == BOOK
    with pytest.raises(DataError, match=r"a.txt: everything in it looks like boilerplate. Turn off 'Drop"):
        check(tmp_path / "c", FRAMED.replace(BOOK, ""), drop_boilerplate=True)


def preview(examples, query, tokenizer=CHATML):
    return preview_examples(examples, query, tokenizer.decode, tokenizer.stops)


def test_examples_are_shown_with_what_is_learned(tmp_path):
    files = {"rows.jsonl": [chat(f"Hi {n}", "No.") for n in range(2)], "a.txt": "One is here."}
    row, _, text = preview(prepare_rows(tmp_path, CHATML, files).examples, PreviewQuery(5))
    assert [(p.text, p.learned, p.special) for p in row.pieces] == [
        *(("<|im_start|>", False, True), ("user\nHi 0", False, False), ("<|im_end|>", False, True)),
        *(("\n", False, False), ("<|im_start|>", False, True), ("assistant\n", False, False)),
        *(("No.", True, False), ("<|im_end|>", True, True), ("\n", False, False)),
    ]
    assert row.text().endswith("<|im_start|>assistant\n⟦No.<|im_end|>⟧\n")
    assert "".join(p.text for p in text.pieces) == "One is here.<|im_end|>"
    assert (row.source, row.place, text.source) == ("rows.jsonl", "line 1", "a.txt")


def test_a_few_examples_are_of_the_whole_text_and_of_each_source(tmp_path):
    text = "\n\n\n".join(f"This is number {n} of thirty." for n in range(30))
    files = {"a.txt": text, "b.jsonl": [chat(f"B{n}", "No.") for n in range(30)]}
    data = prepare_rows(tmp_path, CHATML, files, cutoff=128, overlap=False)
    shown = [(s.source, s.place) for s in preview(data.examples, PreviewQuery(4))]
    assert [source for source, _ in shown] == ["a.txt"] * 2 + ["b.jsonl"] * 2
    assert [place for _, place in shown[2:]] == ["line 1", "line 16"]


def test_the_report_contains_all_of_it(tmp_path):
    report = check(tmp_path / "a", [chat("Hi", "No.")] * 2, "rows.jsonl", config=SMOL)
    for line in (
        "Suggestion: epochs = 10.",
        "Fine as it is: rank = 32. A LoRA of rank 32 has ",
        "Stop tokens: all 2 rows end with a stop token, which teaches the model to stop there",
        "EOS <|im_end|>",
        "Padding: 0% shuffled",
        "Expected memory",
    ):
        assert line in report.text()
    assert [s["key"] for s in report.as_json()["suggestions"] if not s["keep"]] == ["epochs"]
    assert report.as_json()["memory"]["total"] == report.memory.total
    report = check(tmp_path / "b", CHAPTERS, cutoff=64)
    (line,) = (line for line in report.text().splitlines() if line.startswith("Suggestion: hard_cut"))
    assert line.startswith(r"Suggestion: hard_cut = \nChapter. a.txt: 'Chapter' appears 3 times")


def test_the_recipe_of_a_cleaned_dataset_is_named(tmp_path):
    rows = [chat("Hi", "No.")] * 3
    recipe = {"a.json.recipe.json": '{"near_duplicates": 0.8, "min_words": 2, "applied": {"kept": 3}}'}
    notes = prepare_rows(tmp_path / "a", CHATML, {"a.json": rows, **recipe}, data=["a.json"]).report.notes
    assert "a.json was cleaned: min_words=2, near_duplicates=0.8" in notes
    damaged = {"a.json": rows, "a.json.recipe.json": "{"}
    assert not any(
        "cleaned" in each for each in prepare_rows(tmp_path / "b", CHATML, damaged, data=["a.json"]).report.notes
    )

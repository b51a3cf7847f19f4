"""What Check reports besides figures: suggestions, padding, stop tokens, memory, and the examples themselves."""

from __future__ import annotations

import re
import textwrap

import pytest
from training_pro.core.engine import PreviewQuery
from training_pro.core.errors import DataError
from training_pro.core.findings import Suggestion
from training_pro.core.host import DeviceMemory, ModelCard
from training_pro.data.prepare import check_datasets
from training_pro.data.report import preview_examples
from training_pro.data.report.report_stats import padding_shares
from training_pro.settings.parsing import training_settings
from training_pro.tests.chapters import CHAPTERS
from training_pro.tests.fakes import make_folders
from training_pro.tests.rowing import FAMILIES, chat, family, prepare_rows, with_template

CHATML = family("ChatML")
SMOL = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


def pair(words):
    return {"instruction": "Hi", "output": " ".join(["word"] * words)}


def suggested(tmp_path, rows, **values):
    data = prepare_rows(tmp_path, CHATML, {"rows.json": rows}, **values)
    return {s.key: s.value for s in data.report.suggestions if not s.keep}


def test_good_settings_get_no_suggestions(tmp_path):
    assert suggested(tmp_path, [pair(n % 9 + 1) for n in range(100)]) == {}


def test_a_cutoff_that_truncates_rows(tmp_path):
    data = prepare_rows(
        tmp_path, CHATML, {"rows.json": [pair(n % 90 + 1) for n in range(99)]}, cutoff=64, too_long="cut_end"
    )
    untruncated = prepare_rows(tmp_path / "b", CHATML, {"rows.json": [pair(90)]}).report
    assert data.report.suggestions[0] == Suggestion(
        "cutoff", untruncated.cutoff, f"The longest row has {untruncated.longest} tokens, and the cutoff is 64."
    )


@pytest.mark.parametrize(
    ("rows", "values", "expected"),
    [
        (8, {"accumulation": 9, "max_steps": 40}, {"accumulation": 2}),
        (8, {}, {"epochs": 10.0}),
        (40, {"warmup_steps": 15}, {"warmup_steps": 0.05, "epochs": 3.0}),
        (3000, {"batch_size": 1}, {"save_every": 600}),
    ],
)
def test_suggestions(tmp_path, rows, values, expected):
    assert suggested(tmp_path, [pair(n % 9 + 1) for n in range(rows)], **values) == expected


def test_padding_under_each_order():
    lengths = [10, 20, 10, 20, 10, 20, 10, 20]
    shares = padding_shares(lengths, 2, 1)
    assert (shares["sequential"], shares["by_length"], shares["packed"]) == (0.25, 0.0, 0.0)
    assert 0 <= shares["shuffled"] <= 0.25
    assert padding_shares([5, 5, 5], 2, 1) == {"shuffled": 0, "by_length": 0, "sequential": 0, "packed": 0}


def test_rows_that_stop_and_rows_that_do_not(tmp_path):
    data = prepare_rows(tmp_path / "a", CHATML, {"rows.jsonl": [chat("Hi", "No.")] * 3})
    assert (data.report.stops.stopping, data.report.stops.of) == (3, 3)
    plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    without = with_template(CHATML.tokenizer, plain)
    data = prepare_rows(tmp_path / "b", without, {"rows.jsonl": [chat("Hi", "No.", "You", "Yes.")]})
    assert (data.report.stops.stopping, data.report.stops.of) == (0, 1)
    assert any("only 0 of 1 examples end with a trained stop token" in sentence for sentence in data.report.advice)


@pytest.mark.parametrize("template", FAMILIES)
@pytest.mark.parametrize("values", [{"train_on": "everything"}, {"train_only_after": "Hi"}, {}])
def test_rows_stop_where_spaces_follow_the_stop_token(tmp_path, template, values):
    """ChatML puts a line break after <|im_end|>, and it is trained on too where everything is."""
    rows = [chat("Hi", f"No {n}.", "You", "Yes.") for n in range(14)]
    report = prepare_rows(tmp_path, family(template), {"rows.jsonl": rows}, **values).report
    assert (report.stops.stopping, report.stops.of) == (14, 14)
    assert report.stops.words() == "all 14 rows end with a stop token, which teaches the model to stop there"
    assert not any("stop token" in sentence for sentence in report.advice)


def test_the_stop_token_of_an_earlier_turn_does_not_count(tmp_path):
    rows = [chat("Hi", "No.", "You", "Yes. " * 200)] * 2
    values = {"train_on": "everything", "cutoff": 64, "too_long": "cut_end"}
    report = prepare_rows(tmp_path, CHATML, {"rows.jsonl": rows}, **values).report
    assert (report.stops.stopping, report.stops.of) == (0, 2)
    assert any("only 0 of 2 examples end with a trained stop token" in sentence for sentence in report.advice)


def test_ends_of_sections_that_stop(tmp_path):
    text = "One is here. Two is here.\n\n\nThree is here."
    data = prepare_rows(tmp_path / "a", CHATML, {"a.txt": text})
    assert (data.report.stops.stopping, data.report.stops.of) == (2, 2)
    data = prepare_rows(tmp_path / "b", CHATML, {"a.txt": text}, add_eos="never")
    assert (data.report.stops.stopping, data.report.stops.of) == (0, 2)


SHORT_SECTION = " ".join(f"Sentence {n} is here." for n in range(20))


@pytest.mark.parametrize("repeats", [0, 3])
def test_dementor_that_repeats_nothing_gets_a_cutoff(tmp_path, repeats):
    text, values = "\n\n\n".join([SHORT_SECTION] * 5), {"chunking": "dementor", "dementor_repeats": repeats}
    report = prepare_rows(tmp_path / "a", CHATML, {"a.txt": text}, cutoff=4096, **values).report
    (sentence,) = [each for each in report.advice if "DEMENTOR" in each]
    assert sentence.startswith("DEMENTOR has nothing to repeat: the longest section has ")
    (suggestion,) = [each for each in report.suggestions if each.key == "cutoff"]
    assert suggestion.why == sentence
    assert f"With a cutoff of {suggestion.value}, each sentence is seen " in sentence
    better = prepare_rows(tmp_path / "b", CHATML, {"a.txt": text}, cutoff=suggestion.value, **values).report
    assert not any("DEMENTOR" in each for each in better.advice)
    seen = better.sources[0].text.seen_mean
    assert seen > 2.5
    assert not repeats or seen < 3.5


def test_dementor_that_cannot_repeat_so_often_says_what_is_possible(tmp_path):
    text, values = "\n\n\n".join([SHORT_SECTION] * 5), {"chunking": "dementor", "dementor_repeats": 200}
    report = prepare_rows(tmp_path, CHATML, {"a.txt": text}, cutoff=4096, **values).report
    (sentence,) = [each for each in report.advice if "DEMENTOR" in each]
    assert sentence.endswith(
        "the most that these sections allow. To repeat each sentence 200 times, use longer sections."
    )
    assert [each.key for each in report.suggestions if each.key == "cutoff"] == ["cutoff"]


@pytest.mark.parametrize(("name", "told"), [("story.txt", 1), ("chats.json", 0)])
def test_a_note_on_dementor_windows_is_for_text_only(tmp_path, name, told):
    """Check of chats spoke of DEMENTOR windows, because that setting was on."""
    content = "\n".join(CHAPTERS) if name.endswith("txt") else [chat("Hi", "No.")] * 9
    data = prepare_rows(tmp_path, CHATML, {name: content}, chunking="dementor", overlap=True)
    assert sum("DEMENTOR windows" in note for note in data.report.notes) == told


def test_dementor_with_a_sentence_in_each_section_can_repeat_nothing(tmp_path):
    text = "\n\n\n".join(f"Sentence {n} is here." for n in range(50))
    report = prepare_rows(tmp_path, CHATML, {"a.txt": text}, chunking="dementor").report
    (sentence,) = [each for each in report.advice if "DEMENTOR" in each]
    assert sentence.endswith("because the sections have too few sentences. Use fewer hard cuts.")
    assert not [each for each in report.suggestions if each.key == "cutoff" and not each.keep]


@pytest.mark.parametrize("values", [{"cutoff": 64}, {"chunking": "blocks"}, {"dementor_repeats": 1}])
def test_no_advice_where_dementor_repeats_or_need_not(tmp_path, values):
    settings = {"chunking": "dementor", "cutoff": 4096, **values}
    report = prepare_rows(tmp_path, CHATML, {"a.txt": SHORT_SECTION}, **settings).report
    assert not any("DEMENTOR" in each for each in report.advice)


def test_a_long_text_with_one_end_token_gets_advice(tmp_path):
    text = "A sentence of a few words is here. " * 300
    (sentence,) = prepare_rows(tmp_path, CHATML, {"a.txt": text}, cutoff=64).report.advice
    assert sentence.startswith("a.txt: no hard cut was found, so there is only one EOS token, at the end")


def test_advice_where_the_only_end_token_is_in_the_validation_data(tmp_path):
    text = "A sentence of a few words is here. " * 300
    report = prepare_rows(tmp_path, CHATML, {"a.txt": text}, cutoff=64, eval_share=0.1).report
    assert (report.stops.stopping, report.stops.of) == (0, 0)
    assert any(
        sentence.startswith("a.txt: no hard cut was found, and the end of the text is in the validation split")
        for sentence in report.advice
    )


@pytest.mark.parametrize(
    ("line", "mark"),
    [
        ("Chapter {}", "\\nChapter"),
        ("CHAPTER {}: In which it rains", "\\nCHAPTER"),
        ("Kapitel {}", "\\nKapitel"),
        ("---", "\\n---"),
        ("* * *", "* * *"),
        ("  ***", "***"),
        ("He said Chapter {} was over, and it was.", ""),
        ("", ""),
    ],
)
def test_a_repeated_divider_is_suggested_as_the_hard_cut(tmp_path, line, mark):
    parts = (f"{line.format(n)}\n\nIt rained. The cat slept on.\n" for n in range(1, 5))
    text = {"a.txt": "".join(["Once.\n", *parts])}
    suggestions = [s for s in prepare_rows(tmp_path, CHATML, text).report.suggestions if s.key == "hard_cut"]
    assert [s.value for s in suggestions] == ([mark] if mark else [])
    if mark:
        assert "4 times at the start of a line" in suggestions[0].why
        report = prepare_rows(tmp_path / "b", CHATML, text, hard_cut=mark).report
        assert report.stops.of == 5
        assert not [s for s in report.suggestions if s.key == "hard_cut"]


def test_headings_that_stand_alone_get_a_wider_hard_cut(tmp_path):
    """As Project Gutenberg sets its books: three empty lines before a heading, two after it."""
    text = {
        "a.txt": "".join(f"Chapter {n}\n\n\n{'It rained. The cat slept on. ' * 5}\n\n\n\n" for n in range(1, 5))
    }
    report = prepare_rows(tmp_path, CHATML, text).report
    suggestion = next(s for s in report.suggestions if s.key == "hard_cut")
    assert suggestion.value == r"\n\n\n\n"
    assert suggestion.why.startswith("a.txt: 4 sections have only a heading, so the model would learn to")
    wider = prepare_rows(tmp_path / "b", CHATML, text, hard_cut=suggestion.value).report
    assert not [s for s in wider.suggestions if s.key == "hard_cut"]
    assert wider.stops.of == 4


def test_empty_lines_with_spaces_in_them_are_suggested_as_the_hard_cut(tmp_path):
    text = {"a.txt": "".join(f"It rained on day {n}.\n\n \n" for n in range(1, 5))}
    report = prepare_rows(tmp_path, CHATML, text).report
    suggestion = next(s for s in report.suggestions if s.key == "hard_cut")
    assert suggestion.value == r"\n\n \n"
    assert prepare_rows(tmp_path / "b", CHATML, text, hard_cut=suggestion.value).report.stops.of == 4


BOOK = "The ferry left at six. Nobody was on board."
FRAMED = (
    "The Project Gutenberg EBook of The Ferry\n\n*** START OF THIS PROJECT GUTENBERG EBOOK THE FERRY ***\n\n\n"
    f"{BOOK}\n\n\nEnd of the Project Gutenberg EBook of The Ferry\n\nThe license.\n"
)


def test_wrapped_lines_are_named_and_joined_when_asked_for(tmp_path):
    words = ("looked", "waited", "slept") * 10
    paragraphs = [f"the traveller sat down, and {word} at it again; " * 12 for word in words]
    wrapped = "\n\n".join(textwrap.fill(paragraph, 70) for paragraph in paragraphs)
    files = {"wrapped.txt": wrapped, "long.txt": "\n\n".join(paragraphs)}
    report = prepare_rows(tmp_path, CHATML, files).report
    (suggestion,) = [s for s in report.suggestions if s.key == "join_lines"]
    assert (suggestion.value, suggestion.keep) == (True, False)
    assert re.match(r"wrapped\.txt: the lines are wrapped at about (6[89]|70) characters\.", suggestion.why)
    data = prepare_rows(tmp_path / "b", CHATML, files, join_lines=True)
    assert not [s for s in data.report.suggestions if s.key == "join_lines"]
    (source, _) = data.report.sources
    assert re.match(r"Joined the lines of wrapped\.txt, which were wrapped at about ", source.notes[0])
    joined = str(data.examples.sources[0].sliced.text)
    assert joined == "\n\n".join(paragraph.strip() for paragraph in paragraphs)
    assert source.text.characters_lost == 0


def test_boilerplate_is_named_and_dropped_when_asked_for(tmp_path):
    found = prepare_rows(tmp_path, CHATML, {"ferry.txt": FRAMED}).report
    suggestion = next(s for s in found.suggestions if s.key == "drop_boilerplate")
    assert (suggestion.value, suggestion.words, suggestion.keep) == (True, "on", False)
    assert (
        suggestion.why
        == "ferry.txt has 2 publisher notices (159 characters). The model would learn this text, too."
    )
    dropped = prepare_rows(tmp_path / "b", CHATML, {"ferry.txt": FRAMED}, drop_boilerplate=True)
    assert not [s for s in dropped.report.suggestions if s.key == "drop_boilerplate"]
    assert "Dropped from ferry.txt: 2 publisher notices (159 characters)." in dropped.report.text()
    shown = preview_examples(dropped.examples, PreviewQuery(9), CHATML.decode, CHATML.stops)
    assert (
        "".join(piece.text for example in shown for piece in example.pieces if not piece.special).strip() == BOOK
    )
    assert dropped.report.sources[0].text.characters_lost == 0


def test_a_text_of_boilerplate_alone_is_refused_with_the_setting(tmp_path):
    with pytest.raises(DataError, match=r"ferry.txt: everything in it looks like boilerplate. Turn off 'Drop"):
        prepare_rows(tmp_path, CHATML, {"ferry.txt": FRAMED.replace(BOOK, "")}, drop_boilerplate=True)


def test_examples_are_shown_with_what_is_learned(tmp_path):
    data = prepare_rows(tmp_path, CHATML, {"rows.jsonl": [chat("Hi", "No.")], "a.txt": "One is here."})
    row, text = preview_examples(data.examples, PreviewQuery(5), CHATML.decode, CHATML.stops)
    assert [(p.text, p.learned, p.special) for p in row.pieces] == [
        ("<|im_start|>", False, True),
        ("user\nHi", False, False),
        ("<|im_end|>", False, True),
        ("\n", False, False),
        ("<|im_start|>", False, True),
        ("assistant\n", False, False),
        ("No.", True, False),
        ("<|im_end|>", True, True),
        ("\n", False, False),
    ]
    assert row.text().endswith("<|im_start|>assistant\n⟦No.<|im_end|>⟧\n")
    assert "".join(p.text for p in text.pieces) == "One is here.<|im_end|>"
    assert (row.source, row.place, text.source) == ("rows.jsonl", "line 1", "a.txt")


def test_examples_are_shown_of_each_source_in_turn(tmp_path):
    files = {
        "a.jsonl": [chat(f"A{n}", "No.") for n in range(5)],
        "b.jsonl": [chat(f"B{n}", "No.") for n in range(5)],
    }
    data = prepare_rows(tmp_path, CHATML, files)
    places = [
        (s.source, s.place) for s in preview_examples(data.examples, PreviewQuery(3), CHATML.decode, CHATML.stops)
    ]
    assert places == [("a.jsonl", "line 1"), ("a.jsonl", "line 3"), ("b.jsonl", "line 1")]


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        (PreviewQuery(2, first=3), [3, 4]),
        (PreviewQuery(9, first=5), [5]),
        (PreviewQuery(9, first=6), []),
        (PreviewQuery(2, first=3, backward=True), [3, 2]),
        (PreviewQuery(1, first=99, backward=True), [5]),
        (PreviewQuery(9, containing="a CAT"), [2, 4]),
        (PreviewQuery(1, first=3, containing="a CAT"), [4]),
        (PreviewQuery(1, first=3, containing="a CAT", backward=True), [2]),
        (PreviewQuery(1, first=5, containing="a CAT"), []),
    ],
)
def test_examples_are_browsed_by_number_and_by_words(tmp_path, query, numbers):
    rows = [chat(f"Row {n}", "No, a cat." if n % 2 == 0 else "Yes.") for n in range(1, 6)]
    data = prepare_rows(tmp_path, CHATML, {"a.jsonl": rows})
    previews = preview_examples(data.examples, query, CHATML.decode, CHATML.stops)
    assert [s.number for s in previews] == numbers
    assert all(s.place == f"line {s.number}" for s in previews)


def test_memory_is_estimated_from_the_settings(tmp_path):
    def total(name, machine=None, loading="auto", **values):
        folders = make_folders(tmp_path / name)
        (folders.datasets / "a.txt").write_text("A sentence is here. " * 400, encoding="utf-8")
        settings = training_settings({"name": "a", "data": ["a.txt"], **values})
        card = ModelCard("toy", SMOL, CHATML.tokenizer, loading)
        return check_datasets(settings, folders, card, CHATML, lambda text, share: None, machine=machine).memory

    card = DeviceMemory("A card", 0, 24 * 10**9)
    cpu, half, quarter = total("a"), total("b", card), total("c", card, "4bit")
    assert cpu.weights == 4 * 134_515_008
    assert half.weights == 2 * 134_515_008
    assert quarter.weights < half.weights < cpu.weights
    assert total("d", card, gradient_checkpointing="on").activations < half.activations
    assert total("e", card, rank=64).lora == 2 * half.lora
    assert total("f", card, optimizer="adamw_8bit").optimizer == half.optimizer // 4
    assert total("g", card, targets="q-v").lora < half.lora
    assert total("h", card, train_head=True).lora > half.lora
    assert half.words().startswith("2.12 GB (activations")


@pytest.mark.parametrize(
    ("loading", "on_card", "dtype"),
    [
        ("auto", True, "bfloat16"),
        ("auto", False, "float32"),
        ("4bit", True, "4bit"),
        ("float16", False, "float16"),
    ],
)
def test_how_weights_are_held(loading, on_card, dtype):
    assert ModelCard("toy", SMOL, None, loading).weight_precision(on_card=on_card) == dtype


def test_a_model_of_unknown_size_has_no_estimate(tmp_path):
    assert prepare_rows(tmp_path, CHATML, {"rows.json": [pair(3)]}).report.memory is None


def test_the_report_contains_all_of_it(tmp_path):
    data = prepare_rows(tmp_path, CHATML, {"rows.jsonl": [chat("Hi", "No.")] * 2}, config=SMOL)
    text = data.report.text()
    for line in (
        "Suggestion: epochs = 10.",
        "Stop tokens: all 2 rows end with a stop token, which teaches the model to stop there",
        "EOS <|im_end|>",
        "Padding: 0% shuffled",
        "Expected memory",
    ):
        assert line in text
    as_json = data.report.as_json()
    assert [s["key"] for s in as_json["suggestions"] if not s["keep"]] == ["epochs"]
    assert "Fine as it is: rank = 32. A LoRA of rank 32 has " in text
    assert as_json["memory"]["total"] == data.report.memory.total


def test_a_hard_cut_is_suggested_on_one_line_of_the_console(tmp_path):
    report = prepare_rows(tmp_path, CHATML, {"pride.txt": CHAPTERS}, cutoff=64).report
    (line,) = (line for line in report.text().splitlines() if line.startswith("Suggestion: hard_cut"))
    assert line.startswith(r"Suggestion: hard_cut = \nChapter. pride.txt: 'Chapter' appears 3 times")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (256, "256"),
        (1_000_000, "1000000"),
        (10.0, "10"),
        (0.05, "0.05"),
        ("\n\nChapter", r"\n\nChapter"),
        (r"\nChapter", r"\nChapter"),
        ("", "nothing"),
        (True, "on"),
        (False, "off"),
    ],
)
def test_a_suggested_value_is_shown_by_its_type(value, words):
    assert Suggestion("hard_cut", value, "").words == words

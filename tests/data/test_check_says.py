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
from training_pro.settings.parsing import training_settings
from training_pro.tests.chapters import CHAPTERS
from training_pro.tests.fakes import make_folders
from training_pro.tests.rowing import FAMILIES, chat, family, prepare_rows, with_template

CHATML = family("ChatML")
SMOL = {
    **{"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30},
    **{"num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True},
    **{"max_position_embeddings": 8192, "torch_dtype": "bfloat16"},
}


def pair(words):
    return {"instruction": "Hi", "output": " ".join(["word"] * words)}


def check(root, content, name="a.txt", config=None, **values):
    tokenizer = values.pop("tokenizer", CHATML)
    return prepare_rows(root, tokenizer, {name: content}, config=config, **values).report


def suggestion(report, key):
    return next((s for s in report.suggestions if s.key == key), None)


@pytest.mark.parametrize(
    ("rows", "values", "expected"),
    [
        (100, {}, {}),
        (8, {"accumulation": 9, "max_steps": 40}, {"accumulation": 2}),
        (8, {}, {"epochs": 10.0}),
        (40, {"warmup_steps": 15}, {"warmup_steps": 0.05, "epochs": 3.0}),
        (3000, {"batch_size": 1}, {"save_every": 600}),
    ],
)
def test_suggestions(tmp_path, rows, values, expected):
    report = check(tmp_path, [pair(n % 9 + 1) for n in range(rows)], "rows.json", **values)
    assert {s.key: s.value for s in report.suggestions if not s.keep} == expected


def test_a_cutoff_that_truncates_rows(tmp_path):
    rows = [pair(n % 90 + 1) for n in range(99)]
    report = check(tmp_path / "a", rows, "rows.json", cutoff=64, too_long="cut_end")
    whole = check(tmp_path / "b", [pair(90)], "rows.json")
    reason = f"The longest row has {whole.longest} tokens, and the cutoff is 64."
    assert report.suggestions[0] == Suggestion("cutoff", whole.cutoff, reason)


LONG_TEXT = "A sentence of a few words is here. " * 300
SECTIONS = "One is here. Two is here.\n\n\nThree is here."
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
CONVERSATION = chat("Hi", "No.", "You", "Yes. " * 200)
CUT = {"train_on": "everything", "cutoff": 64, "too_long": "cut_end"}


@pytest.mark.parametrize(
    ("content", "template", "values", "stops", "told"),
    [
        ([chat("Hi", "No.")] * 3, None, {}, (3, 3), ""),
        (
            [chat("Hi", "No.", "You", "Yes.")],
            PLAIN,
            {},
            (0, 1),
            "only 0 of 1 examples end with a trained stop",
        ),
        ([CONVERSATION] * 2, None, CUT, (0, 2), "only 0 of 2 examples end with a trained stop token"),
        (SECTIONS, None, {}, (2, 2), ""),
        (SECTIONS, None, {"add_eos": "never"}, (0, 2), ""),
        (LONG_TEXT, None, {"cutoff": 64}, (1, 1), "a: no hard cut was found, so there is only one EOS token, at"),
        (
            LONG_TEXT,
            None,
            {"cutoff": 64, "eval_share": 0.1},
            (0, 0),
            "the end of the text is in the validation",
        ),
    ],
)
def test_examples_that_stop_and_those_that_do_not(tmp_path, content, template, values, stops, told):
    tokenizer = with_template(CHATML.tokenizer, template) if template else CHATML
    name = "a.txt" if isinstance(content, str) else "a.json"
    report = check(tmp_path, content, name, tokenizer=tokenizer, **values)
    assert (report.stops.stopping, report.stops.of) == stops
    assert any(told.replace("a:", f"{name}:") in sentence for sentence in report.advice) or not told


@pytest.mark.parametrize("template", FAMILIES)
@pytest.mark.parametrize("values", [{"train_on": "everything"}, {"train_only_after": "Hi"}, {}])
def test_rows_stop_where_spaces_follow_the_stop_token(tmp_path, template, values):
    """ChatML puts a line break after <|im_end|>, and it is trained on too where everything is."""
    rows = [chat("Hi", f"No {n}.", "You", "Yes.") for n in range(14)]
    report = check(tmp_path, rows, "rows.jsonl", tokenizer=family(template), **values)
    assert report.stops.words() == "all 14 rows end with a stop token, which teaches the model to stop there"
    assert not any("stop token" in sentence for sentence in report.advice)


SHORT_SECTION = " ".join(f"Sentence {n} is here." for n in range(20))
SHORT_SECTIONS = "\n\n\n".join([SHORT_SECTION] * 5)
ONE_SENTENCE_EACH = "\n\n\n".join(f"Sentence {n} is here." for n in range(50))


def check_windows(root, text=SHORT_SECTIONS, **values):
    report = check(root, text, **{"chunking": "dementor", "cutoff": 4096, **values})
    return report, [each for each in report.advice if "DEMENTOR" in each]


@pytest.mark.parametrize("repeats", [0, 3])
def test_dementor_that_repeats_nothing_gets_a_cutoff(tmp_path, repeats):
    report, (sentence,) = check_windows(tmp_path / "a", dementor_repeats=repeats)
    assert sentence.startswith("DEMENTOR has nothing to repeat: the longest section has ")
    (found,) = [each for each in report.suggestions if each.key == "cutoff"]
    assert found.why == sentence
    assert f"With a cutoff of {found.value}, each sentence is seen " in sentence
    better, sentences = check_windows(tmp_path / "b", dementor_repeats=repeats, cutoff=found.value)
    seen = better.sources[0].text.seen_mean
    assert sentences == [] and seen > 2.5 and (not repeats or seen < 3.5)


@pytest.mark.parametrize(
    ("text", "values", "end", "suggested"),
    [
        (
            SHORT_SECTIONS,
            {"dementor_repeats": 200},
            "each sentence 200 times, use longer sections.",
            True,
        ),
        (ONE_SENTENCE_EACH, {}, "because the sections have too few sentences. Use fewer hard cuts.", False),
        (SHORT_SECTION, {"cutoff": 64}, "", False),
        (SHORT_SECTION, {"chunking": "blocks"}, "", False),
        (SHORT_SECTION, {"dementor_repeats": 1}, "", False),
    ],
)
def test_what_is_possible_with_dementor_is_said(tmp_path, text, values, end, suggested):
    report, sentences = check_windows(tmp_path, text, **values)
    assert [sentence.endswith(end) for sentence in sentences] == [True] * bool(end)
    assert any(s.key == "cutoff" and not s.keep for s in report.suggestions) == suggested


@pytest.mark.parametrize(("name", "told"), [("story.txt", 1), ("chats.json", 0)])
def test_a_note_on_dementor_windows_is_for_text_only(tmp_path, name, told):
    """Check of chats spoke of DEMENTOR windows, because that setting was on."""
    content = "\n".join(CHAPTERS) if name.endswith("txt") else [chat("Hi", "No.")] * 9
    report = check(tmp_path, content, name, chunking="dementor", overlap=True)
    assert sum("DEMENTOR windows" in note for note in report.notes) == told


@pytest.mark.parametrize(
    ("line", "mark"),
    [
        ("CHAPTER {}: In which it rains", "\\nCHAPTER"),
        ("Kapitel {}", "\\nKapitel"),
        ("---", "\\n---"),
        ("  ***", "***"),
        ("He said Chapter {} was over, and it was.", ""),
        ("", ""),
    ],
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


@pytest.mark.parametrize(
    ("part", "mark", "why"),
    [  # as Project Gutenberg sets its books: three empty lines before a heading, two after it
        (
            "Chapter {}\n\n\n" + "It rained. " * 5 + "\n\n\n\n",
            r"\n\n\n\n",
            "a.txt: 4 sections have only a",
        ),
        ("It rained on day {}.\n\n \n", r"\n\n \n", "a.txt: "),
    ],
)
def test_a_wider_hard_cut_is_suggested(tmp_path, part, mark, why):
    text = "".join(part.format(n) for n in range(1, 5))
    found = suggestion(check(tmp_path / "a", text), "hard_cut")
    assert found.value == mark and found.why.startswith(why)
    wider = check(tmp_path / "b", text, hard_cut=mark)
    assert wider.stops.of == 4 and not suggestion(wider, "hard_cut")


BOOK = "The ferry left at six. Nobody was on board."
FRAMED = (
    "The Project Gutenberg EBook of The Ferry\n\n*** START OF THIS PROJECT GUTENBERG EBOOK THE FERRY ***\n\n\n"
    f"{BOOK}\n\n\nEnd of the Project Gutenberg EBook of The Ferry\n\nThe license.\n"
)


def test_wrapped_lines_are_named_and_joined_when_asked_for(tmp_path):
    words = ("looked", "waited", "slept") * 10
    paragraphs = [f"the traveller sat down, and {word} at it again; " * 12 for word in words]
    wrapped = "\n\n".join(textwrap.fill(paragraph, 70) for paragraph in paragraphs)
    found = suggestion(check(tmp_path / "a", wrapped), "join_lines")
    assert (found.value, found.keep) == (True, False)
    assert re.match(r"a\.txt: the lines are wrapped at about (6[89]|70) characters\.", found.why)
    data = prepare_rows(tmp_path / "b", CHATML, {"a.txt": wrapped}, join_lines=True)
    assert not suggestion(data.report, "join_lines")
    assert data.report.sources[0].notes[0].startswith("Joined the lines of a.txt, which were wrapped at about ")
    joined = str(data.examples.sources[0].sliced.text)
    assert joined == "\n\n".join(paragraph.strip() for paragraph in paragraphs)
    assert not suggestion(check(tmp_path / "c", joined), "join_lines")


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
    data = prepare_rows(tmp_path / "a", CHATML, {"a.txt": text}, cutoff=128, overlap=False)
    assert [example.number for example in preview(data.examples, PreviewQuery(3))] == [1, 11, 21]
    files = {f"{name}.jsonl": [chat(f"{name}{n}", "No.") for n in range(5)] for name in "ab"}
    data = prepare_rows(tmp_path / "b", CHATML, files)
    places = [(s.source, s.place) for s in preview(data.examples, PreviewQuery(3))]
    assert places == [("a.jsonl", "line 1"), ("a.jsonl", "line 3"), ("b.jsonl", "line 1")]


@pytest.mark.parametrize("text", ["红楼梦第一回。甄士隐梦幻识通灵。", "🙂🙃 yes. 🙂"])
@pytest.mark.parametrize("name", FAMILIES)
def test_no_piece_has_a_part_of_a_character(tmp_path, name, text):
    values = {"cutoff": 128, "add_bos": False, "add_eos": "never"}
    data = prepare_rows(tmp_path, family(name), {"a.txt": text}, **values)
    (shown,) = preview(data.examples, PreviewQuery(1), family(name))
    assert "".join(piece.text for piece in shown.pieces).strip() == text
    assert [piece.learned for piece in shown.pieces] == [False, True], "the first token is only read"


def test_examples_are_browsed_by_number_and_by_words(tmp_path):
    rows = [chat(f"Row {n}", "No, a cat." if n % 2 == 0 else "Yes.") for n in range(1, 6)]
    examples = prepare_rows(tmp_path, CHATML, {"a.jsonl": rows}).examples
    for query, numbers in (
        (PreviewQuery(2, first=3), [3, 4]),
        (PreviewQuery(9, first=6), []),
        (PreviewQuery(2, first=3, backward=True), [3, 2]),
        (PreviewQuery(1, first=99, backward=True), [5]),
        (PreviewQuery(9, containing="a CAT"), [2, 4]),
        (PreviewQuery(1, first=3, containing="a CAT"), [4]),
        (PreviewQuery(1, first=3, containing="a CAT", backward=True), [2]),
        (PreviewQuery(1, first=5, containing="a CAT"), []),
    ):
        assert [(s.number, s.place) for s in preview(examples, query)] == [(n, f"line {n}") for n in numbers]


def test_memory_is_estimated_from_the_settings(tmp_path):
    folders = make_folders(tmp_path)
    (folders.datasets / "a.txt").write_text("A sentence is here. " * 400, encoding="utf-8")

    def memory(machine=None, loading="auto", config=SMOL, **values):
        settings = training_settings({"name": "a", "data": ["a.txt"], **values})
        card = ModelCard("toy", config, CHATML.tokenizer, loading)
        return check_datasets(settings, folders, card, CHATML, lambda text, share: None, machine=machine).memory

    card = DeviceMemory("A card", 0, 24 * 10**9)
    cpu, half, quarter = memory(), memory(card), memory(card, "4bit")
    assert (cpu.weights, half.weights) == (4 * 134_515_008, 2 * 134_515_008) and quarter.weights < half.weights
    assert memory(card, gradient_checkpointing="on").activations < half.activations
    assert memory(card, rank=64).lora == 2 * half.lora
    assert memory(card, optimizer="adamw_8bit").optimizer == half.optimizer // 4
    assert memory(card, targets="q-v").lora < half.lora < memory(card, train_head=True).lora
    assert half.words().startswith("2.12 GB (activations")
    assert memory(config={}) is None
    held = [
        ModelCard("toy", SMOL, None, loading).weight_precision(on_card=on_card)
        for loading, on_card in (("auto", True), ("auto", False), ("4bit", True), ("float16", False))
    ]
    assert held == ["bfloat16", "float32", "4bit", "float16"]


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


def test_a_suggested_value_is_shown_by_its_type():
    values = [256, 1_000_000, 10.0, 0.05, "\n\nChapter", r"\nChapter", "", True, False]
    words = [Suggestion("hard_cut", value, "").words for value in values]
    assert words == ["256", "1000000", "10", "0.05", r"\n\nChapter", r"\nChapter", "nothing", "on", "off"]

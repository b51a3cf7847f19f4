"""From settings to examples and their report, with one word as one token."""

from __future__ import annotations

import hashlib

import pytest
from training_pro.core.errors import DataError
from training_pro.core.host import ModelCard
from training_pro.data.prepare import checked, prepare
from training_pro.settings.parsing import training_settings
from training_pro.tests.fakes import BOS, EOS, WordTokenizer, made_folders

STORY = "One two three. Four five six. Seven eight nine.\n\n\nTen eleven. Twelve."


@pytest.fixture
def folders(tmp_path):
    made = made_folders(tmp_path)
    (made.datasets / "story.txt").write_text(STORY)
    return made


def settings(**more):
    return training_settings(
        {"name": "a", "data": ["story.txt"], "cutoff": 16, "overlap": False, "batch_size": 1, **more}
    )


def prepared(folders, tokenizer=None, said=None, context=0, **more):
    card = ModelCard("toy", {"max_position_embeddings": context} if context else {}, None, "auto")
    say = (lambda *_: None) if said is None else (lambda text, share: said.append((text, share)))
    return prepare(settings(**more), folders, card, tokenizer or WordTokenizer(), say)


def report(folders, tokenizer=None, context=0, **more):
    card = ModelCard("toy", {"max_position_embeddings": context} if context else {}, None, "auto")
    return checked(settings(**more), folders, card, tokenizer or WordTokenizer(), lambda *_: None)


def test_examples_are_the_blocks_with_bos_and_eos_at_the_hard_cut(folders):
    data = prepared(folders)
    rows = [example.ids.tolist() for example in data.examples]
    assert rows == [[BOS, *range(10, 19), EOS], [BOS, 19, 20, 21, EOS]]
    assert [example.text for example in data.examples] == [
        "One two three. Four five six. Seven eight nine.",
        "Ten eleven. Twelve.",
    ]
    assert [example.source.name for example in data.examples] == ["story.txt"] * 2


def test_a_hard_cut_of_words_is_said_to_be_left_out(folders):
    (source,) = report(folders, hard_cut="Ten eleven. ").sources
    (said,) = source.notes
    assert said == (
        "The hard cut 'Ten eleven. ' stands there 1 time and is left out of what is learned, as every hard cut is."
    )
    assert report(folders).sources[0].notes == ()


def test_the_report_counts_what_is_trained(folders):
    data = prepared(folders, epochs=3)
    found = data.report
    assert (found.examples, found.tokens, found.longest, found.cutoff) == (2, 16, 11, 16)
    assert found.trained_tokens == 14  # nothing predicts a first token
    assert (found.steps_per_epoch, found.steps) == (2, 6)
    assert found.verdict == "ready"
    (source,) = found.sources
    assert (source.files, source.examples, source.tokens, source.trained_tokens) == (1, 2, 16, 14)
    text = source.text
    assert (text.parts, text.sentences, text.blocks, text.overlaps) == (2, 5, 2, 0)
    assert (text.characters, text.left_out, text.characters_lost) == (len(STORY), 0, 0)
    assert dict(found.resolved)["cutoff"] == 16


def test_examples_go_by_number_too(folders):
    examples = prepared(folders).examples
    assert len(examples) == 2
    assert examples[1].ids.tolist() == [example.ids.tolist() for example in examples][1]
    for number in (-1, 2):
        with pytest.raises(IndexError):
            examples[number]


def test_the_fingerprint_is_of_the_ids_in_their_order(folders):
    rows = [example.ids.tobytes() + b"|" for example in prepared(folders).examples]
    assert prepared(folders).examples.digest() == hashlib.sha256(b"".join(rows)).hexdigest()
    assert prepared(folders, add_eos="never").examples.digest() != prepared(folders).examples.digest()


def test_each_file_of_a_folder_begins_anew(folders):
    for name in ("chapter 10.txt", "chapter 2.txt"):
        (folders.datasets / "book").mkdir(exist_ok=True)
        (folders.datasets / "book" / name).write_text(f"This is {name}")
    data = prepared(folders, data=["book/", "story.txt"])
    assert [example.source.name for example in data.examples] == [
        "book/chapter 2.txt",
        "book/chapter 10.txt",
        "story.txt",
        "story.txt",
    ]
    assert [source.name for source in data.report.sources] == ["book/", "story.txt"]
    assert [source.files for source in data.report.sources] == [2, 1]


def test_an_example_of_the_projects_is_marked(folders):
    (folders.examples / "other.txt").write_text("Words and words.")
    (source,) = prepared(folders, data=["other.txt"]).report.sources
    assert source.what == "raw text (an example of the project's)"


def test_progress_is_told_by_data_set(folders):
    said = []
    (folders.datasets / "other.txt").write_text(
        "The keeper slept. The lamp went out.\n\n\nIt rained.", encoding="utf-8"
    )
    prepared(folders, said=said, data=["story.txt", "other.txt"])
    assert [words for words, _ in said] == [
        "Reading story.txt",
        "Reading other.txt",
        "Cutting story.txt",
        "Cutting other.txt",
    ]
    assert [share for _, share in said] == [0.0, 0.5, 0.5, 0.5]


@pytest.mark.parametrize(("context", "cutoff"), [(0, 256), (100, 100), (4096, 256)])
def test_the_automatic_cutoff_is_what_the_model_takes_at_most(folders, context, cutoff):
    found = report(folders, context=context, cutoff="auto")
    assert (found.cutoff, dict(found.resolved)["cutoff"]) == (cutoff, cutoff)


def test_more_than_the_model_takes_is_not_ready(folders):
    found = report(folders, context=100, cutoff=128)
    assert found.verdict == "not ready"
    assert found.problems == (
        "Maximum context length (Cutoff): 128 is more than toy takes (100 tokens). Use 100 or less.",
    )


def test_more_accumulation_than_batches_is_lowered_and_said(folders):
    found = report(folders, accumulation=5)
    assert (found.steps_per_epoch, dict(found.resolved)["accumulation"]) == (1, 2)
    assert "Gradient Accumulation 5 is more than the 2 batches of an epoch: it is lowered to 2." in found.advice
    assert found.verdict == "ready with advice"


def test_no_end_token_is_said(folders):
    assert "This tokenizer has no end token" in report(folders, WordTokenizer(eos=None)).advice[0]
    assert report(folders, WordTokenizer(eos=None), add_eos="never").advice == ()


def test_nothing_left_is_a_sentence(folders):
    with pytest.raises(DataError, match="nothing is left to learn from"):
        prepared(folders, min_chars=1000)


def test_what_cannot_be_prepared_is_a_report_too(folders):
    (folders.datasets / "empty.txt").write_text("")
    found = report(folders, data=["missing.txt", "gone.txt"])
    assert (found.verdict, len(found.problems), found.examples) == ("not ready", 2, 0)
    assert report(folders, data=["empty.txt"]).problems[0].startswith("empty.txt is empty.")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"architectures": ["CLIPModel"], "model_type": "clip"}, "toy (CLIPModel) does not write text on"),
        ({"architectures": ["BertForMaskedLM"]}, "(BertForMaskedLM)"),
        (
            {"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True},
            "(T5ForConditionalGeneration)",
        ),
        ({"architectures": ["LlamaForCausalLM"]}, ""),
        ({"architectures": ["GPT2LMHeadModel"]}, ""),
        ({"architectures": ["Gemma3ForConditionalGeneration"]}, ""),
        ({"architectures": ["ChatGLMModel"], "auto_map": {"AutoModelForCausalLM": "x"}}, ""),
        ({}, ""),
    ],
)
def test_a_model_that_does_not_write_on_is_not_ready(folders, config, said):
    found = checked(settings(), folders, ModelCard("toy", config, None, "auto"), WordTokenizer(), lambda *_: None)
    assert (found.verdict == "not ready") == bool(said)
    assert said in " ".join(found.problems)

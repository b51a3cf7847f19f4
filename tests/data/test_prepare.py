"""From settings to examples and their report, with one token per word."""

from __future__ import annotations

import hashlib

import pytest
from training_pro.core.errors import DataError
from training_pro.core.host import ModelCard
from training_pro.data.prepare import check_datasets, prepare
from training_pro.settings.parsing import training_settings
from training_pro.tests.fakes import BOS, EOS, WordTokenizer, make_folders

STORY = "One two three. Four five six. Seven eight nine.\n\n\nTen eleven. Twelve."
SHORT = {"name": "a", "data": ["story.txt"], "cutoff": 16, "overlap": False, "batch_size": 1}


@pytest.fixture
def folders(tmp_path):
    result = make_folders(tmp_path)
    (result.datasets / "story.txt").write_text(STORY)
    return result


def arguments(folders, tokenizer, config, values):
    card = ModelCard("toy", config or {}, None, "auto")
    return training_settings({**SHORT, **values}), folders, card, tokenizer or WordTokenizer()


def prepare_story(folders, tokenizer=None, say=lambda *_: None, config=None, **values):
    return prepare(*arguments(folders, tokenizer, config, values), say)


def check_story(folders, tokenizer=None, config=None, **values):
    return check_datasets(*arguments(folders, tokenizer, config, values), lambda *_: None)


def test_examples_are_the_blocks_with_bos_and_eos_at_the_hard_cut(folders):
    examples = prepare_story(folders).examples
    rows = [[BOS, *range(10, 19), EOS], [BOS, 19, 20, 21, EOS]]
    assert [e.ids.tolist() for e in examples] == [examples[n].ids.tolist() for n in range(len(examples))] == rows
    assert [e.text for e in examples] == STORY.split("\n\n\n")
    assert [e.source.name for e in examples] == ["story.txt"] * 2
    for number in (-1, 2):
        with pytest.raises(IndexError):
            examples[number]
    digest = hashlib.sha256(b"".join(example.ids.tobytes() + b"|" for example in examples)).hexdigest()
    assert examples.digest() == digest != prepare_story(folders, add_eos="never").examples.digest()


def test_the_report_counts_what_is_trained(folders):
    result = prepare_story(folders, epochs=3).report
    assert (result.examples, result.tokens, result.longest, result.cutoff) == (2, 16, 11, 16)
    assert result.trained_tokens == 14  # nothing predicts a first token
    assert (result.steps_per_epoch, result.steps, result.verdict) == (2, 6, "ready")
    (source,) = result.sources
    assert (source.files, source.examples, source.tokens, source.trained_tokens) == (1, 2, 16, 14)
    text = source.text
    assert (text.parts, text.sentences, text.blocks, text.overlaps) == (2, 5, 2, 0)
    assert (text.characters, text.left_out, text.characters_lost) == (len(STORY), 0, 0)
    assert source.notes == () and result.resolved.cutoff == 16
    (note,) = check_story(folders, hard_cut="Ten eleven. ").sources[0].notes
    assert note.startswith("The hard cut 'Ten eleven. ' appears 1 time in the text. It is left out of the blocks")


def test_each_file_of_a_folder_begins_its_own_examples(folders):
    (folders.datasets / "book").mkdir()
    (folders.examples / "other.txt").write_text("Words and words.")
    for name in ("chapter 10.txt", "chapter 2.txt"):
        (folders.datasets / "book" / name).write_text(f"This is {name}")
    said = []
    data = prepare_story(folders, say=lambda *words: said.append(words), data=["book/", "story.txt", "other.txt"])
    names = ["book/chapter 2.txt", "book/chapter 10.txt", "story.txt", "story.txt", "other.txt"]
    assert [example.source.name for example in data.examples] == names
    sources = data.report.sources
    assert [(s.name, s.files) for s in sources] == [("book/", 2), ("story.txt", 1), ("other.txt", 1)]
    assert sources[2].what == "raw text (an example dataset that comes with Training PRO)"
    assert [words for words, _ in said][::3] == ["Reading book/", "Slicing book/"]


def test_settings_that_do_not_fit_are_named(folders):
    result = check_story(folders, config={"max_position_embeddings": 100}, cutoff=128)
    assert result.verdict == "not ready"
    assert result.problems[0].endswith("(Cutoff): 128 is more than toy supports (100 tokens). Use 100 or less.")
    result = check_story(folders, accumulation=5)
    assert (result.steps_per_epoch, result.resolved.accumulation) == (1, 2)
    (told,) = [each for each in result.suggestions if each.key == "accumulation"]
    assert (told.value, told.why) == (2, "An epoch has 2 batches.")
    assert "This tokenizer has no EOS token" in check_story(folders, WordTokenizer(eos=None)).advice[0]
    assert check_story(folders, WordTokenizer(eos=None), add_eos="never").advice == ()


def test_data_that_cannot_be_prepared_get_a_report_too(folders):
    (folders.datasets / "empty.txt").write_text("")
    result = check_story(folders, data=["missing.txt", "gone.txt"])
    assert (result.verdict, len(result.problems), result.examples) == ("not ready", 2, 0)
    assert check_story(folders, data=["empty.txt"]).problems[0].startswith("empty.txt is empty.")
    with pytest.raises(DataError, match="there is nothing left to train on"):
        prepare_story(folders, min_chars=1000)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architectures": ["CLIPModel"], "model_type": "clip"}, "toy (CLIPModel) can't generate text"),
        ({"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}, "(T5ForConditionalGen"),
        ({"architectures": ["Gemma3ForConditionalGeneration"]}, ""),
        ({"architectures": ["ChatGLMModel"], "auto_map": {"AutoModelForCausalLM": "x"}}, ""),
    ],
)
def test_a_model_that_is_not_causal_is_not_ready(folders, config, message):
    result = check_story(folders, config=config)
    assert (result.verdict == "not ready") == bool(message) and message in " ".join(result.problems)

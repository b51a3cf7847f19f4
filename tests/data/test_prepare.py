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


@pytest.fixture
def folders(tmp_path):
    result = make_folders(tmp_path)
    (result.datasets / "story.txt").write_text(STORY)
    return result


def settings(**values):
    return training_settings(
        {"name": "a", "data": ["story.txt"], "cutoff": 16, "overlap": False, "batch_size": 1, **values}
    )


def prepare_story(folders, tokenizer=None, progress=None, context=0, **values):
    card = ModelCard("toy", {"max_position_embeddings": context} if context else {}, None, "auto")
    say = (lambda *_: None) if progress is None else (lambda text, share: progress.append((text, share)))
    return prepare(settings(**values), folders, card, tokenizer or WordTokenizer(), say)


def check_story(folders, tokenizer=None, context=0, **values):
    card = ModelCard("toy", {"max_position_embeddings": context} if context else {}, None, "auto")
    return check_datasets(settings(**values), folders, card, tokenizer or WordTokenizer(), lambda *_: None)


def test_examples_are_the_blocks_with_bos_and_eos_at_the_hard_cut(folders):
    data = prepare_story(folders)
    rows = [example.ids.tolist() for example in data.examples]
    assert rows == [[BOS, *range(10, 19), EOS], [BOS, 19, 20, 21, EOS]]
    assert [example.text for example in data.examples] == [
        "One two three. Four five six. Seven eight nine.",
        "Ten eleven. Twelve.",
    ]
    assert [example.source.name for example in data.examples] == ["story.txt"] * 2


def test_a_note_says_that_a_hard_cut_of_words_is_left_out(folders):
    (source,) = check_story(folders, hard_cut="Ten eleven. ").sources
    (note,) = source.notes
    assert note == (
        "The hard cut 'Ten eleven. ' appears 1 time in the text. It is left out of the blocks, so the "
        "model never sees it."
    )
    assert check_story(folders).sources[0].notes == ()


def test_the_report_counts_what_is_trained(folders):
    data = prepare_story(folders, epochs=3)
    result = data.report
    assert (result.examples, result.tokens, result.longest, result.cutoff) == (2, 16, 11, 16)
    assert result.trained_tokens == 14  # nothing predicts a first token
    assert (result.steps_per_epoch, result.steps) == (2, 6)
    assert result.verdict == "ready"
    (source,) = result.sources
    assert (source.files, source.examples, source.tokens, source.trained_tokens) == (1, 2, 16, 14)
    text = source.text
    assert (text.parts, text.sentences, text.blocks, text.overlaps) == (2, 5, 2, 0)
    assert (text.characters, text.left_out, text.characters_lost) == (len(STORY), 0, 0)
    assert result.resolved.cutoff == 16


def test_examples_can_be_indexed(folders):
    examples = prepare_story(folders).examples
    assert len(examples) == 2
    assert examples[1].ids.tolist() == [example.ids.tolist() for example in examples][1]
    for number in (-1, 2):
        with pytest.raises(IndexError):
            examples[number]


def test_the_digest_covers_the_ids_in_order(folders):
    rows = [example.ids.tobytes() + b"|" for example in prepare_story(folders).examples]
    assert prepare_story(folders).examples.digest() == hashlib.sha256(b"".join(rows)).hexdigest()
    assert prepare_story(folders, add_eos="never").examples.digest() != prepare_story(folders).examples.digest()


def test_each_file_of_a_folder_begins_its_own_examples(folders):
    for name in ("chapter 10.txt", "chapter 2.txt"):
        (folders.datasets / "book").mkdir(exist_ok=True)
        (folders.datasets / "book" / name).write_text(f"This is {name}")
    data = prepare_story(folders, data=["book/", "story.txt"])
    assert [example.source.name for example in data.examples] == [
        "book/chapter 2.txt",
        "book/chapter 10.txt",
        "story.txt",
        "story.txt",
    ]
    assert [source.name for source in data.report.sources] == ["book/", "story.txt"]
    assert [source.files for source in data.report.sources] == [2, 1]


def test_a_dataset_of_the_projects_examples_is_marked(folders):
    (folders.examples / "other.txt").write_text("Words and words.")
    (source,) = prepare_story(folders, data=["other.txt"]).report.sources
    assert source.what == "raw text (an example dataset that comes with Training PRO)"


def test_progress_is_reported_by_dataset(folders):
    progress = []
    (folders.datasets / "other.txt").write_text(
        "The keeper slept. The lamp went out.\n\n\nIt rained.", encoding="utf-8"
    )
    prepare_story(folders, progress=progress, data=["story.txt", "other.txt"])
    assert [words for words, _ in progress] == [
        "Reading story.txt",
        "Reading other.txt",
        "Slicing story.txt",
        "Slicing other.txt",
    ]
    assert [share for _, share in progress] == [0.0, 0.5, 0.5, 0.5]


@pytest.mark.parametrize(("context", "cutoff"), [(0, 256), (100, 100), (4096, 256)])
def test_the_automatic_cutoff_is_at_most_the_models_context(folders, context, cutoff):
    result = check_story(folders, context=context, cutoff="auto")
    assert (result.cutoff, result.resolved.cutoff) == (cutoff, cutoff)


def test_a_cutoff_beyond_the_context_is_not_ready(folders):
    result = check_story(folders, context=100, cutoff=128)
    assert result.verdict == "not ready"
    assert result.problems == (
        "Maximum context length (Cutoff): 128 is more than toy supports (100 tokens). Use 100 or less.",
    )


def test_accumulation_beyond_the_batches_is_lowered_with_a_suggestion(folders):
    result = check_story(folders, accumulation=5)
    assert (result.steps_per_epoch, result.resolved.accumulation) == (1, 2)
    (told,) = [each for each in result.suggestions if each.key == "accumulation"]
    assert (told.value, told.why) == (2, "An epoch has 2 batches.")


def test_a_missing_end_token_gets_advice(folders):
    assert "This tokenizer has no EOS token" in check_story(folders, WordTokenizer(eos=None)).advice[0]
    assert check_story(folders, WordTokenizer(eos=None), add_eos="never").advice == ()


def test_an_empty_result_is_a_sentence(folders):
    with pytest.raises(DataError, match="there is nothing left to train on"):
        prepare_story(folders, min_chars=1000)


def test_data_that_cannot_be_prepared_get_a_report_too(folders):
    (folders.datasets / "empty.txt").write_text("")
    result = check_story(folders, data=["missing.txt", "gone.txt"])
    assert (result.verdict, len(result.problems), result.examples) == ("not ready", 2, 0)
    assert check_story(folders, data=["empty.txt"]).problems[0].startswith("empty.txt is empty.")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architectures": ["CLIPModel"], "model_type": "clip"}, "toy (CLIPModel) can't generate text"),
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
def test_a_model_that_is_not_causal_is_not_ready(folders, config, message):
    result = check_datasets(
        settings(), folders, ModelCard("toy", config, None, "auto"), WordTokenizer(), lambda *_: None
    )
    assert (result.verdict == "not ready") == bool(message)
    assert message in " ".join(result.problems)

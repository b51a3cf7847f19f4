"""What the guides and manuals say of datasets, splits and lengths, as Check and a run see it."""

from __future__ import annotations

import json

import pytest
from training_pro.settings.definitions import SETTINGS
from training_pro.tests.coming_from import read_page
from training_pro.tests.seeds.conftest import checked, refusal, settings, write_rows
from training_pro.train_utils import StepPlan

PAIRS = [(f"What is {n}?", f"It is the number {n}.") for n in range(20)]
TEXTS = [{"text": f"This is the text number {n}."} for n in range(1000)]
AUTO = {"cutoff": "auto"}


def problem_of(place, name, content, **more):
    (place.folders.datasets / name).write_bytes(content)
    (problem,) = checked(place, data=[name], **AUTO, **more).problems
    assert name in problem
    return problem


def test_files_that_cannot_be_used_are_refused_with_what_to_do(place):
    advice = problem_of(place, "train.arrow", b"ARROW1\0\0" + bytes(range(256)))
    assert "use the .jsonl or .parquet file that it was made from" in advice
    assert "Use the .jsonl file from before tokenization." in read_page("tokenized .arrow files")


def test_preferences_are_the_third_kind_of_fine_tuning(place):
    """Methods that generate replies during training are not here."""
    columns = ("prompt", "chosen", "rejected")
    asked = write_rows(place, *[dict(zip(columns, (*pair, "No."), strict=True)) for pair in PAIRS])
    page = read_page("reinforcement learning and preferences (DPO)")
    reports = {}
    for objective in ("next_token", "dpo", "ipo", "kto", "orpo", "simpo"):
        reports[objective] = report = checked(place, objective=objective, **asked)
        assert report.problems == () and report.trained_tokens < report.tokens
        assert report.examples == (40 if objective == "kto" else 20)
        assert objective == "next_token" or objective.upper() in page.upper()
    assert reports["dpo"].tokens > reports["next_token"].tokens


def test_the_longest_length_is_counted_in_tokens_and_limited_by_the_model(place):
    asked = write_rows(place, *[{"text": "word " * n} for n in (5, 10, 400)]) | {"too_long": "cut_end"}
    assert [checked(place, **asked | {"cutoff": n}).longest for n in (16, 32, 64)] == [16, 32, 64]
    longest = json.loads((place.tiny / "config.json").read_text())["max_position_embeddings"]
    report = checked(place, cutoff=2 * longest)
    assert any(str(longest) in text.replace(",", "") for text in (*report.problems, *report.advice))


@pytest.mark.parametrize(("per_cent", "kept"), [(1, 10), (0.1, 1), (0.01, 1)])
def test_a_validation_split_is_generated_automatically(place, per_cent, kept):
    report = checked(place, eval_share=per_cent / 100, **write_rows(place, *TEXTS))
    assert report.problems == () and report.examples == 1000 - kept


def test_a_split_ratio_is_refused_with_its_validation_part():
    """For the training part alone, which is allowed as a validation part, there is advice."""
    ratios = {"0.99,0.01": "0.01", "0.999, 0.001": "0.001", "0.8,0.2": "0.2", "99,1": "0.01"}
    for ratio, part in ratios.items():
        assert f"Enter only the validation part: {part}." in refusal(eval_share=ratio)
    assert "the validation part alone: 0.01" in read_page("split_ratio 0.99,0.01")


def test_the_training_part_of_a_split_ratio_would_train_on_the_rest(place):
    wrong, right = (checked(place, eval_share=part, **write_rows(place, *TEXTS)) for part in (0.99, 0.01))
    assert (wrong.examples, right.examples) == (10, 990)
    (advice,) = [text for text in wrong.advice if text.startswith("Validation split")]
    assert "trains on only 1% of the dataset" in advice and advice.endswith("enter 0.01.")
    assert not any(text.startswith("Validation split") for text in right.advice)


def test_batches_epochs_and_steps_are_counted_as_in_the_guide(place):
    plan = StepPlan(examples=200, batch_size=5, accumulation=1, epochs=1000)
    assert (plan.steps_per_epoch, plan.steps) == (40, 40_000)
    assert StepPlan(examples=1000, batch_size=8, accumulation=4, epochs=1).examples_per_step == 32
    for size in (32, 64, 128):
        assert settings(batch_size=size).steps.batch_size == size
    one, two, divided = (checked(place, **more).steps for more in ({}, {"epochs": 2}, {"batch_size": 2}))
    assert (one, two, divided) == (4, 8, 8)
    for key in ("batch_size", "epochs"):
        assert SETTINGS[key].label in refusal(**{key: 0})
    assert "Epochs: 1001 is out of range. Allowed: 0.01 to 1000." in refusal(epochs=1001)
    assert checked(place, max_steps=5000, batch_size=16).steps == 5000, "max_steps goes on from there"
    assert "Epochs ends at 1000" in read_page("an infinite number of epochs")

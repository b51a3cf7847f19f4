"""What the guides and manuals say of datasets, splits and lengths, as Check and a run see it."""

from __future__ import annotations

import json

import pytest
from training_pro.commands.main import main
from training_pro.tests.coming_from import read_page
from training_pro.tests.seeds.conftest import checked, refusal, write_rows

TEXTS = [{"text": f"This is the text number {n}."} for n in range(1000)]


def test_files_that_cannot_be_used_are_refused_with_what_to_do(place):
    (place.folders.datasets / "train.arrow").write_bytes(b"ARROW1\0\0" + bytes(range(256)))
    (problem,) = checked(place, data=["train.arrow"], cutoff="auto").problems
    assert "train.arrow" in problem and "use the .jsonl or .parquet file that it was made from" in problem
    assert "Use the .jsonl file from before tokenization." in read_page("tokenized .arrow files")


def test_texts_are_put_under_a_text_key_in_a_jsonl_file(place):
    place.write("book.txt", "One.\n\nTwo.\n\n\nThree.")
    user_data = str(place.folders.user_data)
    assert main(["data", "convert", "book.txt", "--out", "book.jsonl", "--user-data", user_data]) == 0
    lines = (place.folders.datasets / "book.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"text": "One.\n\nTwo."}, {"text": "Three."}]


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

"""The validation split: whole parts taken before slicing, the same for the same seed, none of them learned."""

from __future__ import annotations

import random

import pytest
from training_pro.chunking import SlicingRules, slice_blocks
from training_pro.data.examples import TextSource, find_shared_passages, split_texts
from training_pro.data.prepare import prepare
from training_pro.data.readers import LoadedText
from training_pro.settings.parsing import training_settings
from training_pro.tests import rowing
from training_pro.tests.fakes import make_folders
from training_pro.tests.rowing import chat, family
from training_pro.tests.slicing_laws import encode_words, find_stops

CHATML = family("ChatML")


def prepare_files(root, files, **values):
    """Prepare data as rowing.made does, with a validation split."""
    names = values.pop("data", list(files))
    folders = make_folders(root)
    for name, content in files.items():
        text = content if isinstance(content, str) else rowing.as_json(name, content)
        (folders.datasets / name).write_text(text, encoding="utf-8")
    settings = training_settings({"name": "a", "data": names, **values})
    card = rowing.ModelCard("toy", {}, CHATML.tokenizer, "auto")
    return prepare(settings, folders, card, CHATML, lambda text, share: None)


def book(chapters, seed=3):
    """Chapters of sentences, no two alike."""
    rng = random.Random(seed)

    def sentence():
        return " ".join(f"w{rng.randrange(10**6)}" for _ in range(rng.randrange(4, 30))).capitalize() + "."

    return "\n\n\n".join(" ".join(sentence() for _ in range(rng.randrange(8, 20))) for _ in range(chapters))


@pytest.mark.parametrize("chunking", ["blocks", "dementor"])
@pytest.mark.parametrize("chapters", [1, 4, 30])
def test_no_run_of_twenty_words_is_on_both_sides(tmp_path, chunking, chapters):
    data = prepare_files(tmp_path, {"book.txt": book(chapters)}, eval_share=0.1, chunking=chunking, cutoff=128)
    kept, learned = ([e.text for e in side] for side in (data.validation, data.examples))
    assert find_shared_passages(kept, learned) == []
    assert data.report.advice == ()
    share = sum(data.validation.lengths()) / (sum(data.validation.lengths()) + sum(data.examples.lengths()))
    assert 0.02 < share < 0.25
    assert data.report.kept_aside.examples == len(data.validation)


def test_nothing_of_the_text_is_lost():
    text = LoadedText("a.txt", book(12))
    sides = split_texts([text], 0.2, "\n\n\n", "auto", seed=1, name="a.txt")
    parts = sorted((stretch.text for side in sides for stretch in side), key=text.text.index)
    assert "".join(parts) == text.text
    assert not any(stretch.open_end for side in sides for stretch in side)


def test_a_short_text_is_divided_at_sentences_first():
    text = LoadedText(
        "a.txt", "One two three four five. " * 3 + "".join(f"Sentence number {n} is here. " for n in range(40))
    )
    learned, kept = split_texts([text], 0.1, "\n\n\n", "auto", seed=1, name="a.txt")
    assert all(s.text.strip().endswith(".") for s in (*learned, *kept))
    assert 0.05 < sum(len(s.text) for s in kept) / len(text.text) < 0.2


def test_a_text_that_continues_after_a_validation_part_does_not_end_there(tmp_path):
    data = prepare_files(tmp_path, {"a.txt": book(1)}, eval_share=0.1, cutoff=64, overlap=False)
    both = [*data.examples, *data.validation]
    assert sum(int(example.ids[-1]) == CHATML.eos for example in both) == 1
    assert sum(data.examples.lengths()) == sum(len(e.ids) for e in data.examples) == data.report.tokens


def test_parts_that_are_alike_stay_on_one_side():
    parts = [f"Chapter {n % 6} says the same as ever, word for word." for n in range(24)]
    learned, kept = split_texts(
        [LoadedText("a.txt", "\n\n\n".join(parts))], 0.25, "\n\n\n", "auto", seed=2, name="a"
    )
    assert find_shared_passages([s.text for s in kept], [s.text for s in learned]) == []
    assert {w for s in kept for w in s.text.split("\n\n\n")} & {
        w for s in learned for w in s.text.split("\n\n\n")
    } <= {""}


def test_a_book_that_repeats_itself_says_so(tmp_path):
    refrain = " ".join(f"word{n}" for n in range(25)).capitalize() + "."
    text = "\n\n\n".join(f"{book(1, seed)} {refrain} {book(1, seed + 100)}" for seed in range(20))
    data = prepare_files(tmp_path, {"a.txt": text}, eval_share=0.1)
    assert any(
        "of 20 words or more also appear in the training text. One of them starts with" in sentence
        for sentence in data.report.advice
    )


def test_rows_are_split_whole_and_duplicates_stay_together(tmp_path):
    rows = [chat(f"Q{n % 50}", f"A{n % 50}, at length.") for n in range(100)]
    data = prepare_files(tmp_path, {"rows.jsonl": rows}, eval_share=0.1)
    learned, kept = ({e.text for e in side} for side in (data.examples, data.validation))
    assert learned & kept == set()
    assert (len(data.validation), len(data.examples)) == (10, 90)
    assert data.report.examples == 90


def test_validation_data_of_their_own(tmp_path):
    files = {"rows.jsonl": [chat("A", "B."), chat("C", "D.")], "test.jsonl": [chat("E", "F."), chat("C", "D.")]}
    data = prepare_files(tmp_path, files, eval_data=["test.jsonl"], data=["rows.jsonl"])
    assert (len(data.examples), len(data.validation)) == (2, 2)
    assert data.report.advice == (
        "Validation data: 1 of its rows is also in the training data. Remove it from either the training "
        "data or the validation data.",
    )


def test_the_same_seed_makes_the_same_split(tmp_path):
    kept = [
        prepare_files(tmp_path / str(n), {"a.txt": book(30)}, eval_share=0.1, seed=seed).validation.digest()
        for n, seed in enumerate((1, 1, 2))
    ]
    assert kept[0] == kept[1] != kept[2]


def test_a_text_too_short_to_split_is_a_problem(tmp_path):
    data = prepare_files(tmp_path, {"a.txt": "One sentence only."}, eval_share=0.1)
    assert data.report.problems == (
        "a.txt is too short for a validation split. Choose an Evaluation dataset, or set Validation split to 0.",
    )


def test_the_split_is_a_share_of_the_rows_that_are_used(tmp_path):
    rows = [chat(f"Q{n}", f"A{n}.") for n in range(100)]
    data = prepare_files(tmp_path, {"rows.jsonl": rows}, eval_share=0.2, data=["rows.jsonl:50"])
    assert (len(data.validation), len(data.examples)) == (20, 40)


def novel(chapters=24, seed=11):
    """A realistic book: headings, paragraphs, dialogue, with names and phrases that repeat."""
    rng = random.Random(seed)
    persons = ["Maren", "the boy", "the inspector", "the man with the goat", "nobody"]
    actions = [
        "looked at the river",
        "took the rope",
        "said nothing",
        "rang the bell",
        "waited by the willow",
        "laughed",
    ]
    times_of_day = [
        "In the morning",
        "That evening",
        "After the rain",
        "When the bell had rung",
        "All that winter",
        "Once",
    ]
    sayings = ["“Not today,” {}.", "“Two coppers,” {}.", "“Is it far?” {}.", "“Look upstream,” {}."]

    def sentence():
        person, other_person, count = rng.choice(persons), rng.choice(persons), rng.randrange(99)
        return rng.choice(
            [
                f"{rng.choice(times_of_day)} {person} {rng.choice(actions)}, and {other_person} {count} times "
                f"{rng.choice(actions)}.",
                rng.choice(sayings).format(f"said {person} to {other_person}, who had {rng.randrange(999)}"),
                f"{person.capitalize()} {rng.choice(actions)}. It was the {rng.randrange(1, 31)}th of May.",
            ]
        )

    def chapter(number):
        paragraphs = [
            " ".join(sentence() for _ in range(rng.randrange(2, 7))) for _ in range(rng.randrange(9, 20))
        ]
        return "\n\n".join([f"Chapter {number}", *paragraphs])

    return "\n\n\n".join(map(chapter, range(1, chapters + 1)))


@pytest.mark.parametrize("chunking", ["blocks", "dementor"])
@pytest.mark.parametrize("hard_cut", ["\\n\\n\\n", ""])
def test_the_parts_of_a_realistic_book_share_no_passage(tmp_path, chunking, hard_cut):
    values = {"eval_share": 0.1, "chunking": chunking, "hard_cut": hard_cut, "cutoff": 200, "overlap": True}
    data = prepare_files(tmp_path, {"book.txt": novel()}, **values)
    kept, learned = ([e.text for e in side] for side in (data.validation, data.examples))
    both = all_ngrams(kept) & all_ngrams(learned)
    assert both == set()
    assert [sentence for sentence in data.report.advice if not sentence.startswith("book.txt: no hard cut")] == []
    assert 0.05 < sum(map(len, set(kept))) / (sum(map(len, set(kept))) + sum(map(len, set(learned)))) < 0.2


def all_ngrams(texts):
    """All runs of twenty words, without hashing."""
    ngrams = set()
    for text in texts:
        words = text.lower().split()
        ngrams |= {tuple(words[n : n + 20]) for n in range(len(words) - 19)}
    return ngrams


def test_shared_passages_are_found_as_without_hashing():
    rng = random.Random(4)
    passage = " ".join(f"x{n}" for n in range(23))
    learned = " ".join(rng.choice("abc") for _ in range(500)) + f" {passage} end " + passage
    kept = " ".join(rng.choice("def") for _ in range(500)) + f" {passage}"
    assert find_shared_passages([kept], [learned]) == [" ".join(passage.split()[:20])] * 2
    assert (
        find_shared_passages([kept], ["", "short"])
        == find_shared_passages([], [learned])
        == find_shared_passages(["short"], [learned])
        == []
    )


@pytest.mark.parametrize("cut", ["***", "\n***\n", "\n* * *\n\n"])
def test_a_hard_cut_of_ornaments_is_never_a_part_and_never_divided(cut):
    """A regression: the hard cut alone was the whole validation split, and half of it was learned as text."""
    rng = random.Random(5)
    for chapters in range(1, 9):
        parts = [" ".join(book(1, rng.random()).split(".")[: rng.randrange(4, 9)]) for _ in range(chapters)]
        text = LoadedText("a.txt", f"\n{cut.strip()}\n\n".join(part.replace(" W", ". W") + "." for part in parts))
        for seed in range(20):
            sides = split_texts([text], 0.05, cut, "auto", seed=seed, name="")
            for stretch in (*sides[0], *sides[1]):
                assert "*" not in stretch.text.replace(cut, "") and "w" in stretch.text


@pytest.mark.parametrize(
    ("end", "lengths"),
    [(" Five six seven.", [5, 3]), (" Hi.", [5]), ("\n\n\nHi.", [6]), ("\n\n\nOne two three. Hi.", [6, 4])],
)
def test_only_the_example_with_the_eos_of_an_open_end_loses_it(end, lengths):
    """The last block may be dropped as too short: then no example has that EOS."""
    rules = SlicingRules(cutoff=6, eos=2, min_chars=4, overlap=False, add_eos="hard_cut")
    cut = slice_blocks("One two. Three four five." + end, encode_words, rules, find_stops)
    source = TextSource("a.txt", cut, open_end=True)
    assert [len(source.ids(number)) for number in range(len(source))] == source.lengths.tolist() == lengths


def test_the_ends_of_a_text_are_computed_once_not_for_each_example(tmp_path, monkeypatch):
    """A regression: a long text with a validation share took quadratic time."""
    surplus_eos, calls = TextSource._surplus_eos.fget, []
    monkeypatch.setattr(
        TextSource, "_surplus_eos", property(lambda source: calls.append(source) or surplus_eos(source))
    )
    data = prepare_files(tmp_path, {"a.txt": book(20).replace("\n\n\n", " ")}, eval_share=0.2, cutoff=64)
    assert any(source.open_end for source in data.examples.sources)
    calls.clear()
    data.examples.digest()
    assert len(data.examples) > 20
    assert len(calls) <= len(data.examples.sources)

"""The validation split, passages of the data, and orders of the examples."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from training_pro.chunking import SlicingRules, slice_blocks
from training_pro.data import batch_order
from training_pro.data.examples import TextSource, pick_passages
from training_pro.data.readers import LoadedText
from training_pro.data.rows import chat_prompt_style, reply_lead
from training_pro.data.split import choose_parts, copied_shares, find_shared_passages, split_texts
from training_pro.data.unspaced import count_words
from training_pro.data.workshop.exam import is_right
from training_pro.tests.rowing import chat, family, prepare_rows, with_template
from training_pro.tests.slicing_laws import encode_words, find_stops

CHATML = family("ChatML")


def split_files(root, files, **values):
    return prepare_rows(root, CHATML, files, **{"eval_share": 0.1, **values})


def split_text(text, share, cut="\n\n\n", seed=1):
    """The training and the validation parts of a text."""
    return split_texts([LoadedText("a.txt", text)], share, cut, "auto", seed=seed, name="a.txt")


def book(chapters, seed=3):
    """Chapters of sentences, no two alike."""
    rng = random.Random(seed)

    def sentence():
        return " ".join(f"w{rng.randrange(10**6)}" for _ in range(rng.randrange(4, 30))).capitalize() + "."

    return "\n\n\n".join(" ".join(sentence() for _ in range(rng.randrange(8, 20))) for _ in range(chapters))


def ngrams(texts):
    """All runs of twenty words, without hashing."""
    every = [text.lower().split() for text in texts]
    return {tuple(words[n : n + 20]) for words in every for n in range(len(words) - 19)}


@pytest.mark.parametrize("chunking", ["blocks", "dementor"])
@pytest.mark.parametrize("text", [book(1), book(4), book(30)], ids=["1", "4", "30"])
def test_no_run_of_twenty_words_is_on_both_sides(tmp_path, chunking, text):
    data = split_files(tmp_path, {"book.txt": text}, chunking=chunking, cutoff=128)
    kept, learned = ([e.text for e in side] for side in (data.validation, data.examples))
    assert find_shared_passages(kept, learned) == [] and ngrams(kept) & ngrams(learned) == set()
    assert data.report.advice == () and data.report.kept_aside.examples == len(data.validation)
    share = sum(data.validation.lengths()) / (sum(data.validation.lengths()) + sum(data.examples.lengths()))
    assert 0.02 < share < 0.25


def test_shared_passages_are_found_and_told(tmp_path):
    rng, passage = random.Random(4), " ".join(f"x{n}" for n in range(23))
    learned = " ".join(rng.choices("abc", k=500)) + f" {passage} end " + passage
    kept = " ".join(rng.choices("def", k=500)) + f" {passage}"
    assert find_shared_passages([kept], [learned]) == [" ".join(passage.split()[:20])] * 2
    assert find_shared_passages([kept], ["", "short"]) == find_shared_passages(["short"], [learned]) == []
    chinese = "他在黑暗中慢慢地走着，心里想着那些永远不会再回来的日子。"  # letters are words where no spaces are
    assert find_shared_passages([chinese], [f"“{chinese}”"]) == [" ".join(chinese.replace("，", "")[:20])]
    assert copied_shares([chinese], [chinese]) == [1.0] and is_right("黑暗", chinese)
    assert (is_right("ten", "Often."), count_words(chinese), count_words("A well-known word.")) == (False, 26, 3)
    refrain = " ".join(f"word{n}" for n in range(25)).capitalize() + "."
    text = "\n\n\n".join(f"{book(1, seed)} {refrain} {book(1, seed + 100)}" for seed in range(20))
    advice = split_files(tmp_path, {"a.txt": text}).report.advice
    assert any("of 20 words or more also appear in the training text." in sentence for sentence in advice)


def test_nothing_of_the_text_is_lost():
    text = book(12)
    sides = split_text(text, 0.2)
    assert "".join(sorted((part.text for side in sides for part in side), key=text.index)) == text
    assert not any(part.open_end for side in sides for part in side)


def test_a_text_that_continues_after_a_validation_part_does_not_end_there(tmp_path):
    data = split_files(tmp_path, {"a.txt": book(1)}, cutoff=64, overlap=False)
    both = [*data.examples, *data.validation]
    assert sum(int(example.ids[-1]) == CHATML.eos for example in both) == 1
    assert sum(data.examples.lengths()) == sum(len(e.ids) for e in data.examples) == data.report.tokens


def test_every_place_is_in_the_file_and_no_note_on_a_file_is_lost(tmp_path):
    texts = {"a.txt": book(12, 1), "b.txt": f"\u201c{book(12, 2)}\u201d"}
    files = {f"d/{name}": text.encode("cp1252") for name, text in texts.items()}
    data = split_files(tmp_path, files, data=["d/"], cutoff=64)
    for example in (*data.examples, *data.validation):
        start, end = map(int, re.findall(r"\d+", example.place))
        assert texts[example.source.name[2:]][start:end] == example.text
    assert sum(note.startswith("b.txt was read as cp1252 ") for note in data.report.sources[0].notes) == 1


def test_rows_are_split_whole_and_duplicates_stay_together(tmp_path):
    rows = [chat(f"Q{n % 50}", f"A{n % 50}, at length.") for n in range(100)]
    data = split_files(tmp_path / "a", {"rows.jsonl": rows})
    learned, kept = ({e.text for e in side} for side in (data.examples, data.validation))
    assert learned & kept == set()
    assert (len(data.validation), len(data.examples), data.report.examples) == (10, 90, 90)
    rows = [chat(f"Q{n}", f"A{n}.") for n in range(100)]
    data = split_files(tmp_path / "b", {"rows.jsonl": rows}, eval_share=0.2, data=["rows.jsonl:50"])
    assert (len(data.validation), len(data.examples)) == (20, 40)  # a share of the rows that are used
    files = {f"d/{n}.jsonl": [chat(f"Q{n}", f"A{n}.")] for n in range(100)}  # a file for each row
    data = split_files(tmp_path / "c", files, eval_share=0.2, data=["d/:50"])
    assert (len(data.validation), len(data.examples), data.report.problems) == (20, 40, ())
    # Conversations of two rows, beside rows that are of none.
    talks = [chat(f"T{n}", f"B{n}.", conversation_id=f"c{n // 2}") for n in range(20)]
    files = {"d/a.jsonl": talks, "d/b.jsonl": rows}
    data = split_files(tmp_path / "d", files, data=["d/"], batching="length_then_order")
    assert len(data.validation) in (11, 12, 13) and any("Q" in example.text for example in data.validation)


def test_validation_data_of_their_own(tmp_path):
    files = {"rows.jsonl": [chat("A", "B."), chat("C", "D.")], "test.jsonl": [chat("E", "F."), chat("C", "D.")]}
    data = split_files(tmp_path, files, eval_data=["test.jsonl"], data=["rows.jsonl"], eval_share=0)
    assert (len(data.examples), len(data.validation)) == (2, 2)
    several = {f"v/{n}.jsonl": [chat(f"Q{n}", f"A{n}.")] for n in range(20)}  # a share is one of all files
    part = split_files(
        tmp_path / "b", {**files, **several}, eval_data=["v/:10"], data=["rows.jsonl"], eval_share=0
    )
    assert len(part.validation) == 2
    (sentence,) = data.report.advice
    assert sentence.startswith("Validation data: 1 of its rows is also in the training data.")


def test_the_same_seed_makes_the_same_split_and_a_text_too_short_is_a_problem(tmp_path):
    first, repeated, other = (
        split_files(tmp_path / str(n), {"a.txt": book(30)}, seed=seed).validation.digest()
        for n, seed in enumerate((1, 1, 2))
    )
    assert first == repeated != other
    (problem,) = split_files(tmp_path / "short", {"a.txt": "One sentence only."}).report.problems
    assert problem.startswith("a.txt is too short for a validation split.")


@pytest.mark.parametrize("cut", ["***", "\n* * *\n\n"])
def test_a_hard_cut_of_ornaments_is_never_a_part_and_never_divided(cut):
    """A regression: the hard cut alone was the whole validation split, and half of it was learned as text."""
    rng = random.Random(5)
    for chapters in range(1, 9):
        parts = [" ".join(book(1, rng.random()).split(".")[: rng.randrange(4, 9)]) for _ in range(chapters)]
        text = f"\n{cut.strip()}\n\n".join(part.replace(" W", ". W") + "." for part in parts)
        for seed in range(10):
            for part in (part for side in split_text(text, 0.05, cut, seed) for part in side):
                assert "*" not in part.text.replace(cut, "") and "w" in part.text


@pytest.mark.parametrize(
    ("end", "lengths"),
    [(" Five six seven.", [5, 3]), (" Hi.", [5]), ("\n\n\nHi.", [6]), ("\n\n\nOne two three. Hi.", [6, 4])],
)
def test_only_the_example_with_the_eos_of_an_open_end_loses_it(end, lengths):
    """The last block may be dropped as too short: then no example has that EOS."""
    rules = SlicingRules(cutoff=6, eos=2, min_chars=4, overlap=False, add_eos="hard_cut")
    cut = slice_blocks("One two. Three four five." + end, encode_words, rules, find_stops)
    source = TextSource("a.txt", cut, open_end=True)
    assert [len(source.example(number).ids) for number in range(len(source))] == source.lengths.tolist() == lengths


LENGTHS = [7, 3, 9, 3, 5, 9, 1, 7, 2, 5, 4]
SENTENCES = " ".join(f"Line {n} tells of the river and of number {n}." for n in range(300))
BOOK = "\n\n\n".join(f"Chapter {n}\n{SENTENCES[n * 900 : n * 900 + 900]}" for n in range(12))
REPLY = "I light it so that the ships far out on the water know where the rocks are in the night."


def batches(epoch, lengths):
    order = batch_order.order_by_length(np.arange(len(lengths)), lengths, 4, 42, epoch).tolist()
    assert sorted(order) == list(range(len(lengths)))
    return [order[n : n + 4] for n in range(0, len(order), 4)]


def test_shuffled_is_another_order_each_epoch_and_the_same_for_the_same_seed():
    orders = [batch_order.shuffle(np.arange(50), 42, epoch).tolist() for epoch in range(3)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert orders[0] != orders[1] != orders[2]
    assert batch_order.shuffle(np.arange(50), 42, 1).tolist() == orders[1]
    assert batch_order.shuffle(np.arange(50), 43, 1).tolist() != orders[1]
    assert batch_order.shuffle(np.arange(6), 42, 0).tolist() == [3, 2, 5, 4, 1, 0]


@pytest.mark.parametrize("epoch", range(5))
def test_batches_have_similar_lengths_with_the_longest_first_and_an_incomplete_one_last(epoch):
    lengths = [[LENGTHS[n] for n in batch] for batch in batches(epoch, LENGTHS)]
    assert [len(batch) for batch in lengths] == [4, 4, 3]
    assert max(LENGTHS) in lengths[0] or max(LENGTHS) in lengths[-1]
    for batch in lengths:  # the ranges of the batches do not overlap
        others = [length for other in lengths if other is not batch for length in other]
        assert not any(min(batch) < length < max(batch) for length in others)
    longest = [max(batch) + 1 for batch in batches(epoch, range(40))]
    assert longest[0] == 40 and sorted(longest) == list(range(4, 41, 4))
    assert longest[1:] != sorted(longest[1:], reverse=True)  # whole batches are shuffled


def passages_of(root, files, name="ChatML", count=4, **values):
    tokenizer = family(name)
    examples = prepare_rows(root, tokenizer, files, **values).examples
    return tokenizer, examples, pick_passages(examples, count, tokenizer.bos)


def halves(tokenizer, passage):
    ids = passage.example.ids.tolist()
    return tokenizer.decode(ids[: passage.prompt_tokens]), tokenizer.decode(ids[passage.prompt_tokens :])


def test_passages_of_a_book_are_spread_over_it_and_stand_in_it(tmp_path):
    tokenizer, examples, passages = passages_of(tmp_path, {"book.txt": BOOK}, "Llama", count=8, cutoff=128)
    numbers = [passage.example.number for passage in passages]
    assert len(passages) == 8 and numbers == sorted(numbers)
    assert (numbers[0], numbers[-1]) == (0, len(examples) - 1)
    for passage, again in zip(passages, pick_passages(examples, 8, tokenizer.bos), strict=True):
        ids, labels = passage.example.ids, passage.example.labels
        assert np.array_equal(ids, again.example.ids)
        assert (labels[: passage.prompt_tokens] == -100).all() and passage.part.startswith("Chapter ")
        assert (labels[passage.prompt_tokens :] == ids[passage.prompt_tokens :]).all()
        text = tokenizer.decode(ids.tolist()).replace("<s>", "").strip()
        assert " ".join(text.split()) in " ".join(BOOK.split())


def test_the_prompt_of_a_row_is_all_that_comes_before_its_reply_and_later_replies_take_their_turn(tmp_path):
    second = REPLY.replace("ships", "boats")
    row = chat("What is the light for, and who pays?", REPLY, "And in summer, when days are long?", second)
    tokenizer, _, passages = passages_of(tmp_path, {"chat.jsonl": [row] * 2})
    (prompt, target), (_, other) = (halves(tokenizer, passage) for passage in passages)
    assert prompt.endswith("<|im_start|>assistant\n") and "who pays" in prompt
    assert (REPLY + "<|im_end|>").startswith(target) and passages[0].part == "chat.jsonl"
    assert "ships" in target and "ships" not in other


THOUGHT = "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' and loop.last %}<t></t>{% endif %}"
THOUGHT += "{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"


def test_a_reply_is_asked_behind_what_its_template_begins_it_with(tmp_path):
    """Else recall counted the empty thought of Qwen 3, and the model without the LoRA began to think."""
    tokenizer = with_template(family("ChatML").tokenizer, THOUGHT)
    rows = [chat("What is the light for?", REPLY)] * 2
    prepared = prepare_rows(tmp_path, tokenizer, {"chat.jsonl": rows})
    examples = prepared.examples.without_lead(reply_lead(tokenizer))
    (prompt, target), *_ = (halves(tokenizer, passage) for passage in pick_passages(examples, 2, None))
    assert prompt.endswith("[assistant]<t></t>") and REPLY.startswith(target)
    assert len(examples) == len(prepared.examples) and reply_lead(family("ChatML")) == []


def test_a_thought_that_only_the_prompt_begins_is_not_asked_for():
    template = THOUGHT.replace("<t></t>", "").replace("[assistant]{% endif %}", "[assistant]<t>{% endif %}")
    style = chat_prompt_style(with_template(family("ChatML").tokenizer, template), None)
    assert (style.after, style.lead) == ("<|im_end|>[assistant]", "")


@pytest.mark.parametrize(
    ("sizes", "share", "least", "most"),
    [
        ([80, 10, 10], 0.1, 10, 10),
        ([90, 10], 0.1, 10, 10),
        ([10] * 10, 0.1, 10, 10),
        ([1, *[100] * 9], 0.05, 100, 101),  # not the title page alone
        ([160, *[1] * 200], 0.1, 30, 40),
    ],
)
def test_neither_the_largest_part_nor_a_title_page_is_held_out_for_a_small_share(sizes, share, least, most):
    chosen = [choose_parts(range(len(sizes)), sizes, share, np.random.default_rng(seed)) for seed in range(10)]
    assert {least <= sum(sizes[part] for part in parts) <= most for parts in chosen} == {True}
    assert len(set(map(frozenset, chosen))) > 1 or len(sizes) == 2  # at random


def test_data_without_a_passage_give_none(tmp_path):
    tokenizer, examples, passages = passages_of(tmp_path, {"t.txt": "Too short."})
    assert passages == pick_passages(examples, 0, tokenizer.bos) == []

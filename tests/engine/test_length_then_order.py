"""Length then order: the examples of each step, for each kind of switch, also after a resume."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler
from training_pro.core.host import get_model_card
from training_pro.core.jobs import Job, Note
from training_pro.data.examples import Examples, RowSource
from training_pro.data.examples.batch_order import BatchItem, order_in_pairs
from training_pro.engine.compute import collate
from training_pro.engine.training import trainer
from training_pro.engine.training.setup import prepare_data
from training_pro.tests.engine.architectures import random_examples, read_graph, record_batches, simulate_kill
from training_pro.tests.rowing import as_json, chat, family, prepare_rows

ORDER = {"batching": "length_then_order", "batch_size": 2, "epochs": 3, "save_each_epoch": False}
COUNT = 16  # examples of the story at this cutoff
EPOCH = COUNT // 2
IN_ORDER = [[n, n + 1] for n in range(0, COUNT, 2)]


@pytest.fixture
def steps(monkeypatch):
    return record_batches(monkeypatch, trainer)


def phases(place, name="a"):
    return [entry["phase"] for entry in read_graph(place, name)]


def each_once(steps):
    return sorted(n for step in steps for n in step) == list(range(COUNT))


def test_after_epochs(place, steps):
    place.train(**ORDER, switch_at=1)
    assert len(steps) == 3 * EPOCH
    assert each_once(steps[:EPOCH])
    assert steps[:EPOCH] != IN_ORDER
    assert steps[EPOCH : 2 * EPOCH] == IN_ORDER
    assert steps[2 * EPOCH :] == IN_ORDER
    assert phases(place) == ["by length"] * EPOCH + ["sequential"] * 2 * EPOCH


def test_the_first_phase_is_by_length_with_the_longest_first(place, steps):
    place.train(**ORDER, switch_at=3)
    place.train(name="b", **{**ORDER, "batching": "by_length"})
    assert steps[: 3 * EPOCH] == steps[3 * EPOCH :]


def test_after_a_switch_by_steps_the_rest_of_the_epoch_is_in_order(place, steps):
    place.train(**ORDER, switch_after="steps", switch_at=3)
    before = [n for step in steps[:3] for n in step]
    left = [n for n in range(COUNT) if n not in before]
    assert [n for step in steps[3:EPOCH] for n in step] == left
    assert steps[EPOCH : 2 * EPOCH] == IN_ORDER
    assert phases(place)[:4] == ["by length"] * 3 + ["sequential"]


def test_after_steps_with_accumulation_it_is_the_very_step(place, steps):
    place.train(**ORDER, accumulation=2, switch_after="steps", switch_at=3)
    before = [n for step in steps[:6] for n in step]
    assert [n for step in steps[6:EPOCH] for n in step] == [n for n in range(COUNT) if n not in before]


def by_loss(place, name="a", job=None, **more):
    curve = read_graph(place, "measured")
    bound = curve[4]["smoothed_loss"]
    bands = {"switch_after": "loss", "switch_loss_low": 0.1, "switch_loss_high": bound}
    return place.train(name=name, job=job, **{**ORDER, **bands, **more})


@pytest.fixture
def loss_bands(place):
    place.train(name="measured", **{**ORDER, "batching": "by_length"})
    return place


def test_a_switch_by_loss_starts_with_the_first_unfetched_batch(loss_bands, steps):
    job = Job("training", "a test")
    by_loss(loss_bands, job=job)
    curve = read_graph(loss_bands, "a")
    bound = read_graph(loss_bands, "measured")[4]["smoothed_loss"]
    step = next(e["current_steps"] for e in curve if e["smoothed_loss"] <= bound)
    notes = [
        e.text for e in job.log.since(0) if isinstance(e, Note) and e.text.startswith("Batch order after step ")
    ]
    assert len(notes) == 1
    assert notes[0].startswith(f"Batch order after step {step}: sequential, because")
    ahead = step + 1  # one batch is prefetched during a step
    before = [n for batch in steps[:ahead] for n in batch]
    assert each_once(steps[:EPOCH])
    assert [n for batch in steps[ahead:EPOCH] for n in batch] == [n for n in range(COUNT) if n not in before]
    assert steps[EPOCH : 2 * EPOCH] == IN_ORDER


def test_a_loss_under_the_band_switches_at_once_with_a_note(place, steps):
    job = Job("training", "a test")
    place.train(job=job, **ORDER, switch_after="loss", switch_loss_low=50, switch_loss_high=60)
    (note,) = [
        e.text for e in job.log.since(0) if isinstance(e, Note) and e.text.startswith("Batch order after step ")
    ]
    assert note.startswith("Batch order after step 1: ")
    assert note.endswith("is already at or below the lower bound (50), so the previous phase was short.")


PAIRS = {"switch_pairs": True, "switch_after": "steps", "switch_at": 3, "second_switch_at": 6}


def test_pairs_in_between(place, steps):
    place.train(**{**ORDER, **PAIRS})
    assert phases(place)[:7] == ["by length"] * 3 + ["pairs of neighbors"] * 3 + ["sequential"]
    assert each_once(steps[:EPOCH])
    in_pairs_ = steps[3:6]
    for step in in_pairs_:
        assert step.joins in ((False, True), (False, False))
        if step.joins[1]:
            assert step[1] == step[0] + 1
    assert any(step.joins[1] for step in in_pairs_)
    assert not any(any(step.joins) for step in [*steps[:3], *steps[6:]])


@pytest.mark.parametrize(
    "cut",
    [
        {"overlap": True},
        {"chunking": "dementor"},
        {"chunking": "dementor", "dementor_repeats": 2},
    ],
)
def test_a_pair_never_reads_the_same_text_twice(place, steps, cut):
    more = {**ORDER, **PAIRS, "switch_at": 0, "second_switch_at": 10**6, "epochs": 1, **cut}
    place.train(**more)
    host = place.host()
    blocks = prepare_data(place.settings(**more), host, get_model_card(host), Job("training", "a test")).examples
    spans = [block.source.sliced[block.number] for block in blocks]
    assert any(a.end > b.start for a, b in pairwise(spans))
    joined = [(spans[step[0]], spans[step[1]]) for step in steps if any(step.joins)]
    assert 2 * len(joined) > len(steps)
    assert all(a.end == b.start and a.section == b.section for a, b in joined)
    assert sorted(n for step in steps for n in step) == list(range(len(spans)))


def test_neighbors_of_rows():
    rows = np.array([1, 2, 2, 5, 6])  # lines 3 and 4 are blank; line 2 is in two pieces
    ids, follows = np.arange(10), np.ones(5, bool)
    source = RowSource("rows", ids, np.ones(10, bool), np.arange(0, 12, 2), rows, follows, "row", str)
    assert source.successors.tolist() == [1, 2, 3, 4, -1]
    assert Examples([source, source]).successors() == [1, 2, 3, 4, -1, 6, 7, 8, 9, -1]
    twice_and_a_part = Examples([source], [np.array([0, 1, 2, 3, 4, 1, 2, 4])])
    assert twice_and_a_part.successors() == [1, 2, 3, 4, -1, 6, -1, -1]
    assert Examples([source], [np.array([0, 2, 3])]).successors() == [-1, 2, -1]
    assert Examples([source], [np.array([], np.int64)]).successors() == []


TALE = [{"text": f"Row {number} of a tale, one after the other."} for number in range(12)]
LONG = {"text": "A row that is far too long, " * 8}


@pytest.mark.parametrize(
    ("rows", "more", "gaps"),
    [
        ([*TALE[:4], LONG, *TALE[4:]], {"too_long": "drop_any"}, [4]),
        ([*TALE[:4], {"text": 7, "other": None}, *TALE[4:]], {"bad_rows": "skip"}, [4]),
        ([*TALE[:4], "", "", *TALE[4:]], {}, []),
    ],
)
def test_rows_around_an_omitted_row_are_no_neighbors(tmp_path, rows, more, gaps):
    lines = "\n".join(row if isinstance(row, str) else as_json("x", row) for row in rows)
    row_examples = prepare_rows(tmp_path, family("ChatML"), {"tale.jsonl": lines}, cutoff=32, **more).examples
    assert row_examples.successors() == [-1 if n + 1 in gaps else n + 1 for n in range(11)] + [-1]


def test_rows_around_a_validation_row_are_no_neighbors(tmp_path):
    data = prepare_rows(tmp_path, family("ChatML"), {"tale.jsonl": TALE}, cutoff=32, eval_share=0.4)
    for side in (data.examples, data.validation):
        lines = [int(example.place.removeprefix("line ")) for example in side]
        wanted = [n + 1 if lines[n : n + 2] == [line, line + 1] else -1 for n, line in enumerate(lines)]
        assert side.successors() == wanted
    assert -1 in data.examples.successors()[:-1]


def test_pieces_around_an_omitted_piece_are_no_neighbors(tmp_path):
    conversation = chat("Hello.", "Yes. " * 20, "And now? " * 60, "No. " * 20)
    files = {"talk.jsonl": [conversation, chat("One?", "Only one.")]}
    row_examples = prepare_rows(
        tmp_path, family("ChatML"), files, cutoff=32, too_long="split", train_on="replies"
    ).examples
    (gap,) = (n for n, next_index in enumerate(row_examples.successors()[:-1]) if next_index < 0)
    before, after = (family("ChatML").decode(row_examples[n].ids.tolist()) for n in (gap, gap + 1))
    assert "Yes." in before or "And now?" in before
    assert "No." in after


@pytest.mark.parametrize("kind", ["steps", "epochs", "loss"])
def test_a_resume_in_the_middle_phase_replays_the_switch(loss_bands, steps, kind):
    place = loss_bands
    more = {**PAIRS, "switch_after": kind, "save_every": 1, "keep_checkpoints": 99, "dropout": 0.1}
    more |= {"switch_at": 1, "second_switch_at": 2} if kind == "epochs" else {}
    run = by_loss if kind == "loss" else lambda place, **more: place.train(**{**ORDER, **more})
    more |= {"second_switch_loss_low": 0.0, "second_switch_loss_high": 0.1} if kind == "loss" else {}
    steps.clear()
    run(place, name="whole", **more)
    whole, curve = list(steps), read_graph(place, "whole")
    middle = next(e["current_steps"] for e in curve if e["phase"] == "pairs of neighbors") + 1
    run(place, name="cut", **more)
    simulate_kill(place, "cut", middle)
    steps.clear()
    run(place, name="cut", **more, if_exists="continue")
    assert steps == whole[middle:]
    assert [s.joins for s in steps] == [s.joins for s in whole[middle:]]
    assert place.weights("cut") == place.weights("whole")


def test_pairs_of_neighbors():
    neighbours = [1, 2, -1, 4, 5, 6, -1, -1]
    lengths = [5, 5, 9, 3, 3, 20, 4, 7]
    places = order_in_pairs(np.arange(8), neighbours, lengths, 12, 2, 42, 0)
    pairs = {(a.number, b.number) for a, b in zip(places[::2], places[1::2], strict=True) if b.joins}
    assert pairs == {(0, 1), (3, 4)}  # 5 and 6 are too long for one row; 2 and 7 begin or end a section
    assert sorted(place.number for place in places) == list(range(8))
    assert places[0].number in (5, 6, 2, 7)  # the longest pair comes first
    assert order_in_pairs(np.arange(8), neighbours, lengths, 0, 2, 42, 0) != places


def test_an_example_without_a_pair_comes_last():
    places = order_in_pairs(np.arange(3), [1, -1, -1], [4, 4, 4], 0, 2, 42, 0)
    assert places == [BatchItem(0), BatchItem(1, True), BatchItem(2)]


@pytest.mark.parametrize("processes", [2, 3, 4])
@pytest.mark.parametrize("batch", [2, 4, 6])
def test_examples_that_do_not_fill_the_batches_of_all_processes(processes, batch):
    for count in range(9, 30):
        rows = random_examples(*[2] * count)
        order = order_in_pairs(np.arange(count), [*range(1, count), -1], [2] * count, 0, batch, 42, 0)
        met = set()
        for rank in range(processes):
            whole = BatchSampler(order, batch, drop_last=False)
            for places in BatchSamplerShard(whole, processes, rank, even_batches=True):
                made = collate([rows[p.number] for p in places], [p.joins for p in places], in_one_row=True)
                zeros = made.inputs["position_ids"][0].eq(0).sum()
                joined = [n for n in range(1, batch) if places[n].joins]
                assert all(places[n].number == places[n - 1].number + 1 for n in joined)
                assert zeros == batch - len(joined)
                met |= {p.number for p in places}
        assert met == set(range(count))


@pytest.mark.parametrize("in_one_row", [False, True])
def test_a_pair_is_one_row_in_which_positions_run_on(in_one_row):
    rows = random_examples(3, 2, 2)
    batch = collate(rows, [False, True, False], in_one_row=in_one_row)
    a, b, c = (row.ids.tolist() for row in rows)
    labels = [-100, *a[1:], -100, b[1]]
    if in_one_row:
        assert batch.inputs["input_ids"].tolist() == [a + b + c]
        assert batch.inputs["position_ids"].tolist() == [[0, 1, 2, 3, 4, 0, 1]]
        assert batch.labels.tolist() == [[*labels, -100, c[1]]]
        assert batch.owners.tolist() == [[0, 0, 0, 1, 1, 2, 2]]
    else:
        assert batch.inputs["input_ids"].tolist() == [a + b, [*c, 0, 0, 0]]
        assert batch.labels.tolist() == [labels, [-100, c[1], -100, -100, -100]]
        assert batch.inputs["attention_mask"].tolist() == [[1] * 5, [1, 1, 0, 0, 0]]
        assert torch.equal(batch.owners[0], torch.tensor([0, 0, 0, 1, 1]))


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            {"switch_pairs": True, "batch_size": 3},
            "so the batch size must be even. It is 3. Use 4, or turn the pair phase off.",
        ),
        ({"switch_pairs": True, "switch_at": 3}, "this is before the first switch (3). Use 4 or more."),
        (
            {"switch_pairs": True, "switch_at": 2},
            "this is at the same time as the first switch (2). Use 3 or more.",
        ),
        (
            {"switch_pairs": True, "switch_after": "loss", "second_switch_loss_high": 2.6},
            "the upper bound 2.6 is not below that of the first switch (2.5)",
        ),
        ({"switch_after": "loss", "switch_loss_low": 3}, "the lower bound 3 is above the upper bound 2.5."),
    ],
)
def test_inconsistent_switches_are_refused(place, more, sentence):
    with pytest.raises(Exception) as error:
        place.settings(**{**ORDER, **more})
    assert sentence in str(error.value)

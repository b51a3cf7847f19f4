"""By length, then in order: which examples each step saw, for each kind of change, also after going on."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler
from training_pro.core.host import card_of
from training_pro.core.jobs.events import Note
from training_pro.core.jobs.job import Job
from training_pro.data.examples.batch_order import Place, in_pairs
from training_pro.data.examples.examples import Examples, RowSource
from training_pro.engine.compute.collator import batched
from training_pro.engine.training import trainer
from training_pro.engine.training.setup import prepared
from training_pro.tests.engine.architectures import cut_off, examples, graph, seen
from training_pro.tests.rowing import as_json, chat, family, made

ORDER = {"batching": "length_then_order", "batch_size": 2, "epochs": 3, "save_each_epoch": False}
COUNT = 16  # examples of the story at this cutoff
EPOCH = COUNT // 2
IN_ORDER = [[n, n + 1] for n in range(0, COUNT, 2)]


@pytest.fixture
def steps(monkeypatch):
    return seen(monkeypatch, trainer)


def phases(place, name="a"):
    return [entry["phase"] for entry in graph(place, name)]


def each_once(steps):
    return sorted(n for step in steps for n in step) == list(range(COUNT))


def test_after_epochs(place, steps):
    place.train(**ORDER, switch_at=1)
    assert len(steps) == 3 * EPOCH
    assert each_once(steps[:EPOCH])
    assert steps[:EPOCH] != IN_ORDER
    assert steps[EPOCH : 2 * EPOCH] == IN_ORDER
    assert steps[2 * EPOCH :] == IN_ORDER
    assert phases(place) == ["by length"] * EPOCH + ["as in the data"] * 2 * EPOCH


def test_the_first_phase_is_by_length_with_the_longest_first(place, steps):
    place.train(**ORDER, switch_at=3)
    place.train(name="b", **{**ORDER, "batching": "by_length"})
    assert steps[: 3 * EPOCH] == steps[3 * EPOCH :]


def test_after_steps_what_is_left_of_the_epoch_follows_in_order(place, steps):
    place.train(**ORDER, switch_after="steps", switch_at=3)
    before = [n for step in steps[:3] for n in step]
    left = [n for n in range(COUNT) if n not in before]
    assert [n for step in steps[3:EPOCH] for n in step] == left
    assert steps[EPOCH : 2 * EPOCH] == IN_ORDER
    assert phases(place)[:4] == ["by length"] * 3 + ["as in the data"]


def test_after_steps_with_accumulation_it_is_the_very_step(place, steps):
    place.train(**ORDER, accumulation=2, switch_after="steps", switch_at=3)
    before = [n for step in steps[:6] for n in step]
    assert [n for step in steps[6:EPOCH] for n in step] == [n for n in range(COUNT) if n not in before]


def by_loss(place, name="a", job=None, **more):
    curve = graph(place, "measured")
    bound = curve[4]["smoothed_loss"]
    bands = {"switch_after": "loss", "switch_loss_low": 0.1, "switch_loss_high": bound}
    return place.train(name=name, job=job, **{**ORDER, **bands, **more})


@pytest.fixture
def measured(place):
    place.train(name="measured", **{**ORDER, "batching": "by_length"})
    return place


def test_by_loss_from_the_first_batch_that_is_not_fetched_yet(measured, steps):
    job = Job("training", "a test")
    by_loss(measured, job=job)
    curve = graph(measured, "a")
    bound = graph(measured, "measured")[4]["smoothed_loss"]
    step = next(e["current_steps"] for e in curve if e["smoothed_loss"] <= bound)
    said = [e.text for e in job.log.since(0) if isinstance(e, Note) and "changes over" in e.text]
    assert len(said) == 1
    assert said[0].startswith(f"After step {step} the order changes over: as in the data, because")
    ahead = step + 1  # one batch lies ready while a step is done
    before = [n for one in steps[:ahead] for n in one]
    assert each_once(steps[:EPOCH])
    assert [n for one in steps[ahead:EPOCH] for n in one] == [n for n in range(COUNT) if n not in before]
    assert steps[EPOCH : 2 * EPOCH] == IN_ORDER


def test_a_loss_under_the_band_changes_over_at_once_with_advice(place, steps):
    job = Job("training", "a test")
    place.train(job=job, **ORDER, switch_after="loss", switch_loss_low=50, switch_loss_high=60)
    (said,) = [e.text for e in job.log.since(0) if isinstance(e, Note) and "changes over" in e.text]
    assert said.startswith("After step 1 the order changes over")
    assert said.endswith("It is under 50 already: the phase before was short.")


PAIRS = {"switch_pairs": True, "switch_after": "steps", "switch_at": 3, "second_switch_at": 6}


def test_pairs_in_between(place, steps):
    place.train(**{**ORDER, **PAIRS})
    assert phases(place)[:7] == ["by length"] * 3 + ["pairs of neighbours"] * 3 + ["as in the data"]
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
    blocks = prepared(place.settings(**more), host, card_of(host), Job("training", "a test")).examples
    spans = [block.source.sliced[block.number] for block in blocks]
    assert any(a.end > b.start for a, b in pairwise(spans))
    joined = [(spans[step[0]], spans[step[1]]) for step in steps if any(step.joins)]
    assert 2 * len(joined) > len(steps)
    assert all(a.end == b.start and a.section == b.section for a, b in joined)
    assert sorted(n for step in steps for n in step) == list(range(len(spans)))


def test_neighbours_written_out():
    rows = np.array([1, 2, 2, 5, 6])  # lines 3 and 4 are blank; 2 is in two pieces
    ids, follows = np.arange(10), np.ones(5, bool)
    source = RowSource("rows", ids, np.ones(10, bool), np.arange(0, 12, 2), rows, follows, "row", str)
    assert source.neighbours.tolist() == [1, 2, 3, 4, -1]
    assert Examples([source, source]).neighbours() == [1, 2, 3, 4, -1, 6, 7, 8, 9, -1]
    twice_and_a_part = Examples([source], [np.array([0, 1, 2, 3, 4, 1, 2, 4])])
    assert twice_and_a_part.neighbours() == [1, 2, 3, 4, -1, 6, -1, -1]
    assert Examples([source], [np.array([0, 2, 3])]).neighbours() == [-1, 2, -1]
    assert Examples([source], [np.array([], np.int64)]).neighbours() == []


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
def test_over_a_row_that_is_left_out_nobody_is_a_neighbour(tmp_path, rows, more, gaps):
    lines = "\n".join(row if isinstance(row, str) else as_json("x", row) for row in rows)
    found = made(tmp_path, family("ChatML"), {"tale.jsonl": lines}, cutoff=32, **more).examples
    assert found.neighbours() == [-1 if n + 1 in gaps else n + 1 for n in range(11)] + [-1]


def test_over_a_row_that_is_kept_aside_nobody_is_a_neighbour(tmp_path):
    data = made(tmp_path, family("ChatML"), {"tale.jsonl": TALE}, cutoff=32, eval_share=0.4)
    for side in (data.examples, data.kept_aside):
        lines = [int(example.place.removeprefix("line ")) for example in side]
        wanted = [n + 1 if lines[n : n + 2] == [line, line + 1] else -1 for n, line in enumerate(lines)]
        assert side.neighbours() == wanted
    assert -1 in data.examples.neighbours()[:-1]


def test_over_a_piece_that_is_left_out_nobody_is_a_neighbour(tmp_path):
    talk = chat("Hello.", "Yes. " * 20, "And now? " * 60, "No. " * 20)
    files = {"talk.jsonl": [talk, chat("One?", "Only one.")]}
    found = made(tmp_path, family("ChatML"), files, cutoff=32, too_long="split", train_on="replies").examples
    (gap,) = (n for n, other in enumerate(found.neighbours()[:-1]) if other < 0)
    before, behind = (family("ChatML").decode(found[n].ids.tolist()) for n in (gap, gap + 1))
    assert "Yes." in before or "And now?" in before
    assert "No." in behind


@pytest.mark.parametrize("kind", ["steps", "epochs", "loss"])
def test_going_on_in_the_middle_phase_replays_the_change(measured, steps, kind):
    place = measured
    more = {**PAIRS, "switch_after": kind, "save_every": 1, "keep_checkpoints": 99, "dropout": 0.1}
    more |= {"switch_at": 1, "second_switch_at": 2} if kind == "epochs" else {}
    run = by_loss if kind == "loss" else lambda place, **more: place.train(**{**ORDER, **more})
    more |= {"second_switch_loss_low": 0.0, "second_switch_loss_high": 0.1} if kind == "loss" else {}
    steps.clear()
    run(place, name="whole", **more)
    whole, curve = list(steps), graph(place, "whole")
    middle = next(e["current_steps"] for e in curve if e["phase"] == "pairs of neighbours") + 1
    run(place, name="cut", **more)
    cut_off(place, "cut", middle)
    steps.clear()
    run(place, name="cut", **more, if_exists="continue")
    assert steps == whole[middle:]
    assert [s.joins for s in steps] == [s.joins for s in whole[middle:]]
    assert place.weights("cut") == place.weights("whole")


def test_pairs_written_out():
    neighbours = [1, 2, -1, 4, 5, 6, -1, -1]
    lengths = [5, 5, 9, 3, 3, 20, 4, 7]
    found = in_pairs(np.arange(8), neighbours, lengths, 12, 2, 42, 0)
    pairs = {(a.number, b.number) for a, b in zip(found[::2], found[1::2], strict=True) if b.joins}
    assert pairs == {(0, 1), (3, 4)}  # 5 and 6 are too long for one row; 2 and 7 begin or end a section
    assert sorted(place.number for place in found) == list(range(8))
    assert found[0].number in (5, 6, 2, 7)  # the longest couple comes first
    assert in_pairs(np.arange(8), neighbours, lengths, 0, 2, 42, 0) != found


def test_an_odd_one_is_left_for_the_end():
    found = in_pairs(np.arange(3), [1, -1, -1], [4, 4, 4], 0, 2, 42, 0)
    assert found == [Place(0), Place(1, True), Place(2)]


@pytest.mark.parametrize("processes", [2, 3, 4])
@pytest.mark.parametrize("batch", [2, 4, 6])
def test_examples_that_do_not_fill_the_batches_of_all_processes(processes, batch):
    for count in range(9, 30):
        rows = examples(*[2] * count)
        order = in_pairs(np.arange(count), [*range(1, count), -1], [2] * count, 0, batch, 42, 0)
        met = set()
        for rank in range(processes):
            whole = BatchSampler(order, batch, drop_last=False)
            for places in BatchSamplerShard(whole, processes, rank, even_batches=True):
                made = batched([rows[p.number] for p in places], [p.joins for p in places], in_one_row=True)
                zeros = made["position_ids"][0].eq(0).sum()
                joined = [n for n in range(1, batch) if places[n].joins]
                assert all(places[n].number == places[n - 1].number + 1 for n in joined)
                assert zeros == batch - len(joined)
                met |= {p.number for p in places}
        assert met == set(range(count))


@pytest.mark.parametrize("in_one_row", [False, True])
def test_a_pair_is_one_row_in_which_positions_run_on(in_one_row):
    rows = examples(3, 2, 2)
    batch = batched(rows, [False, True, False], in_one_row=in_one_row)
    a, b, c = (row.ids.tolist() for row in rows)
    labels = [-100, *a[1:], -100, b[1]]
    if in_one_row:
        assert batch["input_ids"].tolist() == [a + b + c]
        assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 4, 0, 1]]
        assert batch["labels"].tolist() == [[*labels, -100, c[1]]]
        assert batch["owners"].tolist() == [[0, 0, 0, 1, 1, 2, 2]]
    else:
        assert batch["input_ids"].tolist() == [a + b, [*c, 0, 0, 0]]
        assert batch["labels"].tolist() == [labels, [-100, c[1], -100, -100, -100]]
        assert batch["attention_mask"].tolist() == [[1] * 5, [1, 1, 0, 0, 0]]
        assert torch.equal(batch["owners"][0], torch.tensor([0, 0, 0, 1, 1]))


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"switch_pairs": True, "batch_size": 3}, "wants an even batch size. It is 3; use 4, or leave pairs off."),
        ({"switch_pairs": True, "switch_at": 3}, "it comes before the first one (3). Use 4 or more."),
        ({"switch_pairs": True, "switch_at": 2}, "it comes together with the first one (2). Use 3 or more."),
        (
            {"switch_pairs": True, "switch_after": "loss", "second_switch_loss_high": 2.6},
            "its upper bound 2.6 is not under that of the first one, 2.5",
        ),
        ({"switch_after": "loss", "switch_loss_low": 3}, "the lower bound 3 is above the upper one, 2.5."),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(place, more, sentence):
    with pytest.raises(Exception) as error:
        place.settings(**{**ORDER, **more})
    assert sentence in str(error.value)

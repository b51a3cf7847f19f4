"""Length then order: the examples of each step, for each kind of switch, also after a resume."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler
from training_pro.core.errors import SettingsError
from training_pro.core.host import get_model_card
from training_pro.core.jobs import Job, Note
from training_pro.data.examples import BatchItem, Examples, RowSource, batch_order
from training_pro.data.prepare import prepare
from training_pro.engine.compute import collate
from training_pro.engine.tokenizer import make_working_tokenizer
from training_pro.engine.training import trainer
from training_pro.tests.engine.architectures import random_examples, read_graph, record_batches, simulate_kill
from training_pro.tests.engine.watching import texts
from training_pro.tests.rowing import as_json, chat, family, prepare_rows

ORDER = {"batching": "length_then_order", "batch_size": 2, "epochs": 3, "save_each_epoch": False}
PAIRS = {"switch_pairs": True, "switch_after": "steps", "switch_at": 3, "second_switch_at": 6}
COUNT = 16  # examples of the story at this cutoff
EPOCH = COUNT // 2
IN_ORDER = [[n, n + 1] for n in range(0, COUNT, 2)]


@pytest.fixture
def steps(monkeypatch):
    return record_batches(monkeypatch, trainer)


def phases(place, name="a"):
    return [entry["phase"] for entry in read_graph(place, name)]


def flat(steps):
    return [n for step in steps for n in step]


def rest_in_order(steps, switch):
    """Whether the epoch holds each example once, and after this batch those that are left in order."""
    left = [n for n in range(COUNT) if n not in flat(steps[:switch])]
    return sorted(flat(steps[:EPOCH])) == list(range(COUNT)) and flat(steps[switch:EPOCH]) == left


def test_after_epochs_of_examples_by_length_they_are_in_order(place, steps):
    place.train(**ORDER, switch_at=1)
    assert len(steps) == 3 * EPOCH and rest_in_order(steps, EPOCH) and steps[:EPOCH] != IN_ORDER
    assert steps[EPOCH:] == IN_ORDER * 2
    assert phases(place) == ["by length"] * EPOCH + ["sequential"] * 2 * EPOCH
    ordered = list(steps)
    place.train(name="b", **{**ORDER, "batching": "by_length", "epochs": 1})
    assert steps[3 * EPOCH :] == ordered[:EPOCH]


def test_after_a_switch_by_steps_the_rest_of_the_epoch_is_in_order(place, steps):
    place.train(**{**ORDER, "epochs": 2}, switch_after="steps", switch_at=3)
    assert rest_in_order(steps, 3) and steps[EPOCH:] == IN_ORDER
    assert phases(place)[:4] == ["by length"] * 3 + ["sequential"]
    steps.clear()
    place.train(name="b", **{**ORDER, "epochs": 1}, accumulation=2, switch_after="steps", switch_at=3)
    assert rest_in_order(steps, 6)


def notes_of_order(job):
    return [text for text in texts(job, Note) if text.startswith("Batch order after step ")]


@pytest.fixture
def bound(place):
    """The smoothed loss of the fifth step by length."""
    place.train(name="measured", **{**ORDER, "batching": "by_length", "epochs": 1})
    return read_graph(place, "measured")[4]["smoothed_loss"]


def test_a_switch_by_loss_starts_with_the_first_unfetched_batch(place, bound, steps):
    job, bands = Job("training", "a test"), {"switch_loss_low": 0.1, "switch_loss_high": bound}
    place.train(job=job, switch_after="loss", **{**ORDER, **bands})
    steps_ = steps[:]
    step = next(e["current_steps"] for e in read_graph(place) if e["smoothed_loss"] <= bound)
    (note,) = notes_of_order(job)
    assert note.startswith(f"Batch order after step {step}: sequential, because")
    assert rest_in_order(steps_, step + 1)  # one batch is prefetched during a step
    assert steps_[EPOCH : 2 * EPOCH] == IN_ORDER
    job = Job("training", "a test")
    low = {"switch_loss_low": 50, "switch_loss_high": 60, "max_steps": 3}
    place.train(job=job, name="b", switch_after="loss", **{**ORDER, **low})
    (note,) = notes_of_order(job)
    assert note.startswith("Batch order after step 1: ")
    assert note.endswith("is already at or below the lower bound (50), so the previous phase was short.")


def test_pairs_in_between(place, steps):
    place.train(**{**ORDER, **PAIRS, "epochs": 1})
    assert phases(place)[:7] == ["by length"] * 3 + ["pairs of neighbors"] * 3 + ["sequential"]
    assert sorted(flat(steps)) == list(range(COUNT))
    paired = [step for step in steps[3:6] if step.joins[1]]
    assert paired and all(step[1] == step[0] + 1 and not step.joins[0] for step in paired)
    assert not any(any(step.joins) for step in [*steps[:3], *steps[6:]])


@pytest.mark.parametrize("cut", [{"overlap": True}, {"chunking": "dementor", "dementor_repeats": 2}])
def test_a_pair_never_reads_the_same_text_twice(place, steps, cut):
    settings = {**ORDER, **PAIRS, "switch_at": 0, "second_switch_at": 10**6, "epochs": 1, **cut}
    place.train(**settings)
    card = get_model_card(place.host())
    tokenizer = make_working_tokenizer(card.tokenizer)
    blocks = prepare(place.settings(**settings), place.folders, card, tokenizer, lambda *_: None).examples
    spans = [block.source.sliced[block.number] for block in blocks]
    assert any(a.end > b.start for a, b in pairwise(spans))
    joined = [(spans[step[0]], spans[step[1]]) for step in steps if any(step.joins)]
    assert 2 * len(joined) > len(steps)
    assert all(a.end == b.start and a.section == b.section for a, b in joined)
    assert sorted(flat(steps)) == list(range(len(spans)))


def test_neighbors_of_rows():
    rows = np.array([1, 2, 2, 5, 6])  # lines 3 and 4 are blank; line 2 is in two pieces
    ids, follows = np.arange(10), np.ones(5, bool)
    source = RowSource("rows", ids, np.ones(10, bool), np.arange(0, 12, 2), rows, follows, "row", str)
    assert Examples([source, source]).successors() == [1, 2, 3, 4, -1, 6, 7, 8, 9, -1]
    for picked, successors in (
        ([0, 1, 2, 3, 4, 1, 2, 4], [1, 2, 3, 4, -1, 6, -1, -1]),
        ([0, 2, 3], [-1, 2, -1]),
        ([], []),
    ):
        assert Examples([source], [np.array(picked, np.int64)]).successors() == successors


TALE = [{"text": f"Row {number} of a tale, one after the other."} for number in range(12)]
LONG = {"text": "A row that is far too long, " * 8}


@pytest.mark.parametrize(
    ("between", "more", "gaps"),
    [
        ([LONG], {"too_long": "drop_any"}, [4]),
        ([{"text": 7, "other": None}], {"bad_rows": "skip"}, [4]),
        (["", ""], {}, []),
    ],
)
def test_rows_around_an_omitted_row_are_no_neighbors(tmp_path, between, more, gaps):
    rows = [*TALE[:4], *between, *TALE[4:]]
    lines = "\n".join(row if isinstance(row, str) else as_json("x", row) for row in rows)
    examples = prepare_rows(tmp_path, family("ChatML"), {"tale.jsonl": lines}, cutoff=32, **more).examples
    assert examples.successors() == [-1 if n + 1 in gaps else n + 1 for n in range(11)] + [-1]


def test_rows_around_a_validation_row_or_an_omitted_piece_are_no_neighbors(tmp_path):
    data = prepare_rows(tmp_path / "a", family("ChatML"), {"tale.jsonl": TALE}, cutoff=32, eval_share=0.4)
    for side in (data.examples, data.validation):
        lines = [int(example.place.removeprefix("line ")) for example in side]
        wanted = [n + 1 if lines[n : n + 2] == [line, line + 1] else -1 for n, line in enumerate(lines)]
        assert side.successors() == wanted
    assert -1 in data.examples.successors()[:-1]
    conversation = chat("Hello.", "Yes. " * 20, "And now? " * 60, "No. " * 20)
    files, split = {"talk.jsonl": [conversation, chat("One?", "Only one.")]}, {"too_long": "split"}
    rows = prepare_rows(tmp_path / "b", family("ChatML"), files, cutoff=32, train_on="replies", **split).examples
    (gap,) = (n for n, following in enumerate(rows.successors()[:-1]) if following < 0)
    before, after = (family("ChatML").decode(rows[n].ids.tolist()) for n in (gap, gap + 1))
    assert "Yes." in before or "And now?" in before
    assert "No." in after


@pytest.mark.parametrize("kind", ["steps", "epochs", "loss"])
def test_a_resume_in_the_middle_phase_replays_the_switch(place, bound, steps, kind):
    kinds = {
        "steps": {},
        "epochs": {"switch_at": 1, "second_switch_at": 2},
        "loss": {"switch_loss_low": 0.1, "switch_loss_high": bound, "second_switch_loss_low": 0.0},
    }
    saving = {"save_every": 1, "keep_checkpoints": 99, "dropout": 0.1, "second_switch_loss_high": 0.1}
    more = {**ORDER, **PAIRS, "switch_after": kind, **saving, **kinds[kind]}
    steps.clear()
    place.train(name="whole", **more)
    whole = list(steps)
    middle = phases(place, "whole").index("pairs of neighbors") + 2
    place.train(name="cut", **more)
    simulate_kill(place, "cut", middle)
    steps.clear()
    place.train(name="cut", **more, if_exists="continue")
    assert [(list(s), s.joins) for s in steps] == [(list(s), s.joins) for s in whole[middle:]]
    assert place.weights("cut") == place.weights("whole")


def test_pairs_of_neighbors():
    def order(*args):
        return batch_order.order_in_pairs(*args, 2, 42, 0)

    neighbours, lengths = [1, 2, -1, 4, 5, 6, -1, -1], [5, 5, 9, 3, 3, 20, 4, 7]
    places = order(np.arange(8), neighbours, lengths, 12)
    pairs = {(a.number, b.number) for a, b in zip(places[::2], places[1::2], strict=True) if b.joins}
    assert pairs == {(0, 1), (3, 4)}  # 5 and 6 are too long for one row; 2 and 7 begin or end a section
    assert sorted(place.number for place in places) == list(range(8))
    assert places[0].number in (5, 6, 2, 7)  # the longest pair comes first
    assert order(np.arange(8), neighbours, lengths, 0) != places
    alone = [BatchItem(0), BatchItem(1, True), BatchItem(2)]  # an example without a pair comes last
    assert order(np.arange(3), [1, -1, -1], [4, 4, 4], 0) == alone


@pytest.mark.parametrize("processes", [2, 3, 4])
@pytest.mark.parametrize("batch", [2, 4])
def test_examples_that_do_not_fill_the_batches_of_all_processes(processes, batch):
    for count in range(9, 30, 3):
        rows, following = random_examples(*[2] * count), [*range(1, count), -1]
        order = batch_order.order_in_pairs(np.arange(count), following, [2] * count, 0, batch, 42, 0)
        met = set()
        for rank in range(processes):
            whole = BatchSampler(order, batch, drop_last=False)
            for places in BatchSamplerShard(whole, processes, rank, even_batches=True):
                made = collate([rows[p.number] for p in places], [p.joins for p in places], in_one_row=True)
                joined = [n for n in range(1, batch) if places[n].joins]
                assert all(places[n].number == places[n - 1].number + 1 for n in joined)
                assert made.inputs["position_ids"][0].eq(0).sum() == batch - len(joined)
                met |= {p.number for p in places}
        assert met == set(range(count))


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"switch_pairs": True, "batch_size": 3}, "so the batch size must be even. It is 3. Use 4, or turn"),
        ({"switch_pairs": True, "switch_at": 3}, "this is before the first switch (3). Use 4 or more."),
        ({"switch_pairs": True, "switch_at": 2}, "this is at the same time as the first switch (2). Use 3"),
        (
            {"switch_pairs": True, "switch_after": "loss", "second_switch_loss_high": 2.6},
            "the upper bound 2.6 is not below that of the first switch (2.5)",
        ),
        ({"switch_after": "loss", "switch_loss_low": 3}, "the lower bound 3 is above the upper bound 2.5."),
    ],
)
def test_inconsistent_switches_are_refused(place, more, sentence):
    with pytest.raises(SettingsError) as error:
        place.settings(**{**ORDER, **more})
    assert sentence in str(error.value)


@pytest.mark.parametrize("batching", ["shuffled", "by_length", "sequential"])
def test_other_orders_hold_every_example_once_an_epoch_also_after_a_resume(place, steps, batching):
    options = {"batching": batching, "batch_size": 3, "accumulation": 2, "epochs": 2, "save_every": 1}
    options["keep_checkpoints"] = 99  # keep all to resume from
    place.train(name="whole", **options)
    whole, numbers = list(steps), flat(steps)
    first, second = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
    assert sorted(first) == sorted(second) == list(range(len(first)))
    assert (first == second) is (first == sorted(first)) is (batching == "sequential")
    lengths = [max(step.lengths) for step in whole]
    assert batching != "by_length" or lengths[0] == max(lengths)
    place.train(name="cut", **options)
    for start in (3, 1):
        simulate_kill(place, "cut", start)
        steps.clear()
        place.train(name="cut", **options, resume="newest")
        assert steps == whole[start * 2 :]
        assert place.weights("cut") == place.weights("whole")

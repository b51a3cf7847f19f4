"""Length then order: the examples of each step, for each kind of switch, also after a resume."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from training_pro.core.jobs import Job, Note, Request
from training_pro.engine.inference import eval_loop
from training_pro.engine.training import trainer
from training_pro.tests.engine.architectures import read_graph, record_batches, simulate_kill
from training_pro.tests.engine.inference.references import prepared
from training_pro.tests.engine.watching import texts
from training_pro.tests.rowing import as_json, chat, family, prepare_rows

ORDER = {"batching": "length_then_order", "batch_size": 2, "epochs": 3, "save_each_epoch": False}
PAIRS = {"switch_pairs": True, "switch_after": "steps", "switch_at": 3, "second_switch_at": 6}
COUNT = 16  # examples of the story at this cutoff


@pytest.fixture
def steps(monkeypatch):
    return record_batches(monkeypatch, trainer)


def phases(place, name="a"):
    return [entry["phase"] for entry in read_graph(place, name)]


def flat(steps):
    return [n for step in steps for n in step]


def test_examples_by_length_then_pairs_of_neighbors_then_in_order(place, steps):
    """The rest of the first epoch, and the whole second one."""
    place.train(**{**ORDER, **PAIRS, "epochs": 2})
    first, second = steps[: COUNT // 2], steps[COUNT // 2 :]
    assert phases(place)[:7] == ["by length"] * 3 + ["pairs of neighbors"] * 3 + ["sequential"]
    assert sorted(flat(first)) == list(range(COUNT))
    assert flat(first[6:]) == sorted(flat(first[6:])) and flat(second) == list(range(COUNT))
    paired = [step for step in first[3:6] if step.joins[1]]
    assert paired and all(step[1] == step[0] + 1 and not step.joins[0] for step in paired)
    assert not any(any(step.joins) for step in [*first[:3], *first[6:], *second])
    place.train(name="b", **{**ORDER, "batching": "by_length", "epochs": 1})
    assert steps[COUNT : COUNT + 3] == first[:3]


@pytest.mark.parametrize("cut", [{"overlap": True}, {"chunking": "dementor", "dementor_repeats": 2}])
def test_a_pair_never_reads_the_same_text_twice(place, steps, cut):
    settings = {**ORDER, **PAIRS, "switch_at": 0, "second_switch_at": 10**6, "epochs": 1, **cut}
    place.train(**settings)
    blocks = prepared(place, **settings).examples
    spans = [block.source.sliced[block.number] for block in blocks]
    assert any(a.end > b.start for a, b in pairwise(spans))
    joined = [(spans[step[0]], spans[step[1]]) for step in steps if any(step.joins)]
    assert 2 * len(joined) > len(steps)
    assert all(a.end == b.start and a.section == b.section for a, b in joined)
    assert sorted(flat(steps)) == list(range(len(spans)))


TALE = [{"text": f"Row {number} of a tale, one after the other."} for number in range(12)]
LONG = {"text": "A row that is far too long, " * 8}


@pytest.mark.parametrize(
    ("between", "more", "gaps"),
    [
        ([LONG], {"too_long": "drop_any"}, [4]),
        ([{"text": True, "other": None}], {"bad_rows": "skip"}, [4]),
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
    files = {
        "talk.jsonl": [chat("Hello.", "Yes. " * 20, "And now? " * 60, "No. " * 20), chat("One?", "Only one.")]
    }
    more = {"cutoff": 32, "train_on": "replies", "too_long": "split"}
    rows = prepare_rows(tmp_path / "b", family("ChatML"), files, **more).examples
    (gap,) = (n for n, following in enumerate(rows.successors()[:-1]) if following < 0)
    assert "No." in family("ChatML").decode(rows[gap + 1].ids.tolist())


@pytest.mark.parametrize("kind", ["epochs", pytest.param("loss", marks=pytest.mark.long)])
def test_a_resume_in_the_middle_phase_replays_the_switch(place, steps, kind):
    more = {**ORDER, **PAIRS, "save_every": 1, "keep_checkpoints": 99, "dropout": 0.1, "switch_after": kind}
    if kind == "loss":
        place.train(name="measured", **{**ORDER, "batching": "by_length", "epochs": 1})
        bound = read_graph(place, "measured")[4]["smoothed_loss"]
        more |= {"switch_loss_low": 0.1, "switch_loss_high": bound, "second_switch_loss_low": 0.0}
        more["second_switch_loss_high"] = 0.1
    else:
        more |= {"switch_at": 1, "second_switch_at": 2}
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


@pytest.mark.long
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


def test_later_passes_are_spent_on_what_is_not_known_yet_also_after_a_resume(place, steps, monkeypatch):
    """What is known here: what is in one half of the story."""
    known, stopped, original = set(), [], eval_loop.EvalLoop.sums

    def sums(self, examples, groups, count, report=None):
        if count == COUNT and stopped:
            stopped.pop().control.ask(Request.STOP)
        found = original(self, examples, groups, count)
        if found is not None and count == COUNT:
            found.hits[:] = [found.tokens[n] if n in known else 0.89 * found.tokens[n] for n in range(count)]
        return found

    monkeypatch.setattr(eval_loop.EvalLoop, "sums", sums)
    options = {"batching": "not_known", "batch_size": 2, "epochs": 3, "save_every": 1, "keep_checkpoints": 99}
    known |= {*range(0, COUNT, 2)}
    job = Job("training", "a test")
    place.train(job=job, name="whole", **options)
    whole, passes = list(steps), np.array(flat(steps)).reshape(3, COUNT).tolist()
    assert sorted(passes[0]) == list(range(COUNT))
    for later in passes[1:]:
        assert sorted(later) == sorted([*range(1, COUNT, 2)] * 2)
    assert passes[1] != passes[2] and f"Pass 2: {COUNT // 2} of {COUNT} examples" in " ".join(texts(job, Note))
    place.train(name="cut", **options)
    known.clear()  # from now on, another pass would be drawn
    simulate_kill(place, "cut", COUNT // 2 + 3)
    steps.clear()
    place.train(name="cut", **{**options, "epochs": 2}, resume="newest")
    assert steps == whole[COUNT // 2 + 3 : COUNT]
    known |= {*range(COUNT)}
    steps.clear()
    place.train(name="all", **options)
    assert [sorted(each) for each in np.array(flat(steps)).reshape(3, COUNT)] == [[*range(COUNT)]] * 3
    known -= {*range(1, COUNT, 2)}
    steps.clear()
    job = Job("training", "stopped while it is measured what is known")
    stopped.append(job)
    place.train(job=job, name="stopped", **options)
    place.train(name="stopped", **options, resume="newest")
    assert {*flat(steps)[COUNT:]} == {*range(1, COUNT, 2)}

"""Training a finished LoRA further and resuming from an earlier checkpoint; earlier files go into a backup."""

from __future__ import annotations

import datetime
import json
import pickle
import shutil

import pytest
import torch
from safetensors.torch import load_file
from training_pro.core.errors import SavingError, SettingsError
from training_pro.core.jobs import Advice, Job, Note, RunPlanned, Step
from training_pro.engine.peft_engine import PeftEngine
from training_pro.records.folder import loras
from training_pro.tests.engine import watching
from training_pro.tests.tiny import read_tree

TODAY = f"Backup-{datetime.date.today().isoformat()}"


def largest_change(place, before):
    now = load_file(place.lora() / "adapter_model.safetensors")
    return max(float((now[key] - before[key]).abs().max()) for key in before)


@pytest.mark.long
def test_a_finished_lora_is_trained_further_from_its_weights_and_a_backup_kept_twice_a_day(with_lora):
    before, job = read_tree(with_lora.lora()), Job("training", "a test")
    assert with_lora.train(if_exists="continue", job=job).outcome == "finished"
    events = job.log.since(0)
    told = [n for n, e in enumerate(events) if isinstance(e, Note) and "Continuing to train" in e.text]
    assert told[0] < [type(event) for event in events].index(RunPlanned)  # before it starts
    steps = [event for event in events if isinstance(event, Step)]
    assert [step.step for step in steps] == [1, 2, 3, 4]
    assert read_tree(with_lora.lora() / TODAY) == before
    first = json.loads((with_lora.lora() / TODAY / "training_graph.json").read_text())[0]
    assert steps[0].loss < first["loss"] - 0.05  # it begins where the first run ended
    weights = load_file(with_lora.lora() / "adapter_model.safetensors")
    second = {path: data for path, data in read_tree(with_lora.lora()).items() if not path.startswith(TODAY)}
    with_lora.train(if_exists="continue", max_steps=1, learning_rate=1e-9)
    assert read_tree(with_lora.lora() / f"{TODAY}-2") == second
    assert 0 < largest_change(with_lora, weights) < 1e-7


def test_an_old_bin_is_read_too_but_not_one_that_would_run_something(with_lora):
    class Runs:
        def __reduce__(self):
            return (print, ("it ran",))

    folder = with_lora.lora()
    weights = load_file(folder / "adapter_model.safetensors")
    torch.save(weights, folder / "adapter_model.bin")
    for name in ("adapter_model.safetensors", "training_log.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "checkpoint-4-epoch-1")
    assert loras.run_status(folder) == "made elsewhere"
    with_lora.train(if_exists="continue", max_steps=1, learning_rate=1e-9)
    assert (folder / TODAY / "adapter_model.bin").is_file()
    assert largest_change(with_lora, weights) < 1e-7
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(Runs()))
    with pytest.raises(SavingError, match="can't be read"):
        with_lora.train(if_exists="continue")


def test_another_model_or_precision_is_said_where_training_goes_on(with_lora):
    log = with_lora.lora() / "training_log.json"
    log.write_text(log.read_text().replace('"tiny"', '"other"').replace('"auto"', '"4bit"'))
    for resume, more, expected in (
        ("", {"if_exists": "continue", "max_steps": 1}, "'a' was trained on other, but the model is now tiny."),
        ("newest", {"max_steps": 5}, "'a' was trained on the model loaded as 4bit, but it is now loaded as auto."),
    ):
        advice = PeftEngine().check_start(with_lora.settings(**more), with_lora.host(), resume=resume).advice
        assert [text for text in advice if text.startswith(expected)]
    job = Job("training", "a test")
    with_lora.train(job=job, resume="newest", max_steps=5)
    assert [text for text in watching.texts(job, Advice) if text.startswith(expected)]


def test_another_shape_is_refused_before_anything_is_loaded(with_lora):
    host = with_lora.host()
    host.loaded_model = lambda: pytest.fail("the weights were loaded")
    before = read_tree(with_lora.folders.user_data)
    with pytest.raises(SettingsError) as refusal:
        with_lora.train(host, if_exists="continue", rank=8, alpha=16, dora=True)
    wrong = [problem.partition(" in the LoRA 'a', but")[0] for problem in refusal.value.problems]
    assert wrong == ["LoRA Rank is 4", "LoRA Alpha is 8", "DoRA is off"]
    assert read_tree(with_lora.folders.user_data) == before


@pytest.mark.long
@pytest.mark.parametrize("targets", ["q-v", "all-linear"])
def test_other_layers_are_refused_and_named(place, targets):
    place.train(targets="q-v" if targets == "all-linear" else "all-linear", max_steps=1)
    before = read_tree(place.lora())
    with pytest.raises(SavingError, match=r"can't be trained further .*its layers differ .*\(.*down_proj"):
        place.train(if_exists="continue", targets=targets)
    assert read_tree(place.lora()) == before


@pytest.mark.long
def test_resuming_from_an_earlier_checkpoint_moves_the_later_ones_into_a_backup(place):
    more, job = {"save_every": 2, "keep_checkpoints": 9}, Job("training", "a test")
    place.train(**more, epochs=2)
    place.train(**more, epochs=3, resume="checkpoint-2", job=job)
    assert next(event.first_step for event in job.log.since(0) if isinstance(event, RunPlanned)) == 2
    later = sorted(path.name for path in (place.lora() / TODAY).iterdir())
    finished = ["adapter_config.json", "adapter_model.safetensors"]  # its last step may have no checkpoint
    assert later == [*finished, "checkpoint-4-epoch-1", "checkpoint-6", "checkpoint-8-epoch-2"]

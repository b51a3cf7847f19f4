"""One damaged value in any record costs only that value: never a list, a card, a queue or a run."""

from __future__ import annotations

import copy
import json
import os
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import strategies as st
from training_pro.commands.main import main
from training_pro.core.errors import TrainingProError
from training_pro.core.host import ModelCard
from training_pro.core.jobs import Session
from training_pro.engine.peft_engine import PeftEngine
from training_pro.engine.saving import load_run_state
from training_pro.hosts.standalone import StandaloneHost, standalone_folders
from training_pro.interface.base import Form
from training_pro.interface.run import queue_view
from training_pro.interface.tabs import run_list
from training_pro.records.folder import (
    RunFolder,
    copy_as_lora,
    inventory,
    loras,
    plan_upload,
    read_samples,
    run_files,
    trash,
)
from training_pro.records.queue import QueueRunner
from training_pro.records.report import Workload, estimate_time
from training_pro.settings import presets
from training_pro.settings.files import load_settings
from training_pro.tests.hardness.conftest import run_cases

WRITTEN = Path(__file__).parents[1] / "fixtures" / "version_1_0_0"
CASES = int(os.environ.get("TRAINING_PRO_HARDNESS_CASES", "60"))
HUGE = 10**400
BAD_VALUES = (
    *(None, True, False, 0, -1, 1.5, -(2**70), 2**53, 1e308, HUGE, float("nan"), float("inf"), float("-inf")),
    *("", "x", "1e999", "\ud800", "\u202e\x00\x1b[2J", "9" * 5000, "../../outside", "0001-01-01T00:00:00+00:00"),
    *([], [None], [[]], {}, {"": {}}, {"loss": "x"}, [{"current_steps": "x", "loss": None}]),
)
NOT_JSON = (
    *(b"", b"{", b"null", b"7", b'"x"', b"\xff\xfe\x00", b"[" * 5000, b"[" * 100_000),
    b'{"a": 1' + b"0" * 5000 + b"}",
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A working folder with everything that an older version wrote, and a crashed run with its last step."""
    made = tmp_path_factory.mktemp("records") / "user_data"
    shutil.copytree(WRITTEN / "loras", made / "loras")
    trash_folder = made / "loras" / "trash-np" / "2026-11-21 10.00.00" / "lora"
    shutil.copytree(made / "loras" / "stopped", trash_folder / "gone")
    training = made / "training"
    (training / "presets").mkdir(parents=True)
    shutil.copy(WRITTEN / "queue.json", training / "queue.json")
    shutil.copy(WRITTEN / "settings.json", training / "form.json")
    (training / "presets" / "mine.json").write_text(json.dumps({"rank": 8, "data": ["a.txt"]}))
    step = {"event": "step", "at": 1e9, "step": 5, "steps": 8, "epoch": 0.5, "loss": 2.0, "smoothed": 2.0}
    step |= {"learning_rate": 1e-4, "gradient_norm": 1.0, "tokens": 9, "seconds": 3.0}
    sample = {"event": "sample_generated", "at": 1e9, "step": 2, "prompt": "Once", "text": "upon", "without": "a"}
    (made / "loras" / "crashed" / "events.jsonl").write_text(json.dumps(step) + "\n")
    (made / "loras" / "finished" / "samples.jsonl").write_text(json.dumps(sample) + "\n")
    return made


def places(value, path=()):
    """The ways to every value inside a value, itself included; of a long list the first and the last entry."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    if isinstance(value, list):
        for number in sorted({0, len(value) - 1} & set(range(len(value)))):
            yield from places(value[number], (*path, number))


def with_value(value, path, bad):
    """A copy of a value with `bad` at a place."""
    if not path:
        return bad
    changed = copy.copy(value)
    changed[path[0]] = with_value(value[path[0]], path[1:], bad)
    return changed


def act(root):
    """What the page and the command line do with the records. Lists must not fail."""
    host = StandaloneHost(standalone_folders(root))
    folders = host.folders
    entries = inventory.list_entries(folders)
    assert {entry.name for entry in entries} >= {"finished", "stopped"}
    for command in (["runs"], ["runs", "--json"], ["runs", "stopped"], ["runs", "crashed", "--json"]):
        assert main([*command, "--user-data", str(root)]) == 0
    runs = run_list.list_runs(folders)
    for column in run_list.COLUMNS:
        assert run_list.list_html(runs, sort=column)
    for entry in entries:
        assert run_list.run_card(entry, entry.name)
        read_samples(entry.folder)
        run_files.read_training_prompt(entry.folder)
        loras.describe_folder(entry.folder)
        RunFolder(entry.folder, folders.logs, resumes=True).finished()
    run_list.comparison_html(entries[0], entries[-1])
    trash.list_trash(folders)
    card = ModelCard("tiny", {}, None, "float32")
    estimate_time(Workload(1000.0, 0.0, 0), card, "lora", folders.loras)
    found = inventory.find_crashed_runs(folders)
    [run.lost_work for run in found]
    look_at_queue(host)
    Form().updates(presets.load_form(folders.form))
    presets.own_names(folders.presets)
    refuse_or_do(folders, entries)


def look_at_queue(host):
    session = Session()
    runner = QueueRunner(host, PeftEngine(), session)
    with suppress(TrainingProError):
        queue, _ = runner.read_with_damage()
        queue_view.queue_html(queue, session.auto_start, training=False)
    with suppress(TrainingProError):
        runner.recover()
        runner.remove(1)


def refuse_or_do(folders, entries):
    """Acts that may refuse, but only in a sentence."""

    def copy_one(folder):
        copy_as_lora(folder, "copied", folders)
        assert inventory.read_entry(folders.loras / "copied", folders)

    acts = [lambda: presets.find_presets(["mine"], folders.presets)]
    for entry in entries:
        acts.append(partial(load_settings, entry.folder / "training_parameters.json"))
        acts.append(partial(plan_upload, entry.folder, entry.name, "me/it"))
        for checkpoint in loras.resumable_checkpoints(entry.folder):
            acts.append(partial(load_run_state, checkpoint.folder))
            acts.append(partial(copy_one, checkpoint.folder))
    for each in acts:
        with suppress(TrainingProError):
            each()
        shutil.rmtree(folders.loras / "copied", ignore_errors=True)


@st.composite
def damages(draw, files):
    """A file, the bytes that it gets."""
    file = draw(st.sampled_from(files))
    if draw(st.integers(0, 5)) == 0:
        return file, draw(st.sampled_from(NOT_JSON))
    value = json.loads(file.read_text(encoding="utf-8"))
    place = draw(st.sampled_from(list(places(value))))
    return file, json.dumps(with_value(value, place, draw(st.sampled_from(BAD_VALUES)))).encode()


@pytest.mark.long
def test_a_damaged_value_costs_only_itself(root, capsys, proof, record_property):
    record_property("what", "A damaged value in a record: only this value is lost")
    files = sorted(path for path in root.rglob("*.json*") if path.name != "adapter_config.json")  # PEFT's
    assert len({file.name for file in files}) >= 11

    def damage_one(case):
        file, damaged = case
        before, queue = file.read_bytes(), (root / "training" / "queue.json").read_bytes()
        with proof.case(f"{file.name}: {damaged[:500]!r}"):
            try:
                file.write_bytes(damaged)
                act(root)
            finally:
                (root / "training" / "queue.json").write_bytes(queue)
                file.write_bytes(before)
            assert "Traceback" not in capsys.readouterr().err

    run_cases(damage_one, damages(files), CASES)

"""`train A.json B.json`: all are checked before the first begins; each has its turn, and a line at the end."""

from __future__ import annotations

import json
import signal

import pytest
from training_pro.commands.main import main
from training_pro.records.folder import loras
from training_pro.tests.commands.test_train import CLOCK, started, wait_for
from training_pro.tests.tiny import QUICK, read_tree


@pytest.fixture
def file(tmp_path):
    """Writes a settings file."""

    def written(called, **more):
        path = tmp_path / f"{called}.json"
        path.write_text(json.dumps({**QUICK, "name": called, **more}), encoding="utf-8")
        return str(path)

    return written


def train(place, *words):
    return main(["train", *words, "--model", str(place.tiny), "--user-data", str(place.folders.user_data)])


def summary(text):
    """The lines at the end that begin with how a run ended."""
    return [line for line in text.splitlines()[-3:] if not CLOCK.match(line)]


def test_one_that_fails_stops_nobody_and_each_has_a_line(place, capsys, file):
    """What a first run leaves behind decides on the second: that could not be seen before."""
    files = [file("a"), file("a-2", name="a", if_exists="continue", rank=8), file("c", epochs=0.4)]
    assert train(place, *files) == 1
    out, err = capsys.readouterr()
    assert out == ""
    first, second, third = summary(err)
    assert first.startswith("finished   a  'a' finished at step 4 of 4. The smoothed loss is ")
    assert second.startswith("failed     a  LoRA Rank is 4 in the LoRA 'a', but 8 in the settings.")
    assert third.startswith("finished   c  'c' finished at step 2 of 2")
    assert "Run 3 of 3: c.json" in err
    log = json.loads((place.lora("c") / "training_log.json").read_text())
    assert log["from_queue"] is True
    assert "Run 3 of 3: c.json" in (place.lora("c") / "report.html").read_text(encoding="utf-8")


def test_all_are_checked_before_the_first_begins(with_lora, capsys, file):
    before = read_tree(with_lora.folders.user_data)
    files = [file("b"), file("again", name="b"), file("a"), file("d", data=["missing.txt"])]
    assert train(with_lora, *files) == 1
    said = capsys.readouterr().err.splitlines()[-3:]
    assert said[0].startswith("again.json: Name: an earlier run is also called 'b'. Choose another name")
    assert said[1].startswith("a.json: Name: 'a' already exists: a finished LoRA.")
    assert said[2].startswith("d.json: Dataset: there is no dataset named 'missing.txt' in ")
    assert train(with_lora, file("e", rank=0), file("f", epochs="many")) == 1
    said = capsys.readouterr().err.splitlines()[-2:]
    assert [line.partition(":")[0] for line in said] == ["e.json", "f.json"]
    assert read_tree(with_lora.folders.user_data) == before


def test_what_is_finished_already_is_passed_over_with_resume(with_lora, capsys, file):
    assert train(with_lora, file("a"), file("b", epochs=0.2), "--resume") == 0
    first, second = summary(capsys.readouterr().err)[-2:]
    assert first.startswith("finished   a  'a' is finished: 4 of 4 steps are done.")
    assert second.startswith("finished   b  'b' finished at step 1 of 1")


def test_several_processes_train_one_run(place, capsys, file, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert train(place, file("a"), file("b")) == 1
    assert "Start torchrun (or accelerate) once for each file." in capsys.readouterr().err


@pytest.mark.timeout(120)
def test_ctrl_c_stops_the_one_that_goes_and_begins_no_other(place, file):
    first, second = file("a", epochs=300), file("b")
    process = started(place, first, second, "--epochs", "300", "--name", "a", "--if-exists", "replace")
    said = wait_for(process, "step 1/")
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 0, said + rest
    stopped, not_begun = rest.splitlines()[-2:]
    assert stopped.startswith("stopped    a  'a' stopped at step ")
    assert not_begun == "not started  a"
    assert loras.run_status(place.lora()) == "stopped"

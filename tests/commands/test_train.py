"""`train` and `check` as the user meets them: exit codes, what stands on which stream, bad input, Ctrl+C."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys

import pytest
from training_pro.commands.environment import ROOT
from training_pro.commands.main import main
from training_pro.records.folder import loras
from training_pro.tests.records.on_disk import FINISHED, write_files
from training_pro.tests.tiny import QUICK, read_tree

CLOCK = re.compile(r"^(\d\d:\d\d:\d\d| {8})  ")
FLAGS = ["--cutoff", "32", "--overlap", "false", "--rank", "4", "--alpha", "8", "--sample-every", "never"]
JSON_KEYS = {
    *("verdict", "examples", "tokens", "trained_tokens", "longest", "cutoff", "steps_per_epoch", "steps"),
    *("sources", "problems", "advice"),
}


def words(place, command, *more, **settings):
    """A command line for the tiny model in this working folder."""
    own = {"name": "a", "data": "story.txt", "model": place.tiny, "user-data": place.folders.user_data}
    asked = {**own, **settings}
    flags = [word for key, value in asked.items() if value is not None for word in (f"--{key}", str(value))]
    return [command, *FLAGS, *flags, *more]


@pytest.fixture
def call(place, capsys):
    """Run a command, and return its exit code and what it said on both streams."""

    def run(command, *more, **settings):
        code = main(words(place, command, *more, **settings))
        return code, *capsys.readouterr()

    return run


def test_data_is_named_as_everywhere_and_presets_that_collide_are_told(place, call, monkeypatch):
    monkeypatch.chdir(place.folders.datasets.parent)
    code, out, err = call("check", "--preset", "style", "--preset", "by-heart", data="datasets/story.txt")
    assert code == 0 and "story.txt: raw text" in out
    assert err.count("Several presets change the same settings, so the last preset applies: ") == 1
    code, out, _ = call("check", "--rank", "0", data="no.txt")
    assert code == 1 and "LoRA Rank" in out
    assert str(place.folders.datasets) in out and str(place.folders.datasets.parent / "no.txt") in out


def test_a_run_from_the_command_line_with_a_settings_file_over_which_flags_win(place, call, tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps({"cutoff": 48, "epochs": 1, "rank": 2}))
    code, out, err = call("train", str(tmp_path / "mine.json"))
    assert (code, out) == (0, "")
    lines = err.splitlines()
    assert lines[0] == f"Working folder: {place.folders.user_data}"
    assert [line for line in lines[1:] if not CLOCK.match(line)] == []
    assert re.search(r"step 1/4  epoch 0\.25  loss \d\.\d{4} .* tokens/s  .* left", err)
    assert f"The LoRA is in {place.lora()}" in lines[-2]
    assert f"Report: {place.lora() / 'report.html'}" in err
    assert loras.run_status(place.lora()) == "finished"
    saved = json.loads((place.lora() / "training_parameters.json").read_text())
    assert (saved["cutoff"], saved["epochs"], saved["rank"]) == (32, 1, 4)


def test_check_writes_nothing_and_is_words_or_one_object_on_standard_output(place, call):
    before = read_tree(place.folders.user_data)
    code, out, _ = call("check")
    assert code == 0 and out.startswith("Verdict: ready\n") and "No characters are lost" in out
    code, out, err = call("check", "--json")
    known = json.loads(out)
    assert code == 0 and known.keys() >= JSON_KEYS
    assert (known["verdict"], known["examples"], known["cutoff"], known["problems"]) == ("ready", 16, 32, [])
    assert "Working folder" in err and read_tree(place.folders.user_data) == before


def test_not_ready_is_exit_code_one_and_each_problem_of_settings_and_data_is_named(place, call):
    (place.folders.datasets / "binary.txt").write_bytes(bytes(range(256)) * 20)
    code, out, _ = call("check", "--json", "--learning-rate", "abc", name=None, data="binary.txt")
    known = json.loads(out)
    assert (code, known["verdict"], len(known["problems"])) == (1, "not ready", 3)
    said = "\n".join(known["problems"])
    for sentence in (
        "binary.txt is not text",
        "Name: this field is empty",
        "Learning Rate: 'abc' is not a number",
    ):
        assert sentence in said


class Terminal(io.StringIO):
    """A terminal on which Ctrl+C is pressed after the first step."""

    def isatty(self):
        return True

    def write(self, text):
        if "] step 1/" in text and "] step 1/" not in self.getvalue():
            signal.raise_signal(signal.SIGINT)
        return super().write(text)


def test_progress_is_a_bar_on_a_terminal_and_a_stopped_run_says_how_to_resume(place, monkeypatch):
    write_files(place.folders.loras, "a", FINISHED)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    assert main(words(place, "train", "--epochs", "500", "--if-exists", "new_name")) == 0
    shown = terminal.getvalue()
    assert re.search(r"\r  0% \[-{20}\] step 1/2000  loss \d\.\d{4}  ", shown)
    assert not re.search(r"^\d\d:\d\d:\d\d  step ", shown, re.MULTILINE)
    resume = 'To resume this run, enter the same command again with --name "a-2" --resume.'
    assert shown.splitlines()[-1] == resume and loras.run_status(place.lora("a-2")) == "stopped"


def test_of_several_runs_the_stopped_one_is_resumed_and_the_others_begin(place, monkeypatch, tmp_path):
    files = [tmp_path / f"{name}.json" for name in ("one", "two", "three")]
    for file in files:
        file.write_text(json.dumps({"name": file.stem}))
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    assert main(words(place, "train", *map(str, files), "--epochs", "500", name=None)) == 0
    assert terminal.getvalue().splitlines()[-5:-3] == [
        "To resume this run, enter the same command again with only this settings file and --resume.",
        f"To train the others, enter it with only these files, and without --resume: {files[1]} {files[2]}",
    ]


BAD = {
    "a path": ({"name": "../x"}, "Name: '../x' is a path. Enter only a name."),
    "no data": ({"data": None}, "Dataset: choose at least one file, for example story.txt."),
    "missing": ({"data": "missing.txt"}, "There is no dataset 'missing.txt' in"),
    "a comma": ({"learning-rate": "1,5e-4"}, "Learning Rate: '1,5e-4' is not a number. Write 1.5e-4"),
    "no model": ({"model": "folder"}, "There is no model "),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_sentence_and_nothing_is_written(place, call, case):
    changed, sentence = BAD[case]
    (place.folders.models / "folder").mkdir(parents=True)
    before = read_tree(place.folders.user_data)
    for command in ("train", "check"):
        code, out, err = call(command, **changed)
        said = [CLOCK.sub("", line).removeprefix("Problem: ") for line in (out or err).splitlines()]
        assert code == 1 and [line.startswith(sentence) for line in said if sentence in line] == [True]
        assert "Traceback" not in out + err
    assert read_tree(place.folders.user_data) == before


def started(place, *more, **options):
    command = [sys.executable, str(ROOT / "script.py"), *words(place, "train", *more)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


def wait_for(process, text):
    """What it says on standard error until `text` is among it."""
    said = ""
    for line in process.stderr:
        said += line
        if text in line:
            return said
    raise AssertionError(f"it never said {text!r} but:\n{said}")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_ctrl_c_saves_a_checkpoint_and_resume_ends_as_if_nothing_had_been(place, call):
    more = ("--epochs", "30", "--dropout", "0.1", "--save-each-epoch", "false")
    process = started(place, *more)
    said = wait_for(process, "step 1/120")
    assert "kernels" not in said  # a warning of bitsandbytes about a package that has no use here
    process.send_signal(signal.SIGINT)
    out, rest = process.communicate()
    assert (process.returncode, out) == (0, ""), said + rest
    assert "Press Ctrl+C again to stop immediately." in rest
    assert loras.run_status(place.lora()) == "stopped"
    (checkpoint,) = loras.checkpoints(place.lora())
    assert f"Resuming from checkpoint-{checkpoint.step} (" in call("train", "--resume", *more)[2]
    call("train", *more, name="whole")
    assert place.weights("a") == place.weights("whole")


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal on Windows")
@pytest.mark.timeout(300)
def test_a_terminal_that_is_closed_is_a_wish_to_stop(place):
    process = started(place, "--epochs", "500", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
    wait_for(process, "step 1/2000")
    process.send_signal(signal.SIGHUP)
    process.communicate()
    assert loras.run_status(place.lora()) == "stopped" and len(loras.checkpoints(place.lora())) == 1


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_second_one_stops_at_once(place):
    process = started(place, "--epochs", "500")
    wait_for(process, "step 1/2000")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate()
    assert process.returncode == 1
    assert rest.splitlines()[-1] == "Stopped immediately. Progress since the last checkpoint is lost."


@pytest.fixture
def several(place, tmp_path, capsys):
    """Train with several settings files, and return the exit code and the last lines."""

    def run(*runs, resume=()):
        files = []
        for number, values in enumerate(runs):
            files.append(tmp_path / f"{number}.json")
            files[-1].write_text(json.dumps({**QUICK, **values}), encoding="utf-8")
        own = ["--model", str(place.tiny), "--user-data", str(place.folders.user_data)]
        code = main(["train", *map(str, files), *own, *resume])
        return code, capsys.readouterr().err.splitlines()[-len(runs) :]

    return run


@pytest.mark.long
def test_of_several_runs_one_that_fails_stops_nobody_and_each_has_a_line(place, several):
    """What a first run leaves behind decides on the second: that could not be seen before."""
    code, lines = several({}, {"if_exists": "continue", "rank": 8}, {"name": "c", "epochs": 0.4})
    assert code == 1
    assert lines[0].startswith("finished   a  'a' finished at step 4 of 4. The smoothed loss is ")
    assert lines[1].startswith("failed     a  LoRA Rank is 4 in the LoRA 'a', but 8 in the settings.")
    assert lines[2].startswith("finished   c  'c' finished at step 2 of 2")
    assert json.loads((place.lora("c") / "training_log.json").read_text())["from_queue"] is True
    assert "Run 3 of 3: 2.json" in (place.lora("c") / "report.html").read_text(encoding="utf-8")
    code, lines = several({}, {"name": "b", "epochs": 0.2}, resume=["--resume"])
    assert code == 0 and lines[0].startswith("finished   a  'a' is finished: 4 of 4 steps are done.")

"""`train` and `check` as the user meets them: exit codes, what stands on which stream, bad input, Ctrl+C."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from training_pro.commands.main import main
from training_pro.core.jobs import SESSION, JobEnded
from training_pro.records.folder import loras
from training_pro.tests.tiny import Workspace, read_tree

ROOT = Path(__file__).resolve().parent.parent.parent
CLOCK = re.compile(r"^(\d\d:\d\d:\d\d| {8})  ")
QUICK = ["--cutoff", "32", "--overlap", "false", "--rank", "4", "--alpha", "8", "--sample-every", "never"]
JSON_KEYS = [
    "verdict",
    "examples",
    "tokens",
    "trained_tokens",
    "longest",
    "cutoff",
    "steps_per_epoch",
    "steps",
    "sources",
    "problems",
    "advice",
]


def words(place: Workspace, command: str, *more: str, **settings: object) -> list[str]:
    """A command line for the tiny model in this working folder."""
    asked = {
        "name": "a",
        "data": "story.txt",
        "model": place.tiny,
        "user-data": place.folders.user_data,
        **settings,
    }
    flags = [word for key, value in asked.items() if value is not None for word in (f"--{key}", str(value))]
    return [command, *flags, *QUICK, *more]


def test_data_is_named_as_everywhere_and_presets_that_collide_are_told(place, capsys, monkeypatch):
    monkeypatch.chdir(place.folders.datasets.parent)
    assert main(words(place, "check", "--preset", "style", "--preset", "by-heart", data="datasets/story.txt")) == 0
    out, err = capsys.readouterr()
    assert "story.txt: raw text" in out
    assert err.count("Several presets change the same settings, so the last preset applies: ") == 1
    assert " (by-heart)" in err
    assert main(words(place, "check", "--rank", "0", data="no.txt")) == 1
    out, err = capsys.readouterr()
    assert "LoRA Rank" in out
    for where in (place.folders.datasets, Path.cwd() / "no.txt"):
        assert str(where) in out


def test_a_run_from_the_command_line(place, capsys):
    assert main(words(place, "train", "--epochs", "1")) == 0
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0] == f"Working folder: {place.folders.user_data}"
    assert [line for line in lines[1:] if not CLOCK.match(line)] == []
    assert re.search(r"step 1/4  epoch 0\.25  loss \d\.\d{4} .* tokens/s  .* left", err)
    assert "step 4/4" in err
    assert f"The LoRA is in {place.lora()}" in lines[-2]
    assert "After 4 steps, it is too early to tell what the model learned" in lines[-1]
    assert f"Report: {place.lora() / 'report.html'}" in err
    assert loras.run_status(place.lora()) == "finished"


def test_settings_come_from_a_file_and_flags_win(place, capsys, tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"name": "from-file", "data": ["story.txt"], "cutoff": 48, "epochs": 0.5}))
    asked = [str(file), "--model", str(place.tiny), "--user-data", str(place.folders.user_data)]
    assert main(["train", *asked, "--rank", "2", "--cutoff", "32"]) == 0
    saved = json.loads((place.lora("from-file") / "training_parameters.json").read_text())
    assert (saved["name"], saved["cutoff"], saved["epochs"], saved["rank"]) == ("from-file", 32, 0.5, 2)


def test_check_as_json_is_one_object_on_standard_output(place, capsys):
    before = read_tree(place.folders.user_data)
    assert main(words(place, "check", "--json")) == 0
    out, err = capsys.readouterr()
    known = json.loads(out)
    assert [key for key in known if key in JSON_KEYS] == JSON_KEYS
    assert known["verdict"] == "ready"
    assert (known["examples"], known["cutoff"], known["problems"]) == (16, 32, [])
    assert "Working folder" in err
    assert read_tree(place.folders.user_data) == before


def test_check_without_a_name_shows_the_problems_of_the_data_too(place, capsys):
    """also with invalid settings, of which each is named."""
    (place.folders.datasets / "binary.txt").write_bytes(bytes(range(256)) * 20)
    assert main(words(place, "check", "--learning-rate", "abc", name=None, data="binary.txt")) == 1
    problems = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Problem: ")]
    assert main(words(place, "check", "--learning-rate", "abc")) == 1
    out = capsys.readouterr().out
    assert "characters lost: 0" in out and "learning_rate =" not in out  # none for the default
    for said in ("binary.txt is not text", "Name: this field is empty", "Learning Rate: 'abc' is not a number"):
        assert any(said in problem for problem in problems), problems
    assert len(problems) == 3


def test_progress_is_a_bar_on_a_terminal_and_a_stopped_run_says_how_to_resume(place, capsys, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

        def write(self, text):
            if "] step 1/" in text and "] step 1/" not in self.getvalue():
                signal.raise_signal(signal.SIGINT)
            return super().write(text)

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    assert main(words(place, "train", "--epochs", "500")) == 0
    shown = terminal.getvalue()
    assert re.search(r"\r  0% \[-{20}\] step 1/2000  loss \d\.\d{4}  ", shown)
    assert not re.search(r"^\d\d:\d\d:\d\d  step ", shown, re.MULTILINE)
    assert shown.splitlines()[-1] == "To resume this run, enter the same command again with --resume."
    assert loras.run_status(place.lora()) == "stopped"


def test_check_in_words(place, capsys):
    assert main(words(place, "check")) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "Verdict: ready"
    assert "characters lost: 0" in out


def test_examples_by_their_number_and_by_what_they_hold(place, capsys):
    def shown(*more):
        assert main(words(place, "check", *more)) == 0
        out = capsys.readouterr().out
        return re.findall(r"^--- (\d+): story.txt, .* tokens; .*\n(.*)", out, re.MULTILINE)

    assert shown() == []
    assert [number for number, _ in shown("--show", "2")] == ["1", "9"]  # of the whole text
    assert [number for number, _ in shown("--show", "2", "--from", "5")] == ["5", "6"]
    ((number, text),) = shown("--from", "7")
    assert number == "7"
    word = text.split()[-2].upper()
    assert (number, text) in shown("--show", "99", "--containing", word)
    assert shown("--containing", "no such words at all") == []


def test_not_ready_is_exit_code_one(place, capsys):
    assert main(words(place, "check", "--json", data="missing.txt")) == 1
    known = json.loads(capsys.readouterr().out)
    assert (known["verdict"], len(known["problems"])) == ("not ready", 1)
    assert main(words(place, "check", "--json", "--learning-rate", "abc", name="a.b")) == 1
    known = json.loads(capsys.readouterr().out)
    assert (known["verdict"], len(known["problems"])) == ("not ready", 2)


@pytest.mark.parametrize(
    "arguments", [["train"], ["train", "--model"], ["check", "--model", "m", "--no-such-flag"]]
)
def test_a_wrong_command_line_is_exit_code_two(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_a_flag_that_is_nearly_right_is_told_and_the_usage_is_a_line(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--model", "tiny", "--epoch", "2"])
    said = capsys.readouterr().err
    assert "unrecognized arguments: --epoch. Did you mean --epochs?" in said
    assert said.count("\n") == 2
    assert said.index("[SETTINGS.json ...]") < said.index("--model")


def test_an_unknown_command_and_none_are_exit_code_two(capsys):
    assert (main(["tarin"]), main([])) == (2, 2)
    assert "Unknown command 'tarin'." in capsys.readouterr().err


def png(path):
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4)


BAD = {
    "no name": ({"name": None}, "Name: this field is empty. Enter a name for the LoRA, for example 'my-story'."),
    "a dot": (
        {"name": "my.lora"},
        "Name: 'my.lora' contains a dot, and a LoRA with a dot in its name can't be attached. Use - or _ instead.",
    ),
    "a path": ({"name": "../x"}, "Name: '../x' is a path. Enter only a name. The LoRA is always saved in"),
    "a drive": ({"name": "C:\\x"}, "Name: 'C:\\\\x' is a path. Enter only a name. The LoRA is always saved in"),
    "too long": (
        {"name": "x" * 300},
        "Name: this name has 300 characters; the limit is 60. Choose a shorter name.",
    ),
    "no data": ({"data": None}, "Dataset: choose at least one file, for example story.txt."),
    "missing": ({"data": "missing.txt"}, "There is no dataset 'missing.txt' in"),
    "empty": ({"data": "empty.txt"}, "empty.txt is empty. Add text to it, or remove it from the dataset."),
    "no text": ({"data": "picture.txt"}, "picture.txt is an image, not plain text."),
    "a comma": (
        {"learning-rate": "1,5e-4"},
        "Learning Rate: '1,5e-4' is not a number. Write 1.5e-4 with a decimal point.",
    ),
    "no number": ({"learning-rate": "abc"}, "Learning Rate: 'abc' is not a number. Allowed: "),
    "cutoff 0": ({"cutoff": "0"}, "Maximum context length (Cutoff): 0 is out of range. Allowed: auto or 16 to "),
    "no model": ({"model": "folder"}, "There is no model "),
    "encoder-decoder": ({"model": "t5"}, "t5 is an encoder-decoder model; only causal language models can be"),
}


@pytest.mark.parametrize("command", ["train", "check"])
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_sentence_and_nothing_is_written(place, capsys, command, case):
    changed, sentence = BAD[case]
    place.write("empty.txt", "")
    png(place.folders.datasets / "picture.txt")
    if changed.get("model") == "folder":
        (place.folders.models / "folder").mkdir(parents=True)
    elif changed.get("model") == "t5":
        t5 = shutil.copytree(place.tiny, place.folders.models / "t5")
        (t5 / "config.json").write_text('{"model_type": "t5", "is_encoder_decoder": true}')
    before = read_tree(place.folders.user_data)
    quick = [] if "cutoff" in changed else QUICK
    asked = words(place, command, **changed)
    asked = asked[: len(asked) - len(QUICK)] + quick
    assert main(asked) == 1
    out, err = capsys.readouterr()
    said = [CLOCK.sub("", line) for line in (out if command == "check" and out else err).splitlines()]
    named = [line.removeprefix("Problem: ") for line in said if sentence in line]
    assert len(named) == 1, said
    assert named[0].startswith(sentence)
    assert "Traceback" not in out + err
    assert read_tree(place.folders.user_data) == before


def started(place: Workspace, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "script.py"), *words(place, "train", *more)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def wait_for(process: subprocess.Popen[str], text: str) -> str:
    """What it says on standard error until `text` is among it."""
    said = ""
    for line in process.stderr:
        said += line
        if text in line:
            return said
    raise AssertionError(f"it never said {text!r} but:\n{said}")


@pytest.mark.timeout(300)
def test_ctrl_c_saves_a_checkpoint_and_resume_ends_as_if_nothing_had_been(place, capsys):
    more = ("--epochs", "30", "--dropout", "0.1", "--save-each-epoch", "false")
    process = started(place, *more)
    said = wait_for(process, "step 1/120")
    assert "kernels" not in said  # a warning of bitsandbytes about a package that has no use here
    process.send_signal(signal.SIGINT)
    out, rest = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, ""), said + rest
    assert "Stopping after this step and saving a checkpoint. Press Ctrl+C again to stop immediately." in rest
    assert loras.run_status(place.lora()) == "stopped"
    (checkpoint,) = loras.checkpoints(place.lora())
    assert checkpoint.step < 120
    assert main(words(place, "train", "--resume", *more)) == 0
    assert f"Resuming from checkpoint-{checkpoint.step} (step {checkpoint.step})." in capsys.readouterr().err
    assert main(words(place, "train", *more, name="whole")) == 0
    assert place.weights("a") == place.weights("whole")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such terminal on Windows")
@pytest.mark.timeout(300)
def test_a_window_that_is_closed_is_a_wish_to_stop(place):
    """As with a connection that breaks: the terminal is gone, and with it whoever reads what is said."""
    import os
    import pty

    us, its = pty.openpty()
    command = [sys.executable, str(ROOT / "script.py"), *words(place, "train", "--epochs", "500")]
    process = subprocess.Popen(
        command, stdin=its, stdout=its, stderr=its, cwd=ROOT, preexec_fn=lambda: at_terminal(its)
    )
    os.close(its)
    said = b""
    while b"step 1/2000" not in said:
        said += os.read(us, 1000)
    os.close(us)
    process.wait(timeout=120)
    assert loras.run_status(place.lora()) == "stopped"
    assert len(loras.checkpoints(place.lora())) == 1


def at_terminal(its: int) -> None:
    """This process leads those of the terminal: to it goes the news that it was closed."""
    import fcntl
    import os
    import termios

    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
    fcntl.ioctl(its, termios.TIOCSCTTY, 0)


@pytest.mark.timeout(300)
def test_a_second_one_stops_at_once(place):
    process = started(place, "--epochs", "500")
    wait_for(process, "step 1/2000")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 1
    assert rest.splitlines()[-1] == "Stopped immediately. Progress since the last checkpoint is lost."


def test_a_console_that_never_returns_does_not_hold_the_run_up(place):
    """As on Windows, where a click into the console blocks whoever writes to it."""
    code = f"""
        import importlib.util, os, sys, threading, time
        spec = importlib.util.spec_from_file_location("training_pro", {str(ROOT / "script.py")!r})
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        from training_pro.commands.main import main
        from training_pro.core.jobs.session import SESSION

        real = sys.stdout

        class Clicked:
            clicked = False
            def write(self, text):
                Clicked.clicked |= "Starting" in text
                if Clicked.clicked:
                    threading.Event().wait()
                return len(text)
            def flush(self): ...
            def isatty(self): return True

        def watch():
            while not (job := SESSION.latest("training")) or job.running:
                time.sleep(0.05)
            real.write(f"{{Clicked.clicked}} {{job.end.outcome}}")
            real.flush()
            os._exit(0)

        threading.Thread(target=watch, daemon=True).start()
        sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = Clicked()
        main({words(place, "train", "--epochs", "2")!r})
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "True finished", done.stderr
    assert loras.run_status(place.lora()) == "finished"


def test_a_second_run_is_refused_while_one_goes_on(place, capsys):
    go_on = threading.Event()
    from training_pro.tests.fakes import FakeHost

    def work(job):
        go_on.wait(30)
        return JobEnded(outcome="finished", text="")

    job = SESSION.train("first", FakeHost(), work)
    try:
        assert main(words(place, "train")) == 1
    finally:
        go_on.set()
        list(job.log.follow())
    assert "The model is busy: Training 'first'." in capsys.readouterr().err

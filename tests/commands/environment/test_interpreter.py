"""Environments are made with the real venv and pip, from a registry of tiny wheels in a folder."""

from __future__ import annotations

import base64
import hashlib
import http.server
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from training_pro.commands.environment import interpreter, pip, torch_build, virtual_env
from training_pro.commands.environment.pip import DownloadSize, Wheel
from training_pro.commands.environment.torch_build import Gpu
from training_pro.commands.environment.virtual_env import Environment, Marker, read_marker, write_marker
from training_pro.core.errors import TrainingProError

long = pytest.mark.long  # pip takes a second a call, on a busy machine three
posix = pytest.mark.skipif(os.name == "nt", reason="leans on shell scripts and signals of POSIX")
TRAIN, PAGE = ("torch", "train"), ("torch", "train", "page")
TRAIN_MODULES = ("torch", "transformers", "peft")


# ---- which torch ---------------------------------------------------------------------------------

CPU = [Wheel("torch", "2.13.0", "u"), Wheel("filelock", "4", "u")]
CUDA_13 = [*CPU, Wheel("nvidia-cuda-runtime", "13.0.88", "u"), Wheel("triton", "3.8", "u")]
CUDA_12 = [*CPU, Wheel("nvidia-cuda-runtime-cu12", "12.6.77", "u")]
NEW, OLD_DRIVER = Gpu((13, 0), (8, 6)), Gpu((12, 4), (8, 6))
PASCAL, BLACKWELL = Gpu((13, 1), (6, 1)), Gpu((12, 8), (12, 0))
PIN = "torch==2.13.0"


def from_pytorch(build):
    return [f"{PIN}+{build}", "--extra-index-url", f"https://download.pytorch.org/whl/{build}"]


@pytest.mark.parametrize(
    ("registry", "card", "expected"),
    [
        (CPU, None, [PIN]),
        (CUDA_13, None, from_pytorch("cpu")),
        (CUDA_13, NEW, [PIN]),
        (CUDA_13, OLD_DRIVER, from_pytorch("cu126")),
        (CUDA_13, PASCAL, from_pytorch("cu126")),
        (CUDA_13, BLACKWELL, [PIN]),
        (CUDA_13, Gpu((0, 0), (0, 0)), [PIN]),
        (CUDA_12, NEW, from_pytorch("cu130")),
        (CUDA_12, PASCAL, [PIN]),
        (CPU, NEW, from_pytorch("cu130")),
        (CPU, PASCAL, from_pytorch("cu126")),
        ([], NEW, [PIN]),
    ],
)
def test_the_build_of_torch_fits_the_machine(monkeypatch, registry, card, expected):
    monkeypatch.setattr(torch_build, "resolve_wheels", lambda *_: registry)
    monkeypatch.setattr(torch_build, "find_gpu", lambda: card)
    assert torch_build.torch_arguments(Path("python"), PIN, None) == expected


@pytest.fixture
def unreachable(monkeypatch):
    def would_install(_, arguments):
        if "--extra-index-url" in arguments:
            raise TrainingProError("no such host")
        return CUDA_13

    monkeypatch.setattr(torch_build, "resolve_wheels", would_install)


def test_without_pytorchs_index_cuda_comes_along_for_nothing_and_that_is_said(unreachable, monkeypatch, capsys):
    monkeypatch.setattr(torch_build, "find_gpu", lambda: None)
    assert torch_build.torch_arguments(Path("python"), PIN, None) == [PIN]
    assert "It includes CUDA, which this machine does not need." in capsys.readouterr().err


def test_without_pytorchs_index_a_card_is_not_left_idle_unasked(unreachable, monkeypatch):
    monkeypatch.setattr(torch_build, "find_gpu", lambda: PASCAL)
    with pytest.raises(TrainingProError, match=r"(?s)no such host.*2\.13\.0\+cu126.*--torch torch==2\.13\.0"):
        torch_build.torch_arguments(Path("python"), PIN, None)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("2.12.0", ["torch==2.12.0"]),
        ("2.12.0 --index-url http://i", ["torch==2.12.0", "--index-url", "http://i"]),
        ("cpu", from_pytorch("cpu")),
        ("cu126", from_pytorch("cu126")),
        ("rocm6.4", from_pytorch("rocm6.4")),
        ("torch==2.9.1+cu128", ["torch==2.9.1+cu128"]),
        ("https://host/torch.whl", ["https://host/torch.whl"]),
    ],
)
def test_the_wish_of_the_user_is_taken_without_asking(monkeypatch, spec, expected):
    monkeypatch.setattr(torch_build, "resolve_wheels", lambda *_: pytest.fail("asked"))
    assert torch_build.torch_arguments(Path("python"), PIN, spec) == expected


@pytest.mark.parametrize("spec", ["gpu", "torchvision-is-nice", "cuda", " "])
def test_a_wish_that_is_no_torch_is_refused(spec):
    with pytest.raises(TrainingProError, match=r"--torch .* is not valid\. Use a version"):
        torch_build.torch_arguments(Path("python"), PIN, spec)


SMI = """#!/bin/sh
case "$*" in
*compute_cap*) printf '8.9\\n6.1\\n' ;;
*) echo '| NVIDIA-SMI 550.54   Driver Version: 550.54   CUDA Version: 12.4 |' ;;
esac
"""


@posix
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (SMI, Gpu((12, 4), (6, 1))),
        ("#!/bin/sh\necho 'NVIDIA-SMI has failed'; exit 9\n", None),
        ("#!/bin/sh\necho 'no figures here'\n", Gpu((0, 0), (0, 0))),
        (None, None),
    ],
)
def test_a_card_is_what_nvidia_smi_says(monkeypatch, tmp_path, script, expected):
    if script:
        executable(tmp_path / "nvidia-smi", script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if script else str(tmp_path))
    assert torch_build.find_gpu() == expected


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


# ---- how large -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (DownloadSize(389_000_000, 0, 63), "63 packages, 389 MB"),
        (DownloadSize(2_340_000_000, 0, 80), "80 packages, 2.3 GB"),
        (DownloadSize(389_000_000, 2, 63), "63 packages, 389 MB plus 2 of unknown size"),
        (DownloadSize(0, 63, 63), "63 packages of unknown size"),
        (DownloadSize(0, 1, 1), "1 package of unknown size"),
    ],
)
def test_a_size_is_never_invented(size, said):
    assert str(size) == said


class Sized(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_response(200 if "whl" in self.path else 404)
        if "mute" not in self.path:
            self.send_header("Content-Length", "1000")
        self.end_headers()

    def log_message(self, *_):
        pass


def test_sizes_are_asked_of_the_files_own_servers(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (tmp_path / "b.whl").write_bytes(b"x" * 234)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sized) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"http://127.0.0.1:{server.server_port}"
        urls = [f"{host}/a.whl", (tmp_path / "b.whl").as_uri(), f"{host}/mute.whl", f"{host}/gone", "nonsense"]
        found = pip.download_size([Wheel("n", "1", url) for url in urls])
        server.shutdown()
    assert found == DownloadSize(known=1234, unknown=3, packages=5)


# ---- a registry in a folder ----------------------------------------------------------------------


def put_wheel(registry, name, version="1.0", requires=(), code=""):
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {other}\n" for other in requires)
    files = {
        f"{module}/__init__.py": code or f"version = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={digest(text)},{len(text)}\n" for path, text in files.items())
    folder = registry / name
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, f"{info}/RECORD": record + f"{info}/RECORD,,\n"}.items():
            wheel.writestr(path, text)
    links = "".join(f'<a href="{file.name.replace("+", "%2B")}">{file.name}</a>' for file in folder.glob("*.whl"))
    (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")


def digest(text):
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@pytest.fixture
def registry(tmp_path, monkeypatch):
    return furnish(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def template(tmp_path_factory, empty_template):
    """An environment with the training libraries, made once: making one takes seconds."""
    folder = tmp_path_factory.mktemp("template")
    with pytest.MonkeyPatch.context() as patch:
        furnish(folder, patch)
        copy_for_new_environments(empty_template, patch)
        Environment(folder / ".venv", TRAIN_MODULES).make(TRAIN)
    return folder / ".venv"


def furnish(tmp_path, monkeypatch):
    """An ordinary registry (its torch brings CUDA) and PyTorch's index, as folders; pip sees no other."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "registry").as_uri())
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setattr(torch_build, "PYTORCH_INDEX", (tmp_path / "pytorch").as_uri())
    monkeypatch.setattr(torch_build, "find_gpu", lambda: None)
    registry = tmp_path / "registry"
    put_wheel(registry, "torch", requires=["nvidia-cuda-runtime"])
    put_wheel(registry, "nvidia-cuda-runtime", "13.0")
    for name in ("transformers", "peft", "gradio"):
        put_wheel(registry, name)
    put_wheel(tmp_path / "pytorch" / "cpu", "torch", "1.0+cpu")
    _put_pins(tmp_path / "pins", monkeypatch)
    return registry


def _put_pins(folder, monkeypatch):
    folder.mkdir()
    (folder / "torch.txt").write_text("# why\ntorch==1.0\n")
    (folder / "train.txt").write_text("transformers==1.0\npeft==1.0\n")
    (folder / "page.txt").write_text("gradio==1.0\n")
    monkeypatch.setattr(virtual_env, "PINS", folder)


@pytest.fixture
def home(tmp_path, registry):
    """The environment to be made."""
    return Environment(tmp_path / ".venv", TRAIN_MODULES)


@pytest.fixture(scope="module")
def empty_template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("empty") / ".venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder


@pytest.fixture
def quickly(empty_template, monkeypatch):
    copy_for_new_environments(empty_template, monkeypatch)


def copy_for_new_environments(empty_template, monkeypatch):
    """Copy an empty environment where a new one is wanted: making one takes seconds."""

    def create(folder):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(empty_template, folder, symlinks=True)
        write_marker(folder, Marker())

    monkeypatch.setattr(virtual_env, "create_environment", create)


@pytest.fixture
def whole(home, template, quickly):
    shutil.copytree(template, home.folder, symlinks=True)
    assert home.has_lists(TRAIN)
    return home


def installed(home):
    code = "import importlib.metadata as m; print(*(f'{d.name} {d.version}' for d in m.distributions()), sep=',')"
    found = subprocess.run([home.python, "-c", code], capture_output=True, text=True, check=True).stdout
    return {name for name in found.strip().split(",") if name.split()[0] not in ("pip", "setuptools")}


WHOLE = {"torch 1.0+cpu", "transformers 1.0", "peft 1.0"}


def test_it_is_made_told_of_known_again_and_added_to(home, capfd, monkeypatch):
    assert not home.has_lists(TRAIN)
    home.make(TRAIN)
    said = capfd.readouterr()
    assert installed(home) == WHOLE  # the build without CUDA, from PyTorch's own index
    assert said.out == ""  # standard output is for results
    place, size, work = (said.err.index(part) for part in (str(home.folder), "3 packages, 0 MB", "Successfully"))
    assert place < size < work
    assert home.has_lists(TRAIN)
    assert home.finds_modules()
    assert not home.has_lists(PAGE)

    home.make(PAGE)
    assert installed(home) == {*WHOLE, "gradio 1.0"}
    assert "1 package" in capfd.readouterr().err
    with monkeypatch.context() as offline:
        offline.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a program was started"))
        assert home.has_lists(PAGE)
        assert home.has_lists(TRAIN)


def test_pins_that_changed_bring_the_difference(whole, registry):
    put_wheel(registry, "peft", "1.1")
    (virtual_env.PINS / "train.txt").write_text("transformers==1.0\npeft==1.1\n")
    assert not whole.has_lists(TRAIN)
    whole.make(TRAIN)
    assert installed(whole) == {"torch 1.0+cpu", "transformers 1.0", "peft 1.1"}


@long
def test_with_a_card_the_registrys_cuda_build_is_taken(home, quickly, monkeypatch):
    monkeypatch.setattr(torch_build, "find_gpu", lambda: NEW)
    home.make(TRAIN)
    assert installed(home) == {"torch 1.0", "nvidia-cuda-runtime 13.0", "transformers 1.0", "peft 1.0"}


@long
def test_a_torch_of_the_users_choice_stays(home, quickly, registry):
    put_wheel(registry, "torch", "0.9")
    wish = Environment(home.folder, TRAIN_MODULES, "0.9")
    wish.make(TRAIN)
    assert wish.has_lists(TRAIN)
    assert home.has_lists(TRAIN)  # also when it is not asked for again
    home.make(PAGE)
    assert "torch 0.9" in installed(home)
    assert not Environment(home.folder, TRAIN_MODULES, "cpu").has_lists(TRAIN)


@pytest.mark.parametrize("harm", ["no interpreter", pytest.param("package without its list", marks=long)])
def test_a_torch_of_the_users_choice_comes_back_in_an_environment_that_is_made_anew(home, quickly, registry, harm):
    put_wheel(registry, "torch", "0.9")
    Environment(home.folder, TRAIN_MODULES, "0.9").make(TRAIN)
    _harm(home, next(home.folder.glob("**/site-packages")), harm)
    home.make(PAGE)
    assert "torch 0.9" in installed(home) and read_marker(home.folder).torch == "0.9"
    assert read_marker(home.folder).lists.keys() == set(PAGE)


@long
def test_what_a_killed_installation_left_is_begun_again(whole, capfd):
    write_marker(whole.folder, Marker())  # as it stands while pip works
    packages = next(whole.folder.glob("**/site-packages"))
    (packages / "peft" / "__init__.py").write_text("")  # cut short: pip takes it for installed
    assert not whole.has_lists(TRAIN)
    whole.make(TRAIN)
    assert "Creating it again" in capfd.readouterr().err
    assert (packages / "peft" / "__init__.py").read_text() != ""
    assert whole.has_lists(TRAIN)


@long
def test_an_empty_folder_is_no_hindrance(home, quickly):
    home.folder.mkdir()
    home.make(TRAIN)
    assert installed(home) == WHOLE


@pytest.mark.parametrize(
    "harm",
    ["package without its list", *(pytest.param(harm, marks=long) for harm in ("no interpreter", "no pip"))],
)
def test_a_broken_environment_is_mended(whole, harm):
    _harm(whole, next(whole.folder.glob("**/site-packages")), harm)
    whole.make(TRAIN)
    assert installed(whole) == WHOLE
    assert whole.has_lists(TRAIN)
    assert whole.finds_modules()


def _harm(home, packages, harm):
    if harm == "no interpreter":
        home.python.unlink()
    elif harm == "no pip":
        (packages / "pip").rename(packages / "gone")
    else:
        (packages / "peft-1.0.dist-info" / "RECORD").unlink()


def test_a_marker_that_cannot_be_read_promises_nothing(home):
    home.folder.mkdir()
    for text in ("", "{", "[]", '{"lists": 3, "torch": null}', "\x00"):
        (home.folder / virtual_env.MARKER_NAME).write_text(text)
        assert read_marker(home.folder) == Marker()
        assert not home.has_lists(TRAIN)


def test_an_environment_made_by_hand_is_adopted_as_it_is(whole, capfd):
    (whole.folder / virtual_env.MARKER_NAME).unlink()
    capfd.readouterr()
    whole.make(TRAIN)
    assert "Download into" not in capfd.readouterr().err
    assert whole.has_lists(TRAIN)


def test_what_belongs_to_somebody_else_is_left_alone(home):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home.folder], check=True)
    (home.folder / "precious").write_text("mine")
    with pytest.raises(TrainingProError, match="Rename that folder"):
        home.make(TRAIN)
    assert (home.folder / "precious").read_text() == "mine"
    assert not home.has_lists(TRAIN)


def test_damage_in_an_environment_of_somebody_else_is_named_and_not_cleared(whole):
    (whole.folder / virtual_env.MARKER_NAME).unlink()
    (next(whole.folder.glob("**/site-packages")) / "peft" / "__init__.py").unlink()
    with pytest.raises(TrainingProError, match=r"damaged\. Delete that folder"):
        whole.make(TRAIN)
    assert whole.python.exists()


def test_a_package_that_pip_cannot_get_is_a_sentence_and_no_promise(home, quickly, registry):
    (virtual_env.PINS / "train.txt").write_text("transformers==7.7\n")
    with pytest.raises(TrainingProError, match=r"(?s)transformers==7\.7.*pip could not install"):
        home.make(TRAIN)
    assert not home.has_lists(TRAIN)
    assert home.is_ours


def test_an_installation_that_fails_half_way_is_a_sentence(home, quickly, registry, capfd):
    wheel = next((registry / "peft").glob("*.whl"))
    good = wheel.read_bytes()
    plan = virtual_env.resolve_wheels

    def plan_then_break(*arguments):
        found = plan(*arguments)
        wheel.write_bytes(good[:200])
        return found

    virtual_env.resolve_wheels = plan_then_break
    try:
        with pytest.raises(TrainingProError, match="pip could not install"):
            home.make(TRAIN)
    finally:
        virtual_env.resolve_wheels = plan
    assert "ERROR" in capfd.readouterr().err  # pip's own words
    assert not home.has_lists(TRAIN)
    wheel.write_bytes(good)
    home.make(TRAIN)
    assert installed(home) == WHOLE


@long
def test_libraries_that_the_system_cannot_load_are_named(home, quickly, registry):
    put_wheel(registry, "peft", code="raise OSError('DLL load failed')")
    with pytest.raises(TrainingProError, match=r"(?s)DLL load failed.*can't load them"):
        home.make(TRAIN)
    assert not home.has_lists(TRAIN)


def test_ctrl_c_while_pip_works_is_a_clean_end(home, quickly, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(virtual_env, "install", interrupted)
    with pytest.raises(TrainingProError, match=r"Stopped. .*not complete yet"):
        home.make(TRAIN)
    assert not home.has_lists(TRAIN)


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path, registry):
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingProError, match="can't be created"):
        Environment(tmp_path / "file" / ".venv", TRAIN_MODULES).make(TRAIN)


@pytest.mark.parametrize("missing", ["venv", "ensurepip"])
def test_a_python_that_cannot_make_environments_names_the_remedy(home, monkeypatch, missing):
    monkeypatch.setattr(virtual_env, "find_spec", lambda name: None if name == missing else object())
    with pytest.raises(TrainingProError, match=r"sudo apt install python3\.\d+-venv"):
        home.make(TRAIN)
    assert not home.folder.exists()


def test_the_interpreter_lies_elsewhere_on_windows(home, monkeypatch):
    monkeypatch.setattr(virtual_env, "os", SimpleNamespace(name="nt"))
    assert home.python == home.folder / "Scripts" / "python.exe"
    monkeypatch.setattr(virtual_env, "os", SimpleNamespace(name="posix"))
    assert home.python == home.folder / "bin" / "python"


# ---- ready ---------------------------------------------------------------------------------------


class GoneOnError(Exception):
    """Raised in place of going on in another interpreter."""


@pytest.fixture
def bare(tmp_path, registry, quickly, monkeypatch):
    """A bare interpreter: it has nothing, and where it would go on is raised."""

    def go_on(program, command):
        raise GoneOnError(program, command)

    monkeypatch.setattr(interpreter, "ROOT", tmp_path)
    monkeypatch.setattr(interpreter, "_has_module", lambda module: False)
    monkeypatch.setattr(interpreter, "WEBUI_REQUIREMENT_LISTS", ("torch", "train"))
    monkeypatch.setattr(interpreter, "os", SimpleNamespace(name="posix", execv=go_on))
    monkeypatch.setattr(sys, "argv", ["script.py", "train", "--name", "a b"])
    return tmp_path


def test_a_bare_interpreter_goes_on_in_an_environment_with_the_same_words(bare):
    with pytest.raises(GoneOnError) as gone:
        interpreter.ensure_environment({"train"})
    python = str(bare / ".venv" / "bin" / "python")
    assert gone.value.args == (python, [python, str(bare / "script.py"), "train", "--name", "a b"])


def test_the_second_start_asks_nobody(bare, whole, monkeypatch):
    monkeypatch.setattr(virtual_env, "resolve_wheels", lambda *_: pytest.fail("pip was asked"))
    with pytest.raises(GoneOnError):
        interpreter.ensure_environment({"train"})


@long
def test_a_library_that_vanished_is_put_back_at_the_next_start(bare, whole):
    (next(whole.folder.glob("**/site-packages")) / "peft").rename(bare / "peft")
    with pytest.raises(GoneOnError):
        interpreter.ensure_environment({"train"})
    assert whole.finds_modules()


@long
def test_the_webuis_pins_have_an_environment_of_their_own(bare, monkeypatch):
    monkeypatch.setattr(interpreter, "_has_module", lambda module: True)
    monkeypatch.setattr(interpreter, "NEEDED_MODULES", {"train": TRAIN_MODULES, "test": ()})
    with pytest.raises(GoneOnError) as gone:
        interpreter.ensure_environment({"test"}, webui_pins=True)
    assert str(bare / ".venv-webui") in gone.value.args[0]
    assert not (bare / ".venv").exists()


def test_an_interpreter_that_has_the_large_libraries_is_used_as_it_is(bare, monkeypatch):
    monkeypatch.setattr(interpreter, "_has_module", lambda module: module in TRAIN_MODULES)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a program was started"))
    interpreter.ensure_environment({"train"})
    assert not (bare / ".venv").exists()


def test_the_page_wants_gradio_too(bare, whole, monkeypatch):
    monkeypatch.setattr(interpreter, "_has_module", lambda module: module in TRAIN_MODULES)
    with pytest.raises(GoneOnError):
        interpreter.ensure_environment({"train", "page"})
    assert "gradio 1.0" in installed(whole)


def test_inside_a_whole_environment_it_comes_back_at_once(bare, whole, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(bare / ".venv"))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a program was started"))
    interpreter.ensure_environment({"train"})


@long
def test_on_windows_the_command_goes_on_as_a_child(bare, monkeypatch):
    monkeypatch.setattr(interpreter, "os", SimpleNamespace(name="nt"))
    (bare / "script.py").write_text("import sys; sys.exit(len(sys.argv))")
    with pytest.raises(SystemExit) as end:
        interpreter.ensure_environment({"train"})
    assert end.value.code == 4


def test_an_older_python_gets_a_sentence_before_anything_else(bare, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 4, "final", 0))
    with pytest.raises(TrainingProError, match=r"needs Python 3\.11 or newer\. This is"):
        interpreter.ensure_environment({"train"})
    assert not (bare / ".venv").exists()


def test_a_child_ends_with_its_own_exit_code():
    assert interpreter.run_program([sys.executable, "-c", "raise SystemExit(7)"]) == 7


@posix
def test_ctrl_c_is_left_to_the_child():
    pressed = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    pressed.start()
    assert (
        interpreter.run_program([sys.executable, "-c", "import time; time.sleep(1.5); raise SystemExit(3)"]) == 3
    )


# ---- the pins ------------------------------------------------------------------------------------


def test_every_list_is_there_and_pins_what_it_names():
    lists = {name for names in interpreter.REQUIREMENT_LISTS.values() for name in names} | {
        *interpreter.WEBUI_REQUIREMENT_LISTS
    }
    assert lists == {path.stem for path in virtual_env.PINS.glob("*.txt")}
    for name in ("torch", "train", "page"):
        assert all("==" in line for line in virtual_env.read_pins(name)), name
    assert virtual_env.read_pins("torch") == [PIN]

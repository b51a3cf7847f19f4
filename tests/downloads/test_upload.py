"""Uploads to the Hub: which files, who can see them, and a sentence for everything that goes wrong."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants, errors
from training_pro.commands import push
from training_pro.core.errors import SavingError
from training_pro.downloads.upload import upload_lora
from training_pro.records.folder import filenames, plan_upload

REPOSITORY = "me/story"
TOKEN = "hf_secretsecret"
OWN_FILES = ["adapter_config.json", "adapter_model.safetensors", "README.md"]


def http_error(kind, status, text="no"):
    error = kind.__new__(kind, text)  # its constructor wants a response of the library's own HTTP client
    error.args, error.response = (text,), SimpleNamespace(status_code=status, headers={})
    return error


def lost_connection(text):
    """An error of whatever HTTP client the library uses."""
    return errors.HTTPError(text)


class StubHub:
    """Records what HfApi is asked for; the methods in `fails` raise."""

    def __init__(self):
        self.repositories, self.commits, self.fails = {}, [], {}

    def model_info(self, name, **_):
        self._fail("model_info")
        if name not in self.repositories:
            raise http_error(errors.RepositoryNotFoundError, 404)
        private, files = self.repositories[name]
        return SimpleNamespace(private=private, siblings=[SimpleNamespace(rfilename=file) for file in files])

    def create_repo(self, name, *, private):
        self._fail("create_repo")
        self.repositories[name] = (private, [".gitattributes"])

    def create_commit(self, name, operations, *, commit_message):
        self._fail("create_commit")
        self.commits.append((name, [operation.path_in_repo for operation in operations], commit_message))

    def _fail(self, method):
        if method in self.fails:
            raise self.fails[method]


@pytest.fixture
def stub(monkeypatch):
    stub = StubHub()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: stub)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: TOKEN)
    return stub


@pytest.fixture
def plan(with_lora):
    return lambda **more: plan_upload(with_lora.lora(), "a", REPOSITORY, **more)


def refusal(function, *arguments, **more):
    with pytest.raises(SavingError) as refused:
        function(*arguments, **more)
    assert TOKEN not in str(refused.value)
    return str(refused.value)


def content(plan, name):
    (file,) = [file for file in plan.files if file.name == name]
    return file.content if isinstance(file.content, bytes) else file.content.read_bytes()


def test_only_the_files_of_the_lora_itself_are_uploaded(plan, stub):
    assert upload_lora(plan()).endswith(f"/{REPOSITORY}")
    assert stub.commits == [(REPOSITORY, OWN_FILES, "Upload a")]
    assert stub.repositories[REPOSITORY][0] is True  # private


def test_public_only_if_asked(plan, stub):
    upload_lora(plan(public=True))
    assert stub.repositories[REPOSITORY][0] is False


def test_no_local_path_and_no_dataset_leaves_the_machine(plan, with_lora):
    text = b"".join(content(plan(), name) for name in ("adapter_config.json", "README.md")).decode()
    assert str(with_lora.tiny.parent) not in text and "story.txt" not in text and "lighthouse" not in text
    assert json.loads(content(plan(), "adapter_config.json"))["base_model_name_or_path"] == "tiny"
    assert str(with_lora.tiny) in (with_lora.lora() / "adapter_config.json").read_text()  # here it stays


def test_the_model_card_has_base_model_and_settings_and_leaves_the_license_to_the_user(plan):
    card = content(plan(base="toys/tiny"), "README.md").decode()
    assert "\nbase_model: toys/tiny\n" in card and "| rank | `4` |" in card and "license" not in card
    assert "base_model" not in content(plan(), "README.md").decode()  # not known on the Hub
    huggingface_hub.ModelCard(card).data.to_yaml()


def test_other_files_only_if_they_are_named(plan):
    assert [file.name for file in plan(also=["training_log.json"]).files] == [*OWN_FILES, "training_log.json"]
    assert "'nothing.txt' does not exist in " in refusal(plan, also=["nothing.txt"])
    for name in ("../../form.json", "adapter_config.json", "checkpoint-4-epoch-1"):
        refusal(plan, also=[name])


@pytest.mark.parametrize("name", ["story", "me/", "me/story/x", "me/st ory", ""])
def test_a_wrong_repository_is_refused(with_lora, name):
    assert "Enter OWNER/REPO" in refusal(plan_upload, with_lora.lora(), "a", name)


def test_no_token(plan, stub, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    assert refusal(upload_lora, plan()).startswith("There is no token for the Hub. Create one with write access")
    assert not stub.repositories


@pytest.mark.parametrize(
    ("method", "error", "sentence"),
    [
        ("create_repo", http_error(errors.HfHubHTTPError, 403), "Your token does not have write access to me."),
        ("create_repo", http_error(errors.HfHubHTTPError, 409), "The name me/story is taken."),
        ("create_repo", http_error(errors.HfHubHTTPError, 401), "does not accept your token"),
        ("create_repo", errors.OfflineModeIsEnabled("offline"), "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set"),
        ("create_repo", errors.HFValidationError("two dots"), "is not a valid repository name: two dots"),
        ("model_info", lost_connection("no route"), "can't be reached (no route)"),
        ("create_commit", lost_connection("gone"), "The upload was interrupted. None of the files are in"),
        (
            "create_commit",
            KeyboardInterrupt(),
            "Stopped. The upload was interrupted. None of the files are in",
        ),
    ],
)
def test_every_failure_is_a_sentence(plan, stub, method, error, sentence):
    stub.fails[method] = error
    assert sentence in refusal(upload_lora, plan())
    assert stub.commits == []


def test_an_interrupted_upload_can_be_repeated(plan, stub):
    stub.fails["create_commit"] = lost_connection("gone")
    refusal(upload_lora, plan())
    stub.fails.clear()
    upload_lora(plan())
    assert len(stub.commits) == 1


def test_a_repository_with_other_files_is_taken(plan, stub):
    stub.repositories[REPOSITORY] = (True, ["model.gguf"])
    said = (
        "A repository named me/story already exists and contains files that are not part of this upload "
        "(model.gguf)."
    )
    assert refusal(upload_lora, plan()).startswith(said)


@pytest.mark.parametrize(("private", "public"), [(False, False), (True, True)])
def test_a_repository_that_is_not_as_visible_as_asked_is_refused(plan, stub, private, public):
    stub.repositories[REPOSITORY] = (private, OWN_FILES)
    assert refusal(upload_lora, plan(public=public)).startswith(f"{REPOSITORY} exists and is ")
    assert stub.commits == []


@pytest.mark.parametrize(
    ("status", "sentence"),
    [(0, "already exists and contains files"), (403, "Your token does not have write access to me.")],
)
def test_answers_of_the_real_library_are_sentences_too(plan, hub, monkeypatch, status, sentence):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.add(REPOSITORY, more={"model.gguf": b"GGUF"})
    hub.status = status
    assert sentence in refusal(upload_lora, plan())


def test_no_network(plan, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "http://127.0.0.1:9 can't be reached" in refusal(upload_lora, plan())


@pytest.fixture
def command(with_lora, stub, monkeypatch):
    monkeypatch.setattr(push.interpreter, "ensure_environment", lambda *_, **__: None)

    def run(typed, *words):
        monkeypatch.setattr("builtins.input", lambda: typed)
        return push.run(["a", "--to", REPOSITORY, "--user-data", str(with_lora.folders.user_data), *words])

    return run


def test_the_command_shows_what_it_uploads_and_asks_for_the_name(command, stub, capsys):
    assert command("yes") == 1 and stub.commits == []
    said = capsys.readouterr().err
    assert f"Upload of a to {REPOSITORY} (private: only its owner can see it), 3 files, " in said
    assert re.search(r"adapter_model.safetensors  [\d.]+ [kM]B", said) and TOKEN not in said
    assert command(REPOSITORY) == 0
    out, err = capsys.readouterr()
    assert out.strip().endswith(f"/{REPOSITORY}") and TOKEN not in out + err
    assert command("", "--yes") == 0 and len(stub.commits) == 2


def test_a_whole_model_is_refused_with_the_command_that_uploads_it_without_its_run(place, monkeypatch):
    place.train(name="whole", method="full", learning_rate=1e-3, max_steps=1)
    folder = place.folders.models / "whole"
    for name in (*filenames.RUN_FILES, "checkpoint-1-user/model.safetensors", "backup/1/model.safetensors"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    asked = ["whole", "--to", REPOSITORY, "--user-data", str(place.folders.user_data)]
    text = refusal(push.run, asked)
    assert f'hf upload {REPOSITORY} "{folder}" . --private --exclude ' in text
    assert "--private" not in refusal(push.run, [*asked, "--public"])
    patterns = re.findall(r'--exclude "([^"]+)"', text)
    paths = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    left = {path for path in paths if not any(fnmatch(path, pattern) for pattern in patterns)}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= left
    assert not {path for path in left if "/" in path} and not left & set(filenames.RUN_FILES)


async def all_of(stream):
    return [each async for each in stream]

"""Uploads to the Hub: which files, who can see them, and a sentence for everything that goes wrong."""

import io
import json
import shutil
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants, errors
from training_pro.commands import main
from training_pro.core.errors import SavingError
from training_pro.downloads import upload
from training_pro.records.folder import plan_upload, run_files

REPOSITORY = "me/story"
TOKEN = "hf_secretsecret"
OWN_FILES = ["adapter_config.json", "adapter_model.safetensors", "README.md"]


def http_error(kind, status, text="no"):
    error = kind.__new__(kind, text)  # its constructor wants a response of the library's own HTTP client
    error.args, error.response = (text,), SimpleNamespace(status_code=status, headers={})
    return error


class StubHub:
    """Records what HfApi is asked for; the methods in `fails` raise."""

    def __init__(self):
        self.repositories, self.commits, self.fails = {}, [], {}

    def model_info(self, name, **_):
        self.check("model_info")
        if name not in self.repositories:
            raise http_error(errors.RepositoryNotFoundError, 404)
        private, files = self.repositories[name]
        return SimpleNamespace(private=private, siblings=[SimpleNamespace(rfilename=file) for file in files])

    def create_repo(self, name, *, private):
        self.check("create_repo")
        self.repositories[name] = (private, [".gitattributes"])

    def create_commit(self, name, operations, *, commit_message):
        self.check("create_commit")
        self.commits.append((name, [operation.path_in_repo for operation in operations], commit_message))

    def check(self, method):
        if method in self.fails:
            raise self.fails[method]


@pytest.fixture
def stub(hub, monkeypatch):
    stub = StubHub()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: stub)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return stub


@pytest.fixture
def plan(with_lora):
    return lambda **more: plan_upload(with_lora.lora(), "a", REPOSITORY, **more)


def refusal(function, *arguments, **more):
    with pytest.raises(SavingError) as refused:
        function(*arguments, **more)
    assert TOKEN not in str(refused.value)
    return str(refused.value)


@pytest.mark.long
def test_only_the_files_of_the_lora_itself_are_uploaded_and_public_only_if_asked(plan, stub, monkeypatch):
    assert upload.upload_lora(plan()).endswith(f"/{REPOSITORY}")
    assert stub.commits == [(REPOSITORY, OWN_FILES, "Upload a")]
    stub.repositories[REPOSITORY][1].extend(OWN_FILES)
    upload.upload_lora(plan())  # the card may have been edited on the Hub
    assert stub.commits[1][1] == [file for file in OWN_FILES if file != "README.md"]
    assert stub.repositories.pop(REPOSITORY)[0] is True  # private
    upload.upload_lora(plan(public=True))
    assert stub.repositories.pop(REPOSITORY)[0] is False
    monkeypatch.delenv("HF_TOKEN")
    assert refusal(upload.upload_lora, plan()).startswith("There is no token for the Hub.")
    assert not stub.repositories


def test_no_local_path_and_no_dataset_leaves_the_machine(plan, with_lora):
    config, card, unknown = (
        next(file.content.decode() for file in plan(base=base).files if file.name == name)
        for name, base in (("adapter_config.json", ""), ("README.md", "toys/tiny"), ("README.md", ""))
    )
    for text in (config, unknown):
        assert str(with_lora.tiny.parent) not in text and "story.txt" not in text and "lighthouse" not in text
    assert json.loads(config)["base_model_name_or_path"] == "tiny"
    assert str(with_lora.tiny) in (with_lora.lora() / "adapter_config.json").read_text()  # here it stays
    assert "\nbase_model: toys/tiny\n" in card and "base_model" not in unknown
    huggingface_hub.ModelCard(card).data.to_yaml()


def test_other_files_only_if_they_are_named_and_no_wrong_repository(plan, with_lora):
    for name in ("story", "me/story/x", "me/st ory", ""):
        assert "Enter OWNER/REPO" in refusal(plan_upload, with_lora.lora(), "a", name)
    assert [file.name for file in plan(also=["training_log.json"]).files] == [*OWN_FILES, "training_log.json"]
    assert "'nothing.txt' does not exist in " in refusal(plan, also=["nothing.txt"])
    refusal(plan, also=["../../form.json"])


@pytest.mark.parametrize(
    ("method", "error", "sentence"),
    [
        ("create_repo", http_error(errors.HfHubHTTPError, 409), "The name me/story is taken."),
        ("create_repo", errors.OfflineModeIsEnabled("offline"), "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set"),
        ("create_commit", KeyboardInterrupt(), "Stopped. The upload was interrupted. None of the files are in"),
    ],
)
def test_every_failure_is_a_sentence_and_the_upload_can_be_repeated(plan, stub, method, error, sentence):
    stub.fails[method] = error
    assert sentence in refusal(upload.upload_lora, plan())
    assert stub.commits == []
    stub.fails.clear()
    upload.upload_lora(plan())
    assert len(stub.commits) == 1


def test_a_repository_with_another_visibility_is_refused(plan, stub):
    for private in (True, False):
        stub.repositories[REPOSITORY] = (private, OWN_FILES)
        assert refusal(upload.upload_lora, plan(public=private)).startswith(f"{REPOSITORY} exists and is ")
    assert stub.commits == []


def test_answers_of_the_real_library_are_sentences_too(plan, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.add(REPOSITORY, more={"model.gguf": b"GGUF"})
    assert "already exists and contains files" in refusal(upload.upload_lora, plan())
    hub.status = 403
    assert "Your token does not have write access to me." in refusal(upload.upload_lora, plan())
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "http://127.0.0.1:9 can't be reached" in refusal(upload.upload_lora, plan())


def push(place, *words):
    return main.main(["push", *words, "--to", REPOSITORY, "--user-data", str(place.folders.user_data)])


def test_the_command_shows_what_it_uploads_and_asks_for_the_name(with_lora, stub, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(f"yes\n{REPOSITORY}\n"))
    assert push(with_lora, "a") == 1 and stub.commits == []
    said = capsys.readouterr().err
    assert f"Upload of a to {REPOSITORY} (private: only its owner can see it), 3 files, " in said
    assert TOKEN not in said
    assert push(with_lora, "a") == 0
    out, err = capsys.readouterr()
    assert out.strip().endswith(f"/{REPOSITORY}") and TOKEN not in out + err


def test_a_model_is_uploaded_by_another_command_without_the_records_and_a_lora_of_its_name_by_this_one(
    with_lora, stub, capsys, monkeypatch
):
    shutil.copytree(with_lora.tiny, with_lora.folders.models / "a")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{REPOSITORY}\n"))
    assert push(with_lora, "a") == 0
    shutil.rmtree(with_lora.lora("a"))
    assert push(with_lora, "a", "--public") == 1
    said = capsys.readouterr().err
    assert all(f'--exclude "{name}"' in said for name in (*run_files.RUN_FILES, "checkpoint-*", "tensorboard/*"))

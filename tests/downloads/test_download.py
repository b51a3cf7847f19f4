"""A model brought from a hub: whole, on from where it broke off, and a sentence for all that cannot be."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from training_pro.core.errors import BusyError, ModelError
from training_pro.core.files import atomic_files, lock
from training_pro.core.jobs import DownloadProgress, Note
from training_pro.downloads import download
from training_pro.downloads.hub_models import parse_hub_model
from training_pro.hosts.known_models import unknown_type_reason
from training_pro.hosts.standalone import StandaloneHost, standalone_folders
from training_pro.tests.tiny import read_tree

NAME = "toys/tiny"
SHARD = "model.safetensors"


@pytest.fixture
def models(tmp_path):
    return standalone_folders(tmp_path / "user_data").models


@pytest.fixture
def offered(hub, tiny, monkeypatch):
    """The tiny model on the hub, in the midst of what nobody needs."""
    monkeypatch.setattr(download, "RETRY_PAUSES_SECONDS", (0.01, 0.01))
    monkeypatch.setattr(download, "REPORT_SECONDS", 0.0)
    beside = ("pytorch_model.bin", "onnx/model.onnx", "original/consolidated.safetensors", "tiny.gguf")
    hub.add(NAME, tiny, {**dict.fromkeys(beside, b"x" * 200_000), "LICENSE": b"free"})
    return hub


def get(models, asked=NAME, revision="", stopping=lambda told: False):
    """How it ended, and what was told."""
    told = []
    end = download.download_model(
        parse_hub_model(asked, revision), models, unknown_type_reason, told.append, lambda: stopping(told)
    )
    return end, told


def refusal(models, asked=NAME, revision=""):
    with pytest.raises(ModelError) as error:
        get(models, asked, revision)
    assert "\n" not in str(error.value)
    return str(error.value)


def names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_it_comes_whole_is_loaded_and_leaves_nothing_else(offered, models, tiny, tmp_path):
    end, _ = get(models)
    folder = models / "toys_tiny"
    assert end.folder == folder
    assert read_tree(folder) == read_tree(tiny) | {"LICENSE": b"free"}
    assert [path.name for path in models.iterdir()] == ["toys_tiny"]
    assert {path.name for path in tmp_path.iterdir()} == {"user_data"}
    host = StandaloneHost(standalone_folders(models.parent), model="toys_tiny")
    assert host.models() == ["toys_tiny"]
    assert host.loaded_model().model.num_parameters() > 0


def test_before_it_comes_it_is_said_what_it_is_and_while_it_comes_how_far_it_is(offered, models):
    _, told = get(models)
    announced = next(event.text for event in told if isinstance(event, Note))
    assert announced.startswith("toys/tiny at ")
    assert ": llama, license apache-2.0, " in announced and f"Downloading to {models / 'toys_tiny'} (" in announced
    fetched = [event for event in told if isinstance(event, DownloadProgress)]
    assert [event.done for event in fetched] == sorted(event.done for event in fetched)
    assert fetched[-1].done == fetched[-1].total == sum(f.stat().st_size for f in (models / "toys_tiny").iterdir())


def test_what_broke_off_goes_on_where_it_stood_also_on_a_branch_that_moved_on(offered, models, tiny):
    offered.breaks_at = [70_000] * 9  # once more than it is tried again, whatever came
    offered.breaks_at[1:] = [0] * 8
    said = refusal(models)
    assert said.startswith(f"{offered.url} can't be reached (")
    assert "Start the download again to continue. To cancel, delete " in said
    assert not (models / "toys_tiny").exists() and StandaloneHost(standalone_folders(models.parent)).models() == []
    offered.breaks_at.clear()
    offered.repositories[NAME].files["main"]["README.md"] = b"Now with a card."
    offered.asked.clear()
    _, told = get(models)
    assert (SHARD, 70_000) in offered.asked and (SHARD, 0) not in offered.asked
    assert " already downloaded)" in next(event.text for event in told if isinstance(event, Note))
    assert (models / "toys_tiny" / SHARD).read_bytes() == (tiny / SHARD).read_bytes()
    assert (models / "toys_tiny" / "README.md").read_bytes() == b"Now with a card."
    assert [path.name for path in models.iterdir()] == ["toys_tiny"]


def test_a_line_that_breaks_is_tried_again_by_itself_as_long_as_something_comes(offered, models, tiny):
    offered.breaks_at = [50_000] * 5
    _, told = get(models)
    broke = [event.text for event in told if isinstance(event, Note) and "The connection broke" in event.text]
    assert len(broke) == 5 and "trying again in 0.01 s" in broke[0]
    assert (models / "toys_tiny" / SHARD).read_bytes() == (tiny / SHARD).read_bytes()


def test_a_hub_that_cannot_begin_in_the_midst_sends_it_from_the_first(offered, models, tiny):
    offered.takes_ranges, offered.breaks_at = False, [50_000]
    get(models)
    assert (models / "toys_tiny" / SHARD).read_bytes() == (tiny / SHARD).read_bytes()


def test_a_stop_is_heard_in_the_midst_and_keeps_what_came(offered, models):
    end, _ = get(
        models, stopping=lambda told: any(isinstance(e, DownloadProgress) and e.done > 100_000 for e in told)
    )
    assert (end.outcome, end.folder) == ("stopped", None)
    assert end.text.startswith("Stopped. ") and "Start the download again to continue" in end.text
    assert get(models)[0].outcome == "finished"


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_what_ends_it_from_outside_keeps_what_came(offered, models, monkeypatch, error):
    record = download.ProgressMeter.record

    def ends(self, file, position):
        if file.name == SHARD:
            raise error
        record(self, file, position)

    monkeypatch.setattr(download.ProgressMeter, "record", ends)
    said = get(models)[0].text if error is KeyboardInterrupt else refusal(models)
    assert said.startswith(
        "Stopped." if error is KeyboardInterrupt else f"{models} can't be written: the disk is full"
    )
    assert f"delete {models / '.getting-toys_tiny'}." in said


@pytest.mark.parametrize("spoils", [lambda d: d[:-1] + b"!", lambda d: d[:-1], lambda d: d + b"!"])
def test_what_came_damaged_is_thrown_away_and_comes_anew(offered, models, tiny, spoils):
    offered.spoils = spoils
    assert refusal(models).partition(" was damaged during the download and was deleted. ")[1]
    offered.spoils = None
    get(models)
    assert (models / "toys_tiny" / SHARD).read_bytes() == (tiny / SHARD).read_bytes()


def test_a_revision_has_a_folder_of_its_own(offered, models, tiny):
    offered.add(NAME, tiny, {"README.md": b"The first one."}, "v1.0")
    assert get(models, f"{offered.url}/{NAME}/tree/v1.0")[0].folder == models / "toys_tiny_v1.0"
    assert (models / "toys_tiny_v1.0" / "README.md").read_bytes() == b"The first one."
    assert refusal(models, revision="v2").startswith(
        "toys/tiny has no revision 'v2'. See the list of revisions at "
    )


def test_two_programs_do_not_bring_the_same(offered, models):
    with lock(models / ".getting-toys_tiny" / "lock"), pytest.raises(BusyError) as error:
        get(models)
    assert str(error.value) == "Another program is downloading toys/tiny. Wait until it is done."
    assert get(models)[0].folder


def test_what_stands_there_is_left_alone(offered, models):
    get(models)
    assert refusal(models).startswith(f"toys_tiny already exists in {models}. Use it, or delete")
    (models / "toys_tiny" / "config.json").unlink()
    assert (
        refusal(models)
        == f"{models / 'toys_tiny'} exists but contains no model. Delete or rename it, then try again."
    )


def test_what_does_not_fit_is_refused_before_anything_is_written(offered, models, monkeypatch):
    monkeypatch.setattr(download, "free_bytes", lambda folder: 1000)
    said = refusal(models)
    assert said.startswith("toys/tiny still needs ") and "but only 1 kB is free. Free some space" in said
    assert not models.exists()


def test_where_there_are_no_safetensors_the_bin_comes_and_is_loaded(hub, models, tiny, tmp_path):
    import torch
    from safetensors.torch import load_file

    old = shutil.copytree(tiny, tmp_path / "old")
    torch.save(load_file(old / SHARD), old / "pytorch_model.bin")
    (old / SHARD).unlink()
    hub.add("toys/old", old)
    get(models, "toys/old")
    shutil.rmtree(old)
    assert (
        StandaloneHost(standalone_folders(models.parent), model="toys_old").loaded_model().model.num_parameters()
        > 0
    )


def test_of_several_files_of_weights_those_come_that_the_index_names(hub, models, tiny):
    index = json.dumps({"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}).encode()
    shards = {"model-1-of-2.safetensors": b"1", "model-2-of-2.safetensors": b"2", "model-0.safetensors": b"0"}
    made = hub.add("toys/parts", tiny)
    files = made.files["main"]
    del files[SHARD]
    files |= {"model.safetensors.index.json": index, **shards}
    get(models, "toys/parts")
    brought = names(models / "toys_parts")
    assert brought == {name for name in files if name not in ("model-0.safetensors", ".gitattributes")}
    del files["model-2-of-2.safetensors"]
    shutil.rmtree(models / "toys_parts")
    assert (
        refusal(models, "toys/parts")
        == "toys/parts is incomplete on the Hub: it is missing model-2-of-2.safetensors. Choose another model."
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"is_encoder_decoder": True}, "toys/odd is an encoder-decoder model; only causal"),
        ({"architectures": ["BertModel"]}, "toys/odd (BertModel) can't generate text. Choose another model."),
        (
            {"quantization_config": {"quant_method": "gptq"}},
            "toys/odd is already quantized (GPTQ), and Training PRO can't train a model in this format. Download "
            "its base model instead: toys/tiny.",
        ),
        ({"model_type": "newfangled"}, "toys/odd has an architecture (newfangled) that transformers "),
    ],
)
def test_a_config_that_cannot_be_trained_is_refused_before_anything_comes(hub, models, tiny, changed, words):
    config = json.loads((tiny / "config.json").read_text()) | changed
    hub.add("toys/odd", tiny, {"config.json": json.dumps(config).encode()}).card["base_model"] = [NAME]
    assert refusal(models, "toys/odd").startswith(words)
    assert not models.exists() and {name for name, _ in hub.asked} == {"config.json"}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            {"q4.gguf": b"GGUF"},
            "toys/odd has only GGUF files, which Training PRO does not download. Download its base model instead.",
        ),
        ({"adapter_config.json": b"{}"}, "toys/odd is a LoRA, not a model. Download its base model instead."),
        ({"config.json": b"{}"}, "toys/odd is not a model in transformers format: it has no weights"),
        ({"model.safetensors": b""}, "toys/odd is not a model in transformers format: it has no config.json"),
        ({"config.json": b"{", "model.safetensors": b""}, "config.json of toys/odd is damaged on the Hub"),
    ],
)
def test_a_repository_without_a_model_is_refused(hub, models, files, words):
    hub.add("toys/odd").files["main"] = files
    assert refusal(models, "toys/odd").startswith(words)


def test_a_model_that_is_not_there_or_not_for_everybody(offered, models, monkeypatch):
    assert refusal(models, "toys/other").startswith(
        f"There is no model toys/other at {offered.url}, or it is private."
    )
    offered.repositories[NAME].gated = True
    assert refusal(models).startswith(
        f"toys/tiny is a gated model. Accept its license at {offered.url}/toys/tiny, create a "
    )
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert get(models)[0].folder


def test_no_hub_one_that_refuses_and_one_that_may_not_be_asked(offered, models, monkeypatch):
    from huggingface_hub import constants

    answers = {
        503: "returned status 503 (",
        403: "denies access with your token (",
        401: "does not accept your token",
    }
    for status, words in answers.items():
        offered.status = status
        assert refusal(models).startswith(f"{offered.url} {words}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert refusal(models).startswith("HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert refusal(models).startswith("http://127.0.0.1:1 can't be reached (")
    assert not models.exists()


@pytest.mark.parametrize("ends", [PermissionError(13, "Access is denied"), KeyboardInterrupt])
def test_what_came_is_kept_where_its_folder_cannot_take_its_place_yet(offered, models, monkeypatch, ends):
    """Windows: a virus scanner still looks at one of the files, and somebody may lose patience meanwhile."""
    replace = Path.replace

    def held(self, target):
        if target == models / "toys_tiny":
            raise ends
        return replace(self, target)

    with monkeypatch.context() as while_held:
        while_held.setattr(atomic_files, "RETRY_PAUSES_SECONDS", (0.001,))
        while_held.setattr(atomic_files, "NEW_FOLDER_PAUSES_SECONDS", (0.001,))
        while_held.setattr(Path, "replace", held)
        said = get(models)[0].text if ends is KeyboardInterrupt else refusal(models)
    size = re.search(r"(\S+ \S+) of (\S+ \S+) downloaded so far. Start the download again to continue", said)
    assert size[1] == size[2]
    offered.asked.clear()
    assert get(models)[0].outcome == "finished"
    assert [file for file, _ in offered.asked if file.startswith(SHARD)] == []
    assert [path.name for path in models.iterdir()] == ["toys_tiny"]

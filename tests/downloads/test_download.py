"""A model brought from a hub: whole, on from where it broke off, and a sentence for all that cannot be."""

import json

import pytest
from huggingface_hub import constants
from training_pro.core.errors import BusyError, ModelError
from training_pro.core.files import lock
from training_pro.core.jobs import DownloadProgress, Note, progress
from training_pro.downloads import download, fetching, hub_models
from training_pro.hosts.standalone import StandaloneHost, standalone_folders, unknown_type_reason
from training_pro.tests.tiny import read_tree

NAME, SHARD = "toys/tiny", "model.safetensors"


@pytest.fixture
def models(tmp_path):
    return standalone_folders(tmp_path / "user_data").models


@pytest.fixture
def offered(hub, tiny, monkeypatch):
    """The tiny model on the hub, in the midst of what nobody needs."""
    monkeypatch.setattr(fetching, "RETRY_PAUSES_SECONDS", (0.01, 0.01))
    monkeypatch.setattr(progress, "REPORT_SECONDS", 0.0)
    beside = ("pytorch_model.bin", "onnx/model.onnx", "original/consolidated.safetensors", "tiny.gguf")
    hub.add(NAME, tiny, {**dict.fromkeys(beside, b"x" * 200_000), "LICENSE": b"free"})
    return hub


def get(models, asked=NAME, revision="", stopping=lambda told: False):
    """How it ended, and what was told."""
    told, model = [], hub_models.parse_hub_model(asked, revision)
    return download.download_model(model, models, unknown_type_reason, told.append, lambda: stopping(told)), told


def refusal(models, asked=NAME, revision="", **more):
    with pytest.raises(ModelError) as error:
        get(models, asked, revision, **more)
    assert "\n" not in str(error.value)
    return str(error.value)


def is_whole(models, tiny):
    return (models / "toys_tiny" / SHARD).read_bytes() == (tiny / SHARD).read_bytes()


def past_100_kb(told):
    return any(isinstance(event, DownloadProgress) and event.done > 100_000 for event in told)


def test_it_comes_whole_is_loaded_leaves_nothing_else_and_is_left_alone(offered, models, tiny):
    told = get(models)[1]
    folder = models / "toys_tiny"
    assert read_tree(folder) == read_tree(tiny) | {"LICENSE": b"free"}
    assert [path.name for path in models.iterdir()] == ["toys_tiny"]
    done = [event.done for event in told if isinstance(event, DownloadProgress)]
    assert done == sorted(done) and done[-1] == sum(file.stat().st_size for file in folder.iterdir())
    assert refusal(models).startswith(f"toys_tiny already exists in {models}. Use it, or delete")


def test_what_broke_off_goes_on_where_it_stood_also_on_a_branch_that_moved_on(offered, models, tiny):
    offered.breaks_at = [70_000] + [0] * 8  # once more than it is tried again
    said = refusal(models)
    assert said.startswith(f"{offered.url} can't be reached (") and "Start the download again to continue" in said
    assert not (models / "toys_tiny").exists() and StandaloneHost(standalone_folders(models.parent)).models() == []
    offered.breaks_at.clear()
    offered.repositories[NAME].files["main"]["README.md"] = b"Now with a card."
    offered.asked.clear()
    get(models)
    assert (SHARD, 70_000) in offered.asked and (SHARD, 0) not in offered.asked
    assert is_whole(models, tiny) and (models / "toys_tiny" / "README.md").read_bytes() == b"Now with a card."


def test_a_line_that_breaks_is_tried_again_as_long_as_something_comes(offered, models, tiny):
    offered.breaks_at = [50_000] * 5
    _, told = get(models)
    assert sum(isinstance(event, Note) and "The connection broke" in event.text for event in told) == 5
    assert is_whole(models, tiny)


@pytest.mark.parametrize("error", [None, KeyboardInterrupt()])
def test_what_ends_it_in_the_midst_keeps_what_came(offered, models, error):
    def stopping(told):
        if error and past_100_kb(told):
            raise error
        return past_100_kb(told)

    end, _ = get(models, stopping=stopping)
    assert (end.outcome, end.folder) == ("stopped", None)
    assert f"Start the download again to continue. To cancel, delete {models / '.getting-toys_tiny'}." in end.text
    assert get(models)[0].outcome == "finished"


def test_what_came_damaged_is_thrown_away_and_comes_anew(offered, models, tiny):
    for spoils in (lambda data: data[:-1] + b"!", lambda data: data + b"!"):
        offered.spoils = spoils
        assert "was damaged during the download and was deleted." in refusal(models)
    offered.spoils = None
    get(models)
    assert is_whole(models, tiny)


def test_a_revision_has_a_folder_of_its_own(offered, models, tiny):
    offered.add(NAME, tiny, {"README.md": b"The first one."}, "v1.0")
    assert get(models, f"{offered.url}/{NAME}/tree/v1.0")[0].folder == models / "toys_tiny_v1.0"
    assert (models / "toys_tiny_v1.0" / "README.md").read_bytes() == b"The first one."
    assert refusal(models, revision="v2").startswith("toys/tiny has no revision 'v2'.")


def test_what_another_program_brings_is_refused(offered, models):
    with lock(models / ".getting-toys_tiny" / "lock"), pytest.raises(BusyError, match="Another program is"):
        get(models)


CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}


@pytest.mark.parametrize(
    ("files", "config", "words"),
    [
        ({SHARD: b""}, {"is_encoder_decoder": True}, " is an encoder-decoder model; only causal"),
        ({SHARD: b""}, {"quantization_config": {"quant_method": "gptq"}}, " is already quantized (GPTQ), and"),
        ({SHARD: b""}, {"model_type": "newfangled"}, " has an architecture (newfangled) that transformers "),
        ({"q4.gguf": b"GGUF"}, None, " has only GGUF files, which Training PRO does not download."),
        ({"adapter_config.json": b"{}"}, None, " is a LoRA, not a model. Download its base model instead"),
    ],
)
def test_what_can_not_be_trained_is_refused_before_anything_comes(hub, models, files, config, words):
    made = hub.add("toys/odd")
    made.card["base_model"] = [NAME]
    made.files["main"] = files | ({} if config is None else {"config.json": json.dumps(CONFIG | config).encode()})
    assert refusal(models, "toys/odd").startswith(f"toys/odd{words}")
    assert not models.exists() and SHARD not in {name for name, _ in hub.asked}


def test_no_model_a_gated_one_and_no_hub(offered, models, monkeypatch):
    assert refusal(models, "toys/other").startswith(f"There is no model toys/other at {offered.url}")
    offered.repositories[NAME].gated = True
    assert f"gated model. Accept its license at {offered.url}/toys/tiny" in refusal(models)
    answers = {503: "returned status 503", 403: "denies access", 401: "does not accept your token"}
    for status, words in answers.items():
        offered.status = status
        assert refusal(models).startswith(f"{offered.url} {words}")
    offered.status = 0
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert get(models)[0].folder
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert refusal(models, "a/b").startswith("http://127.0.0.1:1 can't be reached (")


@pytest.mark.parametrize(
    ("asked", "revision", "found", "folder"),
    [
        (" Qwen/Qwen3-0.6B/ ", "", hub_models.HubModel("Qwen/Qwen3-0.6B", "main"), "Qwen_Qwen3-0.6B"),
        ("https://hf.co/a/b/tree/refs%2Fpr%2F3", "", hub_models.HubModel("a/b", "refs/pr/3"), "a_b_refs_pr_3"),
        ("https://mirror.example:8080/a/b/tree/dev", "v2", hub_models.HubModel("a/b", "v2"), "a_b_v2"),
    ],
)
def test_a_name_and_an_address_say_the_same_and_name_the_webuis_folder(
    asked, revision, found, folder, monkeypatch
):
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example:8080")
    assert hub_models.parse_hub_model(asked, revision) == found
    assert found.folder == folder
    for other in ("gpt2", "", "../b", "a b/c", "https://example.com/a/b", "hf.co/datasets/a/b"):
        with pytest.raises(ModelError, match="is neither OWNER/NAME nor the address of a model page"):
            hub_models.parse_hub_model(other)

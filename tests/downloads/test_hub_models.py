"""Which model of the hub is meant, under which name it comes, and what of it is needed."""

from __future__ import annotations

import pytest
from training_pro.core.errors import ModelError
from training_pro.downloads.hub_models import HubModel, missing_files, needed_files, parse_hub_model


@pytest.mark.parametrize(
    ("asked", "revision", "found"),
    [
        ("Qwen/Qwen3-0.6B", "", HubModel("Qwen/Qwen3-0.6B", "main")),
        (" Qwen/Qwen3-0.6B/ ", "", HubModel("Qwen/Qwen3-0.6B", "main")),
        ("Qwen/Qwen3-0.6B", " v1 ", HubModel("Qwen/Qwen3-0.6B", "v1")),
        ("https://huggingface.co/Qwen/Qwen3-0.6B", "", HubModel("Qwen/Qwen3-0.6B", "main")),
        ("https://huggingface.co/Qwen/Qwen3-0.6B/?x=1#files", "", HubModel("Qwen/Qwen3-0.6B", "main")),
        ("huggingface.co/Qwen/Qwen3-0.6B", "", HubModel("Qwen/Qwen3-0.6B", "main")),
        ("https://hf.co/a/b/tree/v1.0", "", HubModel("a/b", "v1.0")),
        ("https://hf.co/a/b/tree/refs%2Fpr%2F3", "", HubModel("a/b", "refs/pr/3")),
        ("https://hf.co/a/b/blob/dev/config.json", "", HubModel("a/b", "dev")),
        ("https://hf.co/a/b/discussions/7", "", HubModel("a/b", "main")),
        ("https://hf.co/a/b/tree/dev", "v2", HubModel("a/b", "v2")),
        ("https://mirror.example:8080/a/b", "", HubModel("a/b", "main")),
    ],
)
def test_a_name_and_an_address_say_the_same(asked, revision, found, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example:8080")
    assert parse_hub_model(asked, revision) == found


@pytest.mark.parametrize(
    "asked",
    [
        *("gpt2", "", "a/b/c", "../b", "a/..", "a b/c", "https://example.com/a/b", "https://huggingface.co/"),
        *("https://huggingface.co/Qwen", "hf.co/datasets/a/b", "https://hf.co/spaces/a/b"),
    ],
)
def test_what_is_no_name_is_said_with_what_to_write(asked):
    with pytest.raises(ModelError) as error:
        parse_hub_model(asked)
    assert str(error.value).startswith(f"{asked!r} is neither OWNER/NAME nor the address of a model page. Enter")


@pytest.mark.parametrize(
    ("asked", "folder"),
    [
        (HubModel("Qwen/Qwen3-0.6B"), "Qwen_Qwen3-0.6B"),
        (HubModel("a/b", "v1.0"), "a_b_v1.0"),
        (HubModel("a/b", "refs/pr/3"), "a_b_refs_pr_3"),
    ],
)
def test_its_folder_has_the_name_that_the_webui_gives_it(asked, folder):
    assert asked.folder == folder


SMALL = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer.model", "merges.txt", "LICENSE.md"]
CHAT = ["chat_template.jinja", "additional_chat_templates/tool.jinja", "README.md", "qwen.tiktoken"]
OTHERS = [
    *("model.fp16.safetensors", "consolidated.safetensors", "consolidated.00.pth", "tf_model.h5", "model.gguf"),
    *("flax_model.msgpack", "original/tokenizer.model", "onnx/config.json", "modeling_odd.py", ".gitattributes"),
]


def unread(name):
    raise AssertionError(f"{name} was read")


def test_of_a_model_comes_what_is_needed_to_load_it_and_to_talk_to_it():
    files = [*SMALL, *CHAT, *OTHERS, "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"]
    assert set(needed_files(files, unread)) == {*SMALL, *CHAT, "model.safetensors"}


@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
def test_an_index_names_the_files_of_the_weights(kind):
    read = {f"{kind}.index.json": {"weight_map": {"x": "p2", "y": "p1", "z": "p2"}}}
    assert needed_files([f"{kind}.index.json", "p1", "p2", "p3"], read.__getitem__) == [
        f"{kind}.index.json",
        "p1",
        "p2",
    ]
    assert needed_files([f"{kind}.index.json"], lambda name: {}) == [f"{kind}.index.json"]


def test_what_is_not_there_or_would_lead_elsewhere_is_missing():
    names = ["a.json", "b.json", "../c", "/d", ".e", "f/../g", "h\\i", "x/y-1 (2).z"]
    assert missing_files(names, {*names} - {"b.json"}) == ["b.json", "../c", "/d", ".e", "f/../g", "h\\i"]

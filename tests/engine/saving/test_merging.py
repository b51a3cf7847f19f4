"""A merged model says what model and LoRA said; nothing is written over, and nothing in memory is changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from training_pro.commands.main import main
from training_pro.core.engine import Merge
from training_pro.core.errors import ModelError, SavingError
from training_pro.core.jobs.job import Job
from training_pro.engine.lora.adapter import loaded_onto
from training_pro.engine.peft_engine import PeftEngine
from training_pro.engine.saving import merging
from training_pro.hosts.standalone import StandaloneHost
from training_pro.tests.engine.architectures import kept_at
from training_pro.tests.tiny import tree
from transformers import AutoModelForCausalLM, AutoTokenizer

IDS = torch.arange(3, 43)[None]


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def bake(host, lora, out):
    return PeftEngine().merge(Merge(str(lora), str(out)), host, Job("merge", "a test"))


def same(host, lora, out, near=1e-4):
    """The merged model from disk against model and LoRA, and the model in memory against itself before."""
    base = host.loaded().model
    before = {name: weight.clone() for name, weight in base.state_dict().items()}
    config = dict(vars(base.config))
    bare = logits(base)
    end = bake(host, lora, out)
    assert (end.outcome, end.folder) == ("finished", out)
    assert all(torch.equal(weight, before[name]) for name, weight in base.state_dict().items())
    assert vars(base.config) == config
    assert list(base.state_dict()) == list(before)
    found = logits(AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32))
    wanted = logits(loaded_onto(base, Path(host.folders.loras) / lora, "a"))
    assert torch.allclose(found, wanted, atol=2e-5, rtol=1e-4)
    assert not torch.allclose(found, bare, atol=1e-3)
    assert float((found - wanted).abs().max()) < near
    return out


@pytest.mark.parametrize("more", [{}, {"dora": True}, {"rslora": True, "targets": "q-v"}, {"train_head": True}])
def test_merged_it_says_the_same(place, tmp_path, more):
    place.train(**more)
    out = same(place.host(), "a", tmp_path / "models" / "new")
    assert AutoTokenizer.from_pretrained(out)("The keeper")["input_ids"]
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize("tied", [True, False])
def test_a_trained_head_is_one_tensor_where_it_was_one(place, tmp_path, tied):
    folder = kept_at(place, "llama", tied=tied)
    host = StandaloneHost(place.folders, model=str(folder))
    place.train(host, train_head=True)
    out = same(StandaloneHost(place.folders, model=str(folder)), "a", tmp_path / "new")
    names = set(load_file(out / "model.safetensors"))
    assert ("lm_head.weight" in names) is not tied
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is tied


def test_a_head_that_is_no_longer_the_embeddings_is_a_tensor_of_its_own(place, tmp_path):
    folder = kept_at(place, "llama", tied=True)
    elsewhere = get_peft_model(
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "lm_head"], init_lora_weights=False),
    )
    elsewhere.save_pretrained(place.lora(), save_embedding_layers=False)
    out = same(StandaloneHost(place.folders, model=str(folder)), "a", tmp_path / "new")
    assert "lm_head.weight" in load_file(out / "model.safetensors")
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is False


def test_transposed_layers(place, tmp_path):
    folder = kept_at(place, "gpt2")
    place.train(StandaloneHost(place.folders, model=str(folder)))
    same(StandaloneHost(place.folders, model=str(folder)), "a", tmp_path / "new")


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_experts_and_their_router(place, tmp_path, name):
    folder = kept_at(place, name)
    parts = ["experts.gate_up_proj", "experts.down_proj", "gate.weight"]
    elsewhere = get_peft_model(
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        LoraConfig(
            task_type="CAUSAL_LM",
            r=4,
            target_modules=["q_proj"],
            target_parameters=[f"mlp.{part}" for part in parts],
            rank_pattern={r".*\.gate_up_proj": 8},
            init_lora_weights=False,
        ),
    )
    elsewhere.save_pretrained(place.lora())
    out = same(StandaloneHost(place.folders, model=str(folder)), "a", tmp_path / "new", near=1e-5)
    there, merged = (load_file(at / "model.safetensors") for at in (folder, out))
    assert there.keys() == merged.keys()
    changed = {key.partition("layers.0.")[2] for key in merged if not torch.equal(merged[key], there[key])}
    assert len([key for key in changed if "expert" in key]) == 12  # four of them, three weights each
    assert [key for key in changed if key.endswith("gate.weight")]


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_all_that_peft_takes_of_a_model_with_experts(place, tmp_path, name):
    folder = kept_at(place, name)
    place.train(StandaloneHost(place.folders, model=str(folder)), learning_rate=1e-2)
    same(StandaloneHost(place.folders, model=str(folder)), "a", tmp_path / "new", near=1e-5)


def test_one_of_another_model_is_refused_by_its_own_name(with_lora, tmp_path):
    folder = kept_at(with_lora, "gpt2")
    said = refused(
        SavingError, with_lora, "a", tmp_path / "new", StandaloneHost(with_lora.folders, model=str(folder))
    )
    assert said.startswith(
        "The LoRA 'a' does not fit on this model: of the layers that it sits on, 14 of 14 are not in"
    )
    assert list(tmp_path.glob("new*")) == []


def test_weights_that_the_model_does_not_know_are_never_written(with_lora, tmp_path, monkeypatch):
    monkeypatch.setattr(merging, "_merge_layer", lambda layer: {"odd": torch.ones(1)})
    said = refused(ModelError, with_lora, "a", tmp_path / "new")
    assert said.startswith("The LoRA 'a' changes weights that have no place in this model: model.layers.0.")
    assert "odd, " in said and said.endswith("Nothing is written. Use it as a LoRA beside the model.")
    assert list(tmp_path.glob("new*")) == []


def test_a_checkpoint_and_an_old_bin(with_lora, tmp_path):
    place = with_lora
    same(place.host(), "a/checkpoint-4-epoch-1", tmp_path / "one")
    old = place.folders.loras / "old"
    shutil.copytree(place.lora(), old, ignore=shutil.ignore_patterns("checkpoint-*"))
    torch.save(load_file(old / "adapter_model.safetensors"), old / "adapter_model.bin")
    (old / "adapter_model.safetensors").unlink()
    same(place.host(), "old", tmp_path / "two")


def test_large_ones_are_written_in_shards(with_lora, tmp_path, monkeypatch):
    monkeypatch.setattr(merging, "SHARD", "40KB")
    out = same(with_lora.host(), "a", tmp_path / "new")
    assert (out / "model.safetensors.index.json").is_file()
    assert len(list(out.glob("model-*.safetensors"))) > 1


def refused(kind, place, lora, out, host=None):
    before = tree(place.folders.user_data)
    with pytest.raises(kind) as error:
        bake(host or place.host(), lora, out)
    assert tree(place.folders.user_data) == before
    return str(error.value)


def test_nothing_is_written_over(with_lora, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.txt").write_text("mine")
    said = refused(SavingError, with_lora, "a", tmp_path / "there")
    assert said == f"{tmp_path / 'there'} is not empty. Name a folder that is not there yet."
    (tmp_path / "empty").mkdir()
    assert bake(with_lora.host(), "a", tmp_path / "empty").outcome == "finished"


def test_quantized_weights_are_refused_with_what_to_do(with_lora, tmp_path):
    said = refused(ModelError, with_lora, "a", tmp_path / "new", with_lora.host("4bit"))
    assert said.startswith(
        "tiny is loaded with quantized weights (4-bit), which cannot take a LoRA in without loss."
    )
    assert "Load it in bfloat16 (--load bfloat16)" in said
    assert not (tmp_path / "new").exists()


def test_without_room_nothing_is_begun(with_lora, tmp_path, monkeypatch):
    monkeypatch.setattr(merging.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**6, 10**6, 1000))
    said = refused(SavingError, with_lora, "a", tmp_path / "new")
    assert said.startswith(f"{tmp_path} has 1 kB free, and the model takes")


def test_a_failure_leaves_nothing_behind(with_lora, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("the disk is gone")

    monkeypatch.setattr(merging, "_save", fail)
    said = refused(SavingError, with_lora, "a", tmp_path / "new")
    assert said == f"{tmp_path / 'new'} cannot be written: the disk is gone. Name another folder."
    assert list(tmp_path.glob("new*")) == []


def test_half_of_one_is_no_model_yet(with_lora, monkeypatch):
    host, seen, write = with_lora.host(), [], merging._save

    def watched(base, weights, folder):
        write(base, weights, folder)
        seen.append((folder / "config.json").is_file())
        seen.append(host.models())

    monkeypatch.setattr(merging, "_save", watched)
    before = host.models()
    bake(host, "a", with_lora.folders.models / "new")
    assert seen == [True, before]
    assert host.models() == sorted([*before, "new"])


def test_the_command_names_the_folder(with_lora, tmp_path, capsys):
    where = ["--user-data", str(with_lora.folders.user_data), "--model", str(with_lora.tiny)]
    assert main(["merge", *where, "--lora", "a", "--out", str(tmp_path / "new")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "new")
    assert main(["merge", *where, "--lora", "b", "--out", str(tmp_path / "other")]) == 1
    assert "There is no LoRA 'b'" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["b/new", "b/checkpoint-1/new"])
def test_nothing_is_written_into_the_folder_of_another_lora(with_lora, where):
    shutil.copytree(with_lora.lora(), with_lora.lora("b"))
    said = refused(SavingError, with_lora, "a", with_lora.folders.loras / where)
    assert said.endswith("lies in the folder of the LoRA 'b'. Name a folder of its own.")

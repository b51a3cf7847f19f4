"""A merged model gives the logits of model and LoRA; nothing is overwritten or changed in memory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from training_pro.commands.main import main
from training_pro.core.engine import MergeRequest
from training_pro.core.errors import ModelError, SavingError
from training_pro.core.jobs import Job
from training_pro.engine.lora import load_lora
from training_pro.engine.peft_engine import PeftEngine
from training_pro.engine.saving import merging
from training_pro.hosts.standalone import StandaloneHost
from training_pro.tests.engine.architectures import save_model
from training_pro.tests.tiny import read_tree
from transformers import AutoModelForCausalLM, AutoTokenizer

IDS = torch.arange(3, 43)[None]


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def run_merge(host, lora, out):
    return PeftEngine().merge(MergeRequest(str(lora), str(out)), host, Job("merge", "a test"))


def assert_merged(host, lora, out, tolerance=1e-4):
    """Merge, and compare the result with model and LoRA, and the model in memory with itself before."""
    base = host.loaded_model().model
    before = {name: weight.clone() for name, weight in base.state_dict().items()}
    config = dict(vars(base.config))
    base_logits = logits(base)
    ended = run_merge(host, lora, out)
    assert (ended.outcome, ended.folder) == ("finished", out)
    assert all(torch.equal(weight, before[name]) for name, weight in base.state_dict().items())
    assert vars(base.config) == config
    assert list(base.state_dict()) == list(before)
    merged = logits(AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32))
    expected = logits(load_lora(base, Path(host.folders.loras) / lora, "a"))
    assert torch.allclose(merged, expected, atol=2e-5, rtol=1e-4)
    assert not torch.allclose(merged, base_logits, atol=1e-3)
    assert float((merged - expected).abs().max()) < tolerance
    return out


@pytest.mark.parametrize(
    "settings", [{}, {"dora": True}, {"rslora": True, "targets": "q-v"}, {"train_head": True}]
)
def test_a_merged_model_gives_the_same_logits(place, tmp_path, settings):
    place.train(**settings)
    out = assert_merged(place.host(), "a", tmp_path / "models" / "new")
    assert AutoTokenizer.from_pretrained(out)("The keeper")["input_ids"]
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize("tied", [True, False])
def test_a_trained_head_stays_tied_where_it_was_tied(place, tmp_path, tied):
    folder = save_model(place, "llama", tied=tied)
    host = StandaloneHost(place.folders, model=str(folder))
    place.train(host, train_head=True)
    out = assert_merged(StandaloneHost(place.folders, model=str(folder)), "a", tmp_path / "new")
    names = set(load_file(out / "model.safetensors"))
    assert ("lm_head.weight" in names) is not tied
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is tied


def test_a_head_that_no_longer_equals_the_embeddings_is_untied(place, tmp_path):
    folder = save_model(place, "llama", tied=True)
    peft_model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "lm_head"], init_lora_weights=False),
    )
    peft_model.save_pretrained(place.lora(), save_embedding_layers=False)
    out = assert_merged(StandaloneHost(place.folders, model=str(folder)), "a", tmp_path / "new")
    assert "lm_head.weight" in load_file(out / "model.safetensors")
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is False


def test_transposed_layers(place, tmp_path):
    folder = save_model(place, "gpt2")
    place.train(StandaloneHost(place.folders, model=str(folder)))
    assert_merged(StandaloneHost(place.folders, model=str(folder)), "a", tmp_path / "new")


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_a_lora_on_experts_and_their_router(place, tmp_path, name):
    folder = save_model(place, name)
    parameters = ["experts.gate_up_proj", "experts.down_proj", "gate.weight"]
    peft_model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        LoraConfig(
            task_type="CAUSAL_LM",
            r=4,
            target_modules=["q_proj"],
            target_parameters=[f"mlp.{parameter}" for parameter in parameters],
            rank_pattern={r".*\.gate_up_proj": 8},
            init_lora_weights=False,
        ),
    )
    peft_model.save_pretrained(place.lora())
    out = assert_merged(StandaloneHost(place.folders, model=str(folder)), "a", tmp_path / "new", tolerance=1e-5)
    base, merged = (load_file(path / "model.safetensors") for path in (folder, out))
    assert base.keys() == merged.keys()
    changed = {key.partition("layers.0.")[2] for key in merged if not torch.equal(merged[key], base[key])}
    assert len([key for key in changed if "expert" in key]) == 12  # four experts, three weights each
    assert [key for key in changed if key.endswith("gate.weight")]


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_all_linear_layers_of_a_model_with_experts(place, tmp_path, name):
    folder = save_model(place, name)
    place.train(StandaloneHost(place.folders, model=str(folder)), learning_rate=1e-2)
    assert_merged(StandaloneHost(place.folders, model=str(folder)), "a", tmp_path / "new", tolerance=1e-5)


def test_a_lora_of_another_model_is_refused(with_lora, tmp_path):
    folder = save_model(with_lora, "gpt2")
    message = refusal(
        SavingError, with_lora, "a", tmp_path / "new", StandaloneHost(with_lora.folders, model=str(folder))
    )
    assert message.startswith("The LoRA 'a' can't be used with this model: 14 of its 14 target modules are not in")
    assert list(tmp_path.glob("new*")) == []


def test_weights_with_unknown_names_are_never_written(with_lora, tmp_path, monkeypatch):
    monkeypatch.setattr(merging, "_merge_layer", lambda layer: {"odd": torch.ones(1)})
    message = refusal(ModelError, with_lora, "a", tmp_path / "new")
    assert message.startswith("The LoRA 'a' changes weights that this model does not have: model.layers.0.")
    assert "odd, " in message and message.endswith(
        "It can't be merged, so nothing was written. Attach it to the model instead."
    )
    assert list(tmp_path.glob("new*")) == []


def test_a_checkpoint_and_an_old_bin_file(with_lora, tmp_path):
    place = with_lora
    assert_merged(place.host(), "a/checkpoint-4-epoch-1", tmp_path / "one")
    old = place.folders.loras / "old"
    shutil.copytree(place.lora(), old, ignore=shutil.ignore_patterns("checkpoint-*"))
    torch.save(load_file(old / "adapter_model.safetensors"), old / "adapter_model.bin")
    (old / "adapter_model.safetensors").unlink()
    assert_merged(place.host(), "old", tmp_path / "two")


def test_the_files_of_a_model_are_no_larger_than_asked(with_lora, tmp_path, capsys):
    out, command = tmp_path / "new", ["merge", "--model", str(with_lora.tiny), "--lora", "a"]
    command += ["--user-data", str(with_lora.folders.user_data)]
    assert main([*command, "--out", str(out), "--shard-size", "200KB"]) == 0
    assert (out / "model.safetensors.index.json").is_file()
    shards = list(out.glob("model-*.safetensors"))
    assert len(shards) > 1 and all(shard.stat().st_size < 250_000 for shard in shards)
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    assert main([*command, "--out", str(tmp_path / "one")]) == 0
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "one", dtype=torch.float32)
    assert not list((tmp_path / "one").glob("*.index.json"))
    assert torch.equal(logits(model), logits(whole))
    capsys.readouterr()
    assert main([*command, "--out", str(tmp_path / "two"), "--shard-size", "large"]) == 1
    assert (
        capsys.readouterr().err == "Shard size: 'large' is not a file size. Enter a size such as 500MB or 5GB.\n"
    )
    assert not (tmp_path / "two").exists()


def refusal(error_type, place, lora, out, host=None):
    before = read_tree(place.folders.user_data)
    with pytest.raises(error_type) as error:
        run_merge(host or place.host(), lora, out)
    assert read_tree(place.folders.user_data) == before
    return str(error.value)


def test_nothing_is_overwritten(with_lora, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.txt").write_text("mine")
    message = refusal(SavingError, with_lora, "a", tmp_path / "there")
    said = "already exists and is not an empty folder. Choose a folder that does not exist yet."
    assert message == f"{tmp_path / 'there'} {said}"
    (tmp_path / "empty").mkdir()
    assert run_merge(with_lora.host(), "a", tmp_path / "empty").outcome == "finished"


def test_quantized_weights_are_refused_with_a_remedy(with_lora, tmp_path):
    message = refusal(ModelError, with_lora, "a", tmp_path / "new", with_lora.host("4bit"))
    assert message.startswith(
        "tiny is loaded with quantized weights (4-bit), and merging a LoRA into them would lose precision."
    )
    assert "Load the model in bfloat16 (--load bfloat16)" in message
    assert not (tmp_path / "new").exists()


def test_without_disk_space_nothing_is_started(with_lora, tmp_path, monkeypatch):
    monkeypatch.setattr(merging.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**6, 10**6, 1000))
    message = refusal(SavingError, with_lora, "a", tmp_path / "new")
    assert message.startswith(f"{tmp_path} has 1 kB free, but the model needs")


def test_a_failure_leaves_nothing_behind(with_lora, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("the disk is gone")

    monkeypatch.setattr(merging, "_save", fail)
    message = refusal(SavingError, with_lora, "a", tmp_path / "new")
    assert message == f"{tmp_path / 'new'} can't be written: the disk is gone. Choose another folder."
    assert list(tmp_path.glob("new*")) == []


def test_an_incomplete_model_is_not_listed(with_lora, monkeypatch):
    host, observed, save = with_lora.host(), [], merging._save

    def observe(base, weights, folder, shard_size):
        save(base, weights, folder, shard_size)
        observed.append((folder / "config.json").is_file())
        observed.append(host.models())

    monkeypatch.setattr(merging, "_save", observe)
    before = host.models()
    run_merge(host, "a", with_lora.folders.models / "new")
    assert observed == [True, before]
    assert host.models() == sorted([*before, "new"])


def test_the_command_names_the_folder(with_lora, tmp_path, capsys):
    arguments = ["--user-data", str(with_lora.folders.user_data), "--model", str(with_lora.tiny)]
    assert main(["merge", *arguments, "--lora", "a", "--out", str(tmp_path / "new")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "new")
    assert main(["merge", *arguments, "--lora", "b", "--out", str(tmp_path / "other")]) == 1
    assert "There is no LoRA 'b'" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["b/new", "b/checkpoint-1/new"])
def test_nothing_is_written_into_the_folder_of_another_lora(with_lora, where):
    shutil.copytree(with_lora.lora(), with_lora.lora("b"))
    message = refusal(SavingError, with_lora, "a", with_lora.folders.loras / where)
    assert message.endswith("is in the folder of the LoRA 'b'. Choose a separate folder.")

"""A merged model gives the logits of model and LoRA; nothing is overwritten or changed in memory."""

from __future__ import annotations

import shutil
import subprocess

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
from training_pro.hosts.standalone import StandaloneHost
from training_pro.tests.engine.architectures import save_model
from training_pro.tests.engine.watching import read
from training_pro.tests.tiny import read_tree
from transformers import AutoModelForCausalLM, AutoTokenizer

IDS = torch.arange(3, 43)[None]


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def run_merge(host, lora, out, job=None):
    return PeftEngine().merge(MergeRequest(str(lora), str(out)), host, job or Job("merge", "a test"))


def assert_merged(host, lora, out):
    """Merge, and compare the result with model and LoRA, and the model in memory with itself before."""
    base = host.loaded_model().model
    before, config = {name: weight.clone() for name, weight in base.state_dict().items()}, dict(vars(base.config))
    base_logits = logits(base)
    ended = run_merge(host, lora, out)
    assert (ended.outcome, ended.folder) == ("finished", out)
    assert list(base.state_dict()) == list(before) and vars(base.config) == config
    assert all(torch.equal(weight, before[name]) for name, weight in base.state_dict().items())
    merged = logits(load(out))
    expected = logits(load_lora(base, host.folders.loras / lora, "a"))
    assert torch.allclose(merged, expected, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(merged, base_logits, atol=1e-3)
    return load_file(out / "model.safetensors")


@pytest.mark.parametrize("settings", [{"dora": True}, {"rslora": True, "targets": "q-v"}, {"train_head": True}])
def test_a_merged_model_gives_the_same_logits(place, tmp_path, settings):
    place.train(max_steps=2, **settings)
    out = tmp_path / "models" / "new"
    assert_merged(place.host(), "a", out)
    assert AutoTokenizer.from_pretrained(out)("The keeper")["input_ids"]
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize(("name", "tied"), [("llama", True), ("llama", False), ("gpt2", None), ("mixtral", None)])
def test_other_architectures_and_a_trained_head_which_stays_tied_where_it_was(place, tmp_path, name, tied):
    folder = save_model(place, name, tied=tied)
    place.train(StandaloneHost(place.folders, model=str(folder)), max_steps=2, train_head=tied is not None)
    weights = assert_merged(StandaloneHost(place.folders, model=str(folder)), "a", tmp_path / "new")
    if tied is not None:
        assert ("lm_head.weight" in weights) is not tied
        assert read(tmp_path / "new" / "config.json")["tie_word_embeddings"] is tied


def save_random_lora(place, folder, **options):
    config = LoraConfig(task_type="CAUSAL_LM", r=4, init_lora_weights=False, **options)
    get_peft_model(load(folder), config).save_pretrained(place.lora(), save_embedding_layers=False)
    return StandaloneHost(place.folders, model=str(folder))


def test_a_head_that_no_longer_equals_the_embeddings_is_untied(place, tmp_path):
    host = save_random_lora(place, save_model(place, "llama", tied=True), target_modules=["q_proj", "lm_head"])
    assert "lm_head.weight" in assert_merged(host, "a", tmp_path / "new")
    assert read(tmp_path / "new" / "config.json")["tie_word_embeddings"] is False


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_a_lora_on_experts_and_their_router(place, tmp_path, name):
    folder = save_model(place, name)
    parameters = [f"mlp.{part}" for part in ("experts.gate_up_proj", "experts.down_proj", "gate.weight")]
    more = {"target_parameters": parameters, "rank_pattern": {r".*\.gate_up_proj": 8}}
    merged = assert_merged(
        save_random_lora(place, folder, target_modules=["q_proj"], **more), "a", tmp_path / "new"
    )
    base = load_file(folder / "model.safetensors")
    assert base.keys() == merged.keys()
    changed = {key.partition("layers.0.")[2] for key in merged if not torch.equal(merged[key], base[key])}
    assert len([key for key in changed if "expert" in key]) == 12  # four experts, three weights each
    assert [key for key in changed if key.endswith("gate.weight")]


def test_a_checkpoint_and_an_old_bin_file(with_lora, tmp_path):
    assert_merged(with_lora.host(), "a/checkpoint-4-epoch-1", tmp_path / "one")
    old = with_lora.folders.loras / "old"
    shutil.copytree(with_lora.lora(), old, ignore=shutil.ignore_patterns("checkpoint-*"))
    torch.save(load_file(old / "adapter_model.safetensors"), old / "adapter_model.bin")
    (old / "adapter_model.safetensors").unlink()
    assert_merged(with_lora.host(), "old", tmp_path / "two")


def test_the_command_names_the_folder_and_its_files_are_no_larger_than_asked(with_lora, tmp_path, capsys):
    command = ["merge", "--model", str(with_lora.tiny), "--user-data", str(with_lora.folders.user_data), "--lora"]
    assert main([*command, "a", "--out", str(tmp_path / "new"), "--shard-size", "200KB"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "new")
    shards = list((tmp_path / "new").glob("model-*.safetensors"))
    assert len(shards) > 1 and all(shard.stat().st_size < 250_000 for shard in shards)
    assert main([*command, "a", "--out", str(tmp_path / "one")]) == 0
    assert not list((tmp_path / "one").glob("*.index.json"))
    assert torch.equal(logits(load(tmp_path / "new")), logits(load(tmp_path / "one")))
    for arguments, message in (
        (["a", "--shard-size", "large"], "Shard size: 'large' is not a file size."),
        (["b"], "There is no LoRA 'b'"),
    ):
        capsys.readouterr()
        assert main([*command, *arguments, "--out", str(tmp_path / "two")]) == 1
        assert message in capsys.readouterr().err and not (tmp_path / "two").exists()


def refusal(error_type, place, out, host=None, lora="a"):
    """The message of a merge that changes nothing."""
    before = read_tree(place.folders.user_data)
    there = out.exists()
    with pytest.raises(error_type) as error:
        run_merge(host or place.host(), lora, out)
    assert (read_tree(place.folders.user_data), out.exists()) == (before, there)
    assert not out.with_name(f"{out.name}.part").exists()
    return str(error.value)


def test_a_merge_that_would_lose_something_is_refused_with_a_remedy(with_lora, tmp_path):
    new, there = tmp_path / "new", tmp_path / "there"
    message = refusal(ModelError, with_lora, new, with_lora.host("4bit"))
    assert "tiny is loaded with quantized weights (4-bit)" in message and "(--load bfloat16)" in message
    gpt2 = StandaloneHost(with_lora.folders, model=str(save_model(with_lora, "gpt2")))
    assert "14 of its 14 target modules are not in" in refusal(SavingError, with_lora, new, gpt2)
    there.mkdir()
    (there / "mine.txt").write_text("mine")
    said = "already exists and is not an empty folder. Choose a folder that does not exist yet."
    assert refusal(SavingError, with_lora, there) == f"{there} {said}"
    shutil.copytree(with_lora.lora(), with_lora.lora("b"))
    for where in ("b/new", "b/checkpoint-1/new"):
        message = refusal(SavingError, with_lora, with_lora.folders.loras / where)
        assert message.endswith("is in the folder of the LoRA 'b'. Choose a separate folder.")
    (there / "mine.txt").unlink()
    assert run_merge(with_lora.host(), "a", there).outcome == "finished"  # it is empty


def test_without_disk_space_nothing_is_started_and_a_failure_leaves_nothing_behind(with_lora, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], check=False).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        message = refusal(SavingError, with_lora, small / "new")
        assert " kB free, but the model needs" in message
    finally:
        subprocess.run(["umount", "-l", small], check=True)
    blocked = tmp_path / "blocked.part"  # a file where the folder for partial files should be
    blocked.write_text("")
    with pytest.raises(SavingError, match=r"blocked can't be written: .*Choose another folder\."):
        run_merge(with_lora.host(), "a", tmp_path / "blocked")
    assert not (tmp_path / "blocked").exists()

"""A merged model gives the logits of model and LoRA; nothing is overwritten or changed in memory."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from training_pro.commands.main import main
from training_pro.core.engine import MergeRequest
from training_pro.core.errors import ModelError, SavingError
from training_pro.core.jobs import Job
from training_pro.engine.lora import adapter
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


def run_merge(host, lora, out):
    return PeftEngine().merge(MergeRequest(str(lora), str(out)), host, Job("merge", "a test"))


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
    expected = logits(adapter.load_lora(base, host.folders.loras / lora, "a"))
    assert torch.allclose(merged, expected, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(merged, base_logits, atol=1e-3)
    return load_file(out / "model.safetensors"), read(out / "config.json")["tie_word_embeddings"]


@pytest.mark.parametrize("settings", [{"dora": True}, {"rslora": True, "targets": "q-v"}])
def test_a_merged_model_gives_the_same_logits(place, tmp_path, settings):
    place.train(max_steps=2, **settings)
    assert_merged(place.host(), "a", tmp_path / "models" / "new")
    assert AutoTokenizer.from_pretrained(tmp_path / "models" / "new")("The keeper")["input_ids"]
    for name in (
        "tokenizer.json",
        "tokenizer_config.json",
    ):  # as the model has them, not as transformers writes them
        assert (tmp_path / "models" / "new" / name).read_bytes() == (place.tiny / name).read_bytes()
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["new"]


@pytest.mark.long
@pytest.mark.parametrize(("name", "tied"), [("llama", True), ("llama", False), ("gpt2", None), ("mixtral", None)])
def test_other_architectures_and_a_trained_head_which_stays_tied_where_it_was(place, tmp_path, name, tied):
    folder = save_model(place, name, tied=tied)
    place.train(StandaloneHost(place.folders, model=str(folder)), max_steps=2, train_head=tied is not None)
    weights, is_tied = assert_merged(StandaloneHost(place.folders, model=str(folder)), "a", tmp_path / "new")
    assert tied is None or ("lm_head.weight" in weights, is_tied) == (not tied, tied)


PARTS = ("experts.gate_up_proj", "experts.down_proj", "gate.weight")
EXPERTS = {"target_parameters": [f"mlp.{part}" for part in PARTS], "rank_pattern": {r".*\.gate_up_proj": 8}}


@pytest.mark.parametrize(
    ("name", "options"),
    [("llama", {"target_modules": ["q_proj", "lm_head"]}), ("mixtral", EXPERTS), ("qwen3_moe", EXPERTS)],
)
def test_a_lora_on_a_head_that_is_untied_by_it_or_on_experts_and_their_router(place, tmp_path, name, options):
    folder = save_model(place, name, tied=name == "llama")
    options = {"target_modules": ["q_proj"], "init_lora_weights": False, **options}
    config = LoraConfig(task_type="CAUSAL_LM", r=4, **options)
    get_peft_model(load(folder), config).save_pretrained(place.lora(), save_embedding_layers=False)
    merged, tied = assert_merged(StandaloneHost(place.folders, model=str(folder)), "a", tmp_path / "new")
    if name == "llama":
        assert ("lm_head.weight" in merged, tied) == (True, False)
        return
    base = load_file(folder / "model.safetensors")
    assert base.keys() == merged.keys()
    changed = {key.partition("layers.0.")[2] for key in merged if not torch.equal(merged[key], base[key])}
    assert len([key for key in changed if "expert" in key]) == 12  # four experts, three weights each
    assert [key for key in changed if key.endswith("gate.weight")]


def test_the_command_names_the_folder_and_its_files_are_no_larger_than_asked(with_lora, tmp_path, capsys):
    command = ["merge", "--model", str(with_lora.tiny), "--user-data", str(with_lora.folders.user_data), "--lora"]
    assert main([*command, "a", "--out", str(tmp_path / "new"), "--shard-size", "200KB"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "new")
    shards = list((tmp_path / "new").glob("model-*.safetensors"))
    assert len(shards) > 1 and all(shard.stat().st_size < 250_000 for shard in shards)
    assert main([*command, "a/checkpoint-4-epoch-1", "--out", str(tmp_path / "one")]) == 0
    assert torch.equal(logits(load(tmp_path / "new")), logits(load(tmp_path / "one")))
    for more, message in ((["a", "--shard-size", "large"], "'large' is not a file size."), (["b"], "no LoRA 'b'")):
        assert main([*command, *more, "--out", str(tmp_path / "two")]) == 1
        assert message in capsys.readouterr().err and not (tmp_path / "two").exists()


def test_a_merge_that_would_lose_something_is_refused_and_leaves_nothing_behind(with_lora, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.txt").write_text("mine")
    (tmp_path / "blocked.part").write_text("a file where the folder for partial files should be")
    gpt2 = StandaloneHost(with_lora.folders, model=str(save_model(with_lora, "gpt2")))
    for host, out, error, message in (
        (with_lora.host("4bit"), "new", ModelError, r"quantized weights \(4-bit\).* \(--load bfloat16\)"),
        (gpt2, "new", SavingError, "14 of its 14 target modules are not in"),
        (with_lora.host(), "there", SavingError, "already exists and is not an empty folder"),
        (with_lora.host(), with_lora.lora("a") / "new", SavingError, "is in the folder of the LoRA 'a'"),
        (with_lora.host(), "blocked", SavingError, r"blocked can't be written: .*Choose another folder\."),
    ):
        before = read_tree(tmp_path)
        with pytest.raises(error, match=message):
            run_merge(host, "a", tmp_path / out)
        assert read_tree(tmp_path) == before

"""LoRAs on the embeddings and the output layer: trained, resumed, loaded, merged and exported."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from training_pro.core.engine import GgufRequest
from training_pro.core.errors import SavingError, SettingsError
from training_pro.core.jobs import Job, Note
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import StandaloneHost
from training_pro.interface.train import summary
from training_pro.tests.engine.architectures import save_model, simulate_kill
from training_pro.tests.engine.saving.test_merging import assert_merged, logits

OUTER = {"targets": ["q_proj", "embed_tokens", "lm_head"]}


def saved_weights(place, name="a"):
    return load_file(place.lora(name) / "adapter_model.safetensors")


def llama(place, *, tied):
    return StandaloneHost(place.folders, model=str(save_model(place, "llama", tied=tied)))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("more", [{}, {"dora": True, "dropout": 0.1, "neftune_noise": 5.0}])
def test_both_train_and_only_their_loras_are_saved_and_merged(place, tmp_path, tied, more):
    estimate = PeftEngine().check(place.settings(**OUTER, **more), llama(place, tied=tied)).disk
    place.train(llama(place, tied=tied), **OUTER, **more)
    weights = saved_weights(place)
    halves = [f"embed_tokens.lora_embedding_{half}" for half in "AB"] + [
        f"lm_head.lora_{half}.weight" for half in "AB"
    ]
    assert all(any(key.endswith(half) for key in weights) for half in halves)
    assert all(weight.abs().sum() > 0 for key, weight in weights.items())
    assert not any("base_layer" in key for key in weights)
    assert more or (estimate.made, estimate.exact) == (4 * sum(w.numel() for w in weights.values()), True)
    out = assert_merged(llama(place, tied=tied), "a", tmp_path / "new")
    assert "lm_head.weight" in load_file(out / "model.safetensors")


def test_a_killed_run_resumes_to_the_same_bytes(place):
    place.train(epochs=2, **OUTER)
    expected = place.weights()
    simulate_kill(place, "a", 5)
    place.train(epochs=2, resume="newest", **OUTER)
    assert place.weights() == expected


def test_a_finished_lora_is_attached_detached_and_trained_further(place):
    place.train(**OUTER)
    before, host = saved_weights(place), place.host()
    base = host.loaded_model().model
    plain = logits(base)
    place.attach_lora(host, "a")
    attached = logits(host.loaded_model().model)
    place.detach_lora(host)
    assert torch.equal(logits(base), plain) and not torch.allclose(attached, plain, atol=1e-3)
    place.train(if_exists="continue", max_steps=1, **OUTER)
    assert all(not torch.equal(weight, before[key]) for key, weight in saved_weights(place).items())


def test_the_words_mean_the_same_layers_in_any_model(place):
    host = StandaloneHost(place.folders, model=str(save_model(place, "gpt2")))
    assert PeftEngine().layers(host) | {"embed_tokens": 1, "lm_head": 1} == PeftEngine().layers(host)
    place.train(host, targets=["c_attn", "embed_tokens"])
    assert any("wte.lora_embedding_A" in key for key in saved_weights(place))


def test_all_linear_layers_leave_both_alone(place):
    place.train(max_steps=1)
    assert not any("embed_tokens" in key or "lm_head" in key for key in saved_weights(place))


def test_train_head_and_a_lora_on_the_same_layers_are_refused_by_check_and_run(place):
    refusal = "Target modules: Train Head trains model.embed_tokens in full, but it also gets a LoRA."
    (problem,) = PeftEngine().check(place.settings(train_head=True, **OUTER), place.host()).problems
    assert problem.startswith(refusal)
    with pytest.raises(SettingsError, match="Train Head trains"):
        place.train(train_head=True, **OUTER)


def test_a_run_on_tied_weights_says_that_each_gets_a_lora_of_its_own(place):
    for tied in (True, False):
        job = Job("training", "a test")
        place.train(llama(place, tied=tied), job=job, name=f"tied-{tied}", max_steps=1, **OUTER)
        notes = " ".join(event.text for event in job.log.since(0) if isinstance(event, Note))
        assert ("a merged model stores both" in notes) is tied
        assert "tie_word_embeddings" not in str(job.log.since(0))


def test_the_file_size_is_known_without_counting(place):
    config = place.host().card().config
    note = summary.lora_summary({"rank": 8, "alpha": 8, "rslora": False, "targets": ["embed_tokens"]}, config)
    assert "file size about" in note


def test_memory_covers_the_logits_of_all_trained_tokens(place):
    host = place.host()
    plain, outer = (
        PeftEngine().check(place.settings(targets=names), host).memory
        for names in (["q_proj"], ["q_proj", "lm_head"])
    )
    assert outer.head >= plain.head and outer.lora > plain.lora


def test_gguf_holds_both_where_the_model_keeps_them_apart(place):
    place.train(llama(place, tied=False), **OUTER)
    file = PeftEngine().export_gguf(GgufRequest("a"), place.host())
    tensors = {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(file).tensors}
    config, weights = place.settings(**OUTER).lora, saved_weights(place)
    looked_up = weights["base_model.model.model.embed_tokens.lora_embedding_A"]  # llama.cpp takes rows by token
    assert np.allclose(tensors["token_embd.weight.lora_a"], looked_up.T.numpy())
    assert tensors["token_embd.weight.lora_b"].shape == (32, config.rank)
    assert {"output.weight.lora_a", "output.weight.lora_b"} <= tensors.keys()


def test_gguf_refuses_tied_embeddings_whose_lora_would_go_on_the_head_too(place):
    place.train(llama(place, tied=True), targets=["q_proj", "embed_tokens"])
    with pytest.raises(SavingError, match=r"no separate tensor for model\.embed_tokens"):
        PeftEngine().export_gguf(GgufRequest("a"), place.host())

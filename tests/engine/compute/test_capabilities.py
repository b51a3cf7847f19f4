"""Probe of the model: which models can be packed, which mix examples, and what the run logs about it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from training_pro.core.errors import SettingsError
from training_pro.core.jobs import Job, Note
from training_pro.data.examples import Example
from training_pro.engine.compute import capabilities
from training_pro.settings.parsing import training_settings
from training_pro.tests.engine.architectures import (
    CONFIGS,
    add_random_lora,
    make_model,
    read_graph,
    read_log,
    simulate_kill,
)
from training_pro.tests.engine.batches import packed_batch

MIXES = "in this model, packed examples can see each other"


def probe(model, packing="auto"):
    return capabilities.probe_model(model, training_settings({"name": "a", "data": ["x.txt"], "packing": packing}))


@pytest.mark.parametrize("name", CONFIGS)
def test_every_architecture_except_opt_is_packed(name):
    result = probe(add_random_lora(make_model(name)))
    assert result.packed is (name != "opt")
    assert result.chunked_loss_refusal == ""
    if name == "opt":
        assert result.packing_refusal.startswith(MIXES)


def test_a_model_built_to_mix_is_detected():
    model = make_model("llama")
    layer = model.model.layers[1]
    layer.register_forward_hook(lambda module, given, out: out + 0.02 * out.cumsum(1))
    assert probe(model).packing_refusal.startswith(MIXES)


def test_a_model_that_mixes_very_little_is_detected():
    model = make_model("llama")
    model.model.layers[1].register_forward_hook(lambda module, given, out: out + 1e-3 * out.mean(1, keepdim=True))
    assert probe(model).packing_refusal.startswith(MIXES)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_is_not_mistaken_for_mixing(dtype):
    assert probe(make_model("llama").to(dtype)).packed
    assert not probe(make_model("opt").to(dtype)).packed


def test_a_model_without_positions_is_not_packed():
    class Positionless(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = make_model("llama")
            self.config, self.device, self.dtype = self.inner.config, self.inner.device, self.inner.dtype
            self.get_input_embeddings = self.inner.get_input_embeddings
            self.get_output_embeddings = self.inner.get_output_embeddings

        def forward(self, input_ids=None, attention_mask=None, use_cache=None):
            return self.inner(input_ids, attention_mask)

    result = probe(Positionless())
    assert result.packing_refusal == "this model does not accept position IDs (TypeError)"


def test_packing_on_is_refused_with_the_reason():
    with pytest.raises(SettingsError, match=r"can't be used, because in this model, .* Choose auto or off"):
        probe(make_model("opt"), "on")


def test_packing_off_is_not_probed():
    result = probe(make_model("opt"), "off")
    assert (result.packed, result.packing_refusal, list(result.notes())) == (False, "", [])


def test_dropout_and_modes_do_not_matter_and_are_restored():
    model = add_random_lora(make_model("gpt2"), lora_dropout=0.5)
    model.base_model.model.transformer.drop.p = 0.5
    model.train()
    model.base_model.model.transformer.h[1].eval()
    before = [m.training for m in model.modules()]
    assert probe(model).packed
    assert [m.training for m in model.modules()] == before


def test_a_packed_row_written_out():
    batch = packed_batch([Example(np.array(ids, np.int32), None, None, 0) for ids in ([5, 6, 7], [9], [5, 8])])
    assert {name: tensor.tolist() for name, tensor in batch.items()} == {
        "input_ids": [[5, 6, 7, 9, 5, 8]],
        "position_ids": [[0, 1, 2, 0, 0, 1]],
        "labels": [[-100, 6, 7, -100, -100, 8]],
    }


def test_packed_padded_and_full_logits_learn_the_same(place, monkeypatch):
    place.train(name="padded", packing="off", accumulation=2)
    place.train(name="packed", packing="on", accumulation=2)
    monkeypatch.setattr(capabilities.loss, "_find_head", lambda model: None)
    place.train(name="whole", packing="off", accumulation=2)
    padded_curve, packed_curve, full_curve = (curve(place, name) for name in ("padded", "packed", "whole"))
    assert np.allclose(packed_curve, padded_curve, rtol=1e-4)
    assert np.allclose(full_curve, padded_curve, rtol=1e-4)


def curve(place, name):
    return [(e["loss"], e["gradient_norm"], e["tokens"]) for e in read_graph(place, name)]


def test_a_run_logs_its_capabilities(place):
    job = Job("training", "a test")
    place.train(job=job)
    notes = [event.text for event in job.log.since(0) if isinstance(event, Note)]
    assert (
        "Packing is on: the examples of a batch are processed as one sequence, which saves time. The model still "
        "learns each example separately." in notes
    )
    assert (read_log(place)["packing"], read_log(place)["loss_from"]) == ("on", "supervised rows only")


def test_a_packed_run_resumes_bit_for_bit(place):
    place.train(name="whole", save_every=2, dropout=0.1)
    place.train(name="cut", save_every=2, dropout=0.1)
    simulate_kill(place, "cut", 2)
    place.train(name="cut", save_every=2, dropout=0.1, resume="newest")
    assert place.weights("cut") == place.weights("whole")

"""Probe of the model: which models can be packed, which mix examples, and what the run logs about it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from training_pro.core.errors import SettingsError
from training_pro.core.jobs import Job, Note
from training_pro.engine.compute import probe_model
from training_pro.settings.parsing import training_settings
from training_pro.tests.engine.architectures import (
    CONFIGS,
    add_random_lora,
    make_model,
    read_graph,
    read_log,
)

MIXES = "in this model, packed examples can see each other"


def probe(model, packing="auto"):
    return probe_model(model, training_settings({"name": "a", "data": ["x.txt"], "packing": packing}))


@pytest.mark.parametrize("name", CONFIGS)
def test_every_architecture_except_opt_is_packed(name):
    result = probe(add_random_lora(make_model(name)))
    assert result.packed is (name != "opt")
    assert result.packing_refusal.startswith(MIXES) is (name == "opt")
    assert result.chunked_loss_refusal == ""


@pytest.mark.parametrize("mix", [lambda out: 0.02 * out.cumsum(1), lambda out: 1e-3 * out.mean(1, keepdim=True)])
def test_a_model_that_mixes_much_or_little_is_detected(mix):
    model = make_model("llama")
    model.model.layers[1].register_forward_hook(lambda module, given, out: out + mix(out))
    assert probe(model).packing_refusal.startswith(MIXES)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_is_not_mistaken_for_mixing(dtype):
    assert probe(make_model("llama").to(dtype)).packed
    assert not probe(make_model("opt").to(dtype)).packed


def test_a_model_without_positions_is_not_packed():
    model = make_model("llama")
    own = model.forward
    model.forward = lambda input_ids=None, attention_mask=None, use_cache=None: own(input_ids, attention_mask)
    assert probe(model).packing_refusal == "this model does not accept position IDs (TypeError)"


def test_packing_on_is_refused_with_the_reason_and_packing_off_is_not_probed():
    with pytest.raises(SettingsError, match=r"can't be used, because in this model, .* Choose auto or off"):
        probe(make_model("opt"), "on")
    result = probe(make_model("opt"), "off")
    assert (result.packed, result.packing_refusal, list(result.notes())) == (False, "", [])


def test_dropout_and_modes_do_not_matter_and_are_restored():
    model = add_random_lora(make_model("gpt2"), lora_dropout=0.5).train()
    model.base_model.model.transformer.drop.p = 0.5
    model.base_model.model.transformer.h[1].eval()
    before = [m.training for m in model.modules()]
    assert probe(model).packed
    assert [m.training for m in model.modules()] == before


def test_packed_padded_and_from_all_logits_a_run_learns_the_same_and_logs_its_way(place):
    curves, logs, notes = [], [], []
    for name, packing in (("padded", "off"), ("packed", "on"), ("whole", "off")):
        host, job = place.host(), Job("training", "a test")
        if name == "whole":
            host.loaded_model().model.get_output_embeddings = lambda: None
        place.train(host, job=job, name=name, packing=packing, accumulation=2, targets="q-k-v-o")
        curves.append([(e["loss"], e["gradient_norm"], e["tokens"]) for e in read_graph(place, name)])
        logs.append((read_log(place, name)["packing"], read_log(place, name)["loss_from"].split(":")[0]))
        notes.append(" ".join(event.text for event in job.log.since(0) if isinstance(event, Note)))
    assert np.allclose(curves[1], curves[0], rtol=1e-4) and np.allclose(curves[2], curves[0], rtol=1e-4)
    rows_only = "supervised rows only"
    assert logs == [("off", rows_only), ("on", rows_only), ("off", "from all logits")]
    assert ["Packing is on" in text for text in notes] == [False, True, False]
    assert ["computed from all logits" in text for text in notes] == [False, False, True]

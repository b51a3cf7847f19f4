"""What a model says of examples, one example at a time, and the examples of a run."""

from __future__ import annotations

import torch
from training_pro.core.jobs import Stage
from training_pro.data.prepare import prepare
from training_pro.engine.lora import adapter
from training_pro.engine.tokenizer import make_working_tokenizer


def prepared(place, **settings):
    card = place.host().card()
    tokenizer = make_working_tokenizer(card.tokenizer)
    return prepare(place.settings(**settings), place.folders, card, tokenizer, lambda *_: None)


def finished_model(place, name="a"):
    return adapter.load_lora(place.host().loaded_model().model, place.lora(name), name).eval()


def losses_and_hits(model, examples):
    """Loss of each learned token, and whether it was the most probable one."""
    losses, hits = [], []
    for example in examples:
        ids = torch.as_tensor(example.ids, dtype=torch.long)
        learned = torch.as_tensor(example.labels, dtype=torch.long)[1:] != -100
        with torch.no_grad():
            logits = model(input_ids=ids[None]).logits[0, :-1].float()
        losses += torch.nn.functional.cross_entropy(logits, ids[1:], reduction="none")[learned].tolist()
        hits += (logits.argmax(-1) == ids[1:])[learned].tolist()
    return losses, hits


def mean(values):
    return sum(values) / len(values)


def raise_during(host, stage, error):
    """Let the model raise an error in this stage; returns the watch of the job."""
    stages = [""]

    def spoil(module, args):
        if stages[-1].startswith(stage):
            raise error

    host.loaded_model().model.register_forward_pre_hook(spoil)
    return lambda job, event: stages.append(event.text) if isinstance(event, Stage) else None

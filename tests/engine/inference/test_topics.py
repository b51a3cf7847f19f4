"""What a map is drawn from: the hidden states of a model, the same in a batch as alone, for every architecture."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from training_pro.core.engine import MapRequest
from training_pro.core.errors import StoppedError
from training_pro.core.jobs import Job, Request
from training_pro.data import dataset_index
from training_pro.data.workshop import mapping
from training_pro.engine.inference import topics
from training_pro.engine.peft_engine import PeftEngine
from training_pro.tests.engine.architectures import CONFIGS, OTHERS, make_model

IDS = [[5, 6, 7, 8], [9], [10, 11], [12, 13, 14, 15, 16, 17]]


@pytest.mark.parametrize("name", [*CONFIGS, *OTHERS])
def test_states_are_those_of_the_layer_without_the_first_token_and_the_model_works_as_before(name):
    model = make_model(name)
    found = topics.embed(model, IDS, Job("map", "a test"), 0.5)
    for row, ids in zip(found, IDS, strict=True):
        with torch.no_grad():
            output = model(input_ids=torch.tensor([ids]), output_hidden_states=True, use_cache=False)
        states = output.hidden_states[1][0]  # after the first of two layers
        assert np.allclose(row, (states[1:] if len(ids) > 1 else states).mean(0).numpy(), atol=1e-4)


def test_a_map_of_a_text_holds_its_passages_and_a_stop_leaves_none(place):
    place.write("book.txt", "\n\n\n".join(f"The house number {n} is kept by Ada. " * 4 for n in range(60)))
    host, out = place.host(), place.folders.datasets / "book.txt.map.jsonl"
    host.load(str(place.tiny), "auto")
    request, job = MapRequest(str(place.folders.datasets / "book.txt"), out), Job("map", "a test")
    job.control.ask(Request.STOP)
    with pytest.raises(StoppedError):
        PeftEngine().draw_map(request, host, job)
    assert not out.exists()
    assert PeftEngine().draw_map(request, host, Job("map", "a test")).text.startswith("60 rows mapped in ")
    texts = [row["row"]["text"][:18] for row in mapping.read_map(out).rows]
    assert texts[:2] == ["The house number 0", "The house number 1"]
    assert out.name not in [entry.name for entry in dataset_index.list_datasets(place.folders)]

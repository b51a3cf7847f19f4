"""What the guides say of a whole run: an example of its settings, and batches of its evaluations."""

from __future__ import annotations

import pytest
import torch
from training_pro.core.jobs import EvaluationDone
from training_pro.settings import presets
from training_pro.tests.coming_from import read_page
from training_pro.tests.seeds.conftest import run_events, settings

EXAMPLE_RUN = {
    "epochs": 2, "save_each_epoch": True, "batch_size": 4, "compile": False, "accumulation": 1,
    "gradient_checkpointing": "on", "tf32": False, "max_grad_norm": 0.3, "learning_rate": 5e-5,
    "optimizer": "adamw_8bit", "schedule": "constant", "warmup_steps": 0.03, "seed": 42, "batching": "shuffled",
    "logging_steps": 10, "max_steps": 0,
}  # fmt: skip


@pytest.mark.long
def test_the_example_run_is_a_preset_which_trains_and_reports_where_you_ask_for_it(place, tmp_path):
    """With the plain optimizer, since the 8-bit one needs a GPU."""
    preset = presets.find_preset("instruction-tuning", tmp_path).values
    flat = settings(**preset).values()
    assert {key: flat[key] for key in EXAMPLE_RUN} == EXAMPLE_RUN
    assert not {"report_to", "run_name"} & preset.keys()
    asked = settings(**preset, report_to="wandb", run_name="mine").records
    assert (asked.report_to, asked.run_name) == ("wandb", "mine")
    assert "does not report to any service" in read_page("report_to=wandb in the example run")
    assert place.train(**{**preset, "optimizer": "adamw_torch"}).outcome == "finished"


@pytest.mark.long
def test_an_evaluation_batch_that_takes_too_much_memory_is_split_in_halves(place):
    host, sizes = place.host(), []

    def fits_two(module, inputs):
        if not torch.is_grad_enabled() and len(inputs[0]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        sizes.append(len(inputs[0]))

    host.loaded_model().model.get_input_embeddings().register_forward_pre_hook(fits_two)
    asked = {"eval_share": 0.25, "eval_batch_size": 4, "max_steps": 1, "recall_passages": 0, "packing": "off"}
    assert run_events(place, host, kind=EvaluationDone, **asked)
    assert 2 in sizes

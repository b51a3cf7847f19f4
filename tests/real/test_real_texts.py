"""Texts from the folder that TRAINING_PRO_REAL_TEXTS names: each is checked, sliced and trained on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from training_pro.data.prepare import prepare
from training_pro.engine.tokenizer import make_working_tokenizer

FOLDER = os.environ.get("TRAINING_PRO_REAL_TEXTS", "")
TEXTS = sorted(Path(FOLDER).iterdir()) if FOLDER else []

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not TEXTS, reason="TRAINING_PRO_REAL_TEXTS names no folder of texts"),
]


@pytest.fixture(params=TEXTS, ids=lambda path: path.name)
def name(request, place):
    """The name of a dataset in the workspace: one of the real texts."""
    target = place.folders.datasets / request.param.name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(request.param, target) if request.param.is_dir() else shutil.copy(request.param, target)
    return target.name + ("/" if target.is_dir() else "")


@pytest.mark.parametrize("chunking", ["blocks", "dementor"])
def test_nothing_is_lost(place, name, chunking, record_property):
    host = place.host()
    card = host.card()
    settings = place.settings(data=[name], cutoff=128, chunking=chunking, drop_boilerplate=True)
    data = prepare(settings, host.folders, card, make_working_tokenizer(card.tokenizer), lambda *_: None)
    record_property("report", data.report.text())
    assert [source.text.characters_lost for source in data.report.sources if source.text] == [0]
    assert data.report.problems == ()


def test_a_short_run_and_a_reply(place, name):
    host = place.host()
    assert place.train(host, data=[name], cutoff=128, max_steps=2).outcome == "finished"
    replies = [event for event in place.answer(host, lora="a") if getattr(event, "text", "")]
    assert replies

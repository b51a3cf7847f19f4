"""What a card tells of a model without its weights."""

from __future__ import annotations

import pytest
from training_pro.core.host import ModelCard


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"max_position_embeddings": 2048}, 2048),
        ({"n_positions": 1024}, 1024),
        ({"text_config": {"max_position_embeddings": 4096}, "vision_config": {"n_ctx": 77}}, 4096),
        ({"max_position_embeddings": 77, "text_config": {"max_position_embeddings": 4096}}, 4096),
        ({"max_position_embeddings": 2048, "text_config": None}, 2048),
        ({"max_position_embeddings": None}, 0),
        ({}, 0),
    ],
)
def test_the_longest_text_is_that_of_the_part_that_reads_text(config, tokens):
    assert ModelCard("toy", config, None, "auto").context == tokens

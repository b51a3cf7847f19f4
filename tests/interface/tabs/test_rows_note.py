"""The line about how rows are read: two settings always, others if they are changed."""

from __future__ import annotations

from training_pro.interface.tabs.perplexity_tab import describe_row_settings
from training_pro.settings.definitions import TrainingSettings

USUAL = "Data format: Auto, based on the columns; Train on: Auto."


def note(**values):
    return describe_row_settings({**TrainingSettings().values(), **values})


def test_the_two_usual_settings_and_changed_ones():
    assert note().endswith(f"Perplexity is measured on the tokens that you would train on. {USUAL}")
    assert note(epochs=3, cutoff=64) == note()
    assert note(train_on="last_reply", system="Be brief.").endswith(
        "Data format: Auto, based on the columns; System message: Be brief.; Train on: Last reply only."
    )

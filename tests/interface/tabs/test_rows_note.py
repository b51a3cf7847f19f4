"""How rows are read, in a line: the usual two, and what is changed."""

from __future__ import annotations

from training_pro.interface.tabs.rows_note import rows_read
from training_pro.settings.definitions import TrainingSettings

USUAL = "Prompt format: by the columns; Learn from: replies, where there are some."


def said(**values):
    return rows_read({**TrainingSettings().values(), **values})


def test_the_usual_two_and_what_is_changed():
    assert said().endswith(f"what would be learned counts. {USUAL}")
    assert said(epochs=3, cutoff=64) == said()
    assert said(train_on="last_reply", system="Be brief.").endswith(
        "Prompt format: by the columns; System message: Be brief.; Learn from: the last reply only."
    )

"""Overused phrases: what counts as one, and what is listed."""

from training_pro.core.jobs import EvidenceMeasured, event_words, events
from training_pro.data import split


def test_a_phrase_is_overused_that_a_side_repeats_and_the_author_hardly_has():
    author = ["The sea was calm, and the sea was calm again. Nobody came."] * 2
    without = "A shiver ran down her spine.\nA shiver ran down her spine, and the sea was calm."
    found = split.find_overuse(author, [without, "The sea was calm. A shiver ran.\nNobody came."])
    assert "sea was calm" not in found and "a shiver ran" in found
    assert found["ran down her spine"] == [0, 2000 / (6 + 11), 0] and found["a shiver ran"][2] == 1000 / 9
    assert split.worst_phrases(found, 15)[0] in ("a shiver ran down her", "shiver ran down her spine")
    assert "shiver ran down" not in split.worst_phrases(found, 15)
    assert split.find_overuse(["a b c a b c"], ["a b c a b c", "a b c"]) == {}


def test_the_evidence_lists_them():
    overused = (events.Phrase("", 0.1, 30.0, 8.0), events.Phrase("ran down her spine", 0.1, 9.5, 0.0))
    table = event_words.evidence_table(EvidenceMeasured(general=(), overused=overused))
    assert table[1:] == [
        ("Overused phrases per 1,000 words (in the training data: 0.1)", "30.0", "8.0"),
        ("- 'ran down her spine' (in the training data: 0.1)", "9.5", "0.0"),
    ]

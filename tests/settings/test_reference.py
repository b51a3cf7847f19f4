"""The reference of all settings."""

import json

from training_pro.settings import reference
from training_pro.settings.definitions import SECTIONS, SETTINGS
from training_pro.tests.conftest import ROOT


def test_the_page_has_one_row_for_every_setting_in_its_section():
    page = reference.render_markdown()
    written = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert page == written, "run: python3 script.py settings > docs/settings.md"
    parts = page.split("\n## ")[1:]
    for section, part in zip(SECTIONS, parts, strict=True):
        rows = [line for line in part.splitlines() if line.startswith("| `")]
        assert [row.split("`")[1] for row in rows] == [k for k, s in SETTINGS.items() if s.section == section]
        assert {row.replace("\\|", "").count("|") for row in rows} == {6}
    cutoff = SETTINGS["cutoff"]
    assert f"| `cutoff` | {cutoff.label} | `auto` | auto or 16 to 131072 | {cutoff.help} |" in page
    keys = ("name", "data", "overlap", "rslora", "epochs", "learning_rate")
    assert [reference.format_default(SETTINGS[k]) for k in keys] == ["", "", "true", "false", "2", "0.0002"]


def test_as_json_has_one_plain_object_a_setting_with_its_bounds_and_choices():
    entries = {entry["key"]: entry for entry in reference.as_json()}
    assert list(entries) == list(SETTINGS) and json.loads(json.dumps(entries)) == entries
    for entry in entries.values():
        assert {"key", "label", "section", "kind", "default", "live", "help"} <= entry.keys()
    cutoff, name = entries["cutoff"], entries["name"]
    assert (cutoff["minimum"], cutoff["maximum"], cutoff["words"]) == (16, 131072, ["auto"])
    assert entries["add_eos"]["choices"] == ["hard_cut", "every_block", "never"]
    assert not {"minimum", "maximum", "choices", "words"} & name.keys() and "choices" not in cutoff

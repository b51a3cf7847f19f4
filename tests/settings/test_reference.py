"""The reference of all settings."""

import json
from pathlib import Path

import pytest
from training_pro.settings import reference
from training_pro.settings.definitions import SECTIONS, SETTINGS
from training_pro.settings.setting import Setting

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"


def test_the_page_in_docs_is_this_reference():
    page = PAGE.read_text(encoding="utf-8")
    assert page == reference.render_markdown(), "run: python3 script.py settings > docs/settings.md"


def rows(page):
    return [line for line in page.splitlines() if line.startswith("| `")]


def test_every_setting_has_one_row_in_its_section():
    parts = reference.render_markdown().split("\n## ")[1:]
    assert len(parts) == len(SECTIONS)
    for section, part in zip(SECTIONS, parts, strict=True):
        keys = [row.split("`")[1] for row in rows(part)]
        assert keys == [key for key, setting in SETTINGS.items() if setting.section == section]


def test_a_row_has_all_columns():
    page = reference.render_markdown()
    (row,) = [row for row in rows(page) if row.startswith("| `cutoff`")]
    cutoff = SETTINGS["cutoff"]
    assert row == f"| `cutoff` | {cutoff.label} | `auto` | auto or 16 to 131072 | {cutoff.help} |"


def test_rows_hold_as_many_cells_as_the_head(monkeypatch):
    setting = Setting(
        key="k", section="what", kind="text", default="a|b", label="A | B", help="One\ntwo.", live=True
    )
    monkeypatch.setattr(reference, "SETTINGS", {"k": setting})
    (row,) = rows(reference.render_markdown())
    assert row == "| `k` | A \\| B | `a\\|b` | text | One two. You can change this during a run. |"


@pytest.mark.parametrize(
    ("key", "default"),
    [
        ("name", ""),
        ("data", ""),
        ("overlap", "true"),
        ("rslora", "false"),
        ("epochs", "2"),
        ("learning_rate", "0.0002"),
    ],
)
def test_defaults_as_typed(key, default):
    assert reference.format_default(SETTINGS[key]) == default


def test_as_json_has_one_plain_object_a_setting():
    entries = reference.as_json()
    assert [entry["key"] for entry in entries] == list(SETTINGS)
    assert json.loads(json.dumps(entries)) == entries
    for entry in entries:
        assert {"key", "label", "section", "kind", "default", "live", "help"} <= entry.keys()


def test_as_json_says_bounds_and_choices_where_there_are_some():
    entries = {entry["key"]: entry for entry in reference.as_json()}
    assert (entries["cutoff"]["minimum"], entries["cutoff"]["maximum"], entries["cutoff"]["words"]) == (
        16,
        131072,
        ["auto"],
    )
    assert entries["add_eos"]["choices"] == ["hard_cut", "every_block", "never"]
    assert entries["seed"]["minimum"] == -1
    assert not {"minimum", "maximum", "choices", "words"} & entries["name"].keys()
    assert "choices" not in entries["cutoff"]
    assert entries["data"]["default"] == []

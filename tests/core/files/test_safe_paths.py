"""Paths from names that somebody hands over."""

from __future__ import annotations

import pytest
from training_pro.core.errors import DataError, ModelError, SavingError
from training_pro.core.files.safe_paths import child, descendant, leads_out, name_fault
from training_pro.core.readable import MAX_VALUE_CHARS
from training_pro.tests import hostile

GOOD = (
    "story",
    "old-1.5",
    "Backup-2026-11-20",
    ".part",
    "story 10",
    "m\u00e4rchen",
    "\u7269\u8a9e",
    "console",
    "a..b",
    "-x",
)


@pytest.fixture
def folder(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    hostile.plant_link(tmp_path / "loras", outside)
    return tmp_path / "loras"


def test_there_are_three_hundred_and_none_twice(tmp_path):
    assert len(set(hostile.hostile_values(tmp_path / "outside"))) == hostile.COUNT >= 300


@pytest.mark.parametrize("name", hostile.NOT_ELSEWHERE)
def test_a_strange_name_is_refused_or_what_lies_there(folder, name):
    try:
        found = descendant(folder, name, "LoRA")
    except SavingError as refusal:
        assert len(str(refusal)) < 400 + len(str(folder))
    else:
        assert found.is_relative_to(folder) and ".." not in found.parts


@pytest.mark.parametrize("number", range(hostile.COUNT))
@pytest.mark.parametrize("resolve", [child, descendant])
def test_each_is_refused_in_one_short_line(folder, number, resolve):
    value = hostile.hostile_values(folder.parent / "outside")[number]
    with pytest.raises(SavingError) as refusal:
        resolve(folder, value, "LoRA")
    said = str(refusal.value)
    assert said.startswith("LoRA: ") and said.isprintable() and len(said.encode()) < 400 + len(str(folder))


@pytest.mark.parametrize("name", GOOD)
def test_a_plain_name_is_what_lies_there(folder, name):
    assert name_fault(name) == ""
    assert child(folder, name, "LoRA") == descendant(folder, name, "LoRA") == folder / name


def test_a_checkpoint_lies_below(folder):
    found = folder / "story" / "backup" / "checkpoint-5"
    assert descendant(folder, "story/backup/checkpoint-5", "LoRA") == found
    assert descendant(folder, "story\\backup\\checkpoint-5", "LoRA") == found


@pytest.mark.parametrize("value", [None, 7, ["story"], {"path": "story"}, b"story"])
def test_what_is_no_text_is_no_name(folder, value):
    for resolve in (child, descendant):
        with pytest.raises(DataError, match="is not a valid name"):
            resolve(folder, value, "Data", refusal=DataError)


def test_a_link_is_followed_where_it_is_only_read(folder):
    linked = folder / hostile.LINK
    assert leads_out(linked)
    assert child(folder, hostile.LINK, "Data", follow_links=True) == linked
    assert descendant(folder, f"{hostile.LINK}/a.txt", "Data", follow_links=True) == linked / "a.txt"
    with pytest.raises(ModelError, match="links to a location outside"):
        descendant(folder, f"{hostile.LINK}/a.txt", "Model", refusal=ModelError)


def test_a_link_that_stays_is_no_fault_and_one_to_itself_is(folder):
    (folder / "story").mkdir()
    (folder / "same").symlink_to("story", target_is_directory=True)
    (folder / "round").symlink_to("round")
    (folder / "home").symlink_to(folder, target_is_directory=True)
    assert not leads_out(folder / "same")
    assert leads_out(folder / "home")
    with pytest.raises(SavingError, match="links to a location outside"):
        child(folder, "home", "LoRA")


def test_the_folder_itself_may_be_a_link(folder, tmp_path):
    (tmp_path / "elsewhere").symlink_to(folder, target_is_directory=True)
    assert child(tmp_path / "elsewhere", "story", "LoRA") == tmp_path / "elsewhere" / "story"


def test_a_long_value_is_shortened(folder):
    with pytest.raises(SavingError) as refusal:
        child(folder, "x" * 5000, "LoRA")
    assert "x" * MAX_VALUE_CHARS not in str(refusal.value)

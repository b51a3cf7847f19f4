"""Paths from names that somebody hands over."""

import pytest
from training_pro.core.errors import DataError, SavingError
from training_pro.core.files import descendant, name_fault, safe_paths
from training_pro.tests import hostile

CHILD = safe_paths.child


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "outside").mkdir()
    hostile.plant_link(tmp_path / "loras", tmp_path / "outside")
    return tmp_path / "loras"


@pytest.mark.parametrize("resolve", [CHILD, descendant])
def test_each_hostile_name_is_refused_in_one_short_line(folder, resolve):
    for value in hostile.hostile_values(folder.parent / "outside"):
        with pytest.raises(SavingError) as refusal:
            resolve(folder, value, "LoRA")
        said = str(refusal.value)
        assert said.startswith("LoRA: ") and said.isprintable(), value
        assert len(said.encode()) < 400 + len(str(folder)), value
    for value in (None, ["story"], b"story"):
        with pytest.raises(DataError, match="is not a valid name"):
            resolve(folder, value, "Data", refusal=DataError)


def test_a_plain_name_is_what_lies_there_also_below_and_behind_a_link(folder, tmp_path):
    (tmp_path / "elsewhere").symlink_to(folder, target_is_directory=True)
    for name in ("story", "old-1.5", ".part", "story 10", "\u7269\u8a9e", "console", "a..b", "-x"):
        assert name_fault(name) == ""
        assert CHILD(folder, name, "LoRA") == descendant(folder, name, "LoRA") == folder / name
        assert CHILD(tmp_path / "elsewhere", name, "LoRA") == tmp_path / "elsewhere" / name
    for name in ("story/backup/checkpoint-5", "story\\backup\\checkpoint-5"):
        assert descendant(folder, name, "LoRA") == folder / "story" / "backup" / "checkpoint-5"


def test_a_link_is_followed_where_it_is_only_read_and_refused_elsewhere_if_it_leads_out(folder):
    linked = folder / hostile.LINK
    assert CHILD(folder, hostile.LINK, "Data", follow_links=True) == linked
    assert descendant(folder, f"{hostile.LINK}/a.txt", "Data", follow_links=True) == linked / "a.txt"
    for name, target in (("same", "story"), ("round", "round"), ("home", folder)):
        (folder / name).symlink_to(target)
    assert CHILD(folder, "same", "LoRA") == folder / "same"
    for name in ("home", hostile.LINK):
        assert safe_paths.leads_out(folder / name)
        with pytest.raises(SavingError, match="links to a location outside"):
            CHILD(folder, name, "LoRA")

"""The tables of rows in the Perplexity tab: both ends, and what the model says of the same rows without a LoRA."""

from __future__ import annotations

import re

from training_pro.core.jobs.events import KnownRow, PerplexityFound
from training_pro.interface.tabs.perplexity_rows import known_rows


def found(lora, **losses):
    """Rows with these losses, the least known first."""
    rows = tuple(
        KnownRow(place=place, read=f"<{place}?>", begins=f"{place}!", tokens=1234, loss=loss, right=0.5)
        for place, loss in sorted(losses.items(), key=lambda item: -item[1])
    )
    sizes = {"tokens": 9, "stride": 0, "max_length": 8, "seconds": 1.0, "right": 0.5}
    return PerplexityFound(model="m", lora=lora, dataset="a.jsonl", perplexity=2.0, loss=1.0, rows=rows, **sizes)


def lines(html):
    """The cells of each line, table by table."""
    return [re.findall(r"<t[dh]>(.*?)</t[dh]>", line) for line in re.findall(r"<tr>(.*?)</tr>", html)]


def test_both_ends_with_what_is_said_without_a_lora():
    html = known_rows([found("b", a=0.0, b=1.0, c=2.0, d=3.0), found("-", a=1.0, b=2.0, c=3.0, d=3.5)])
    worn, bare = (lines(part) for part in html.split("Without a LoRA: least"))
    assert worn[0][-1] == "without a LoRA"
    assert worn[1] == ["least known", "d", "&lt;d?&gt;", "d!", "20.09", "50%", "1,234", "33.12"]
    assert [line[:2] for line in worn[1:]] == [
        ["least known", "d"],
        ["", "c"],
        ["best known", "a"],
        ["", "b"],
    ]
    assert bare[0][-1] == "tokens"
    assert bare[1][:2] == ["least known", "d"]
    assert re.findall(r"<details( open)?><summary>(.*?)</summary>", html) == [
        (" open", "b: least and best known rows"),
        ("", "Without a LoRA: least and best known rows"),
    ]


def test_a_row_that_is_not_told_without_a_lora_has_an_empty_place():
    assert [line[-1] for line in lines(known_rows([found("b", a=0.0, z=1.0), found("-", a=1.0, b=2.0)]))[1:3]] == [
        "",
        "2.718",
    ]


def test_no_row_is_least_and_best_known_at_once():
    places = [line[1] for line in lines(known_rows([found("-", a=1.0, b=2.0, c=3.0)]))[1:]]
    assert places == ["c", "a"]
    many = found("-", **{f"r{n}": float(n) for n in range(40)})
    assert [row.place for row in many.least_known] == ["r39", "r38", "r37", "r36", "r35"]
    assert [row.place for row in many.best_known] == ["r0", "r1", "r2", "r3", "r4"]


def test_of_one_row_or_of_a_text_there_is_no_table():
    assert known_rows([found("-", a=1.0)]) == known_rows([found("-")]) == ""

"""The tables of rows in the Perplexity tab: best and worst known rows, with and without a LoRA."""

from __future__ import annotations

import re

from training_pro.core.jobs import PerplexityMeasured, RowScores
from training_pro.interface.tabs.perplexity_details import row_tables


def result(lora, **losses):
    """A result with rows of these losses, the least known first."""
    rows = tuple(
        RowScores(place=place, read=f"<{place}?>", begins=f"{place}!", tokens=1234, loss=loss, right=0.5)
        for place, loss in sorted(losses.items(), key=lambda item: -item[1])
    )
    sizes = {"tokens": 9, "stride": 0, "max_length": 8, "seconds": 1.0, "right": 0.5}
    return PerplexityMeasured(
        model="m", lora=lora, dataset="a.jsonl", perplexity=2.0, loss=1.0, rows=rows, **sizes
    )


def lines(html):
    """The cells of each line of all tables."""
    return [re.findall(r"<t[dh]>(.*?)</t[dh]>", line) for line in re.findall(r"<tr>(.*?)</tr>", html)]


def test_best_and_worst_rows_with_their_perplexity_without_a_lora():
    html = row_tables([result("b", a=0.0, b=1.0, c=2.0, d=3.0), result("-", a=1.0, b=2.0, c=3.0, d=3.5)])
    with_lora, without = (lines(part) for part in html.split("Without a LoRA: rows"))
    assert with_lora[0][-1] == "without a LoRA"
    assert with_lora[1] == ["highest perplexity", "d", "&lt;d?&gt;", "d!", "20.09", "50%", "1,234", "33.12"]
    assert [line[:2] for line in with_lora[1:]] == [
        ["highest perplexity", "d"],
        ["", "c"],
        ["lowest perplexity", "a"],
        ["", "b"],
    ]
    assert without[0][-1] == "tokens"
    assert without[1][:2] == ["highest perplexity", "d"]
    assert re.findall(r"<details( open)?><summary>(.*?)</summary>", html) == [
        (" open", "b: rows with the highest and lowest perplexity"),
        ("", "Without a LoRA: rows with the highest and lowest perplexity"),
    ]


def test_a_row_that_is_missing_without_a_lora_has_an_empty_cell():
    assert [
        line[-1] for line in lines(row_tables([result("b", a=0.0, z=1.0), result("-", a=1.0, b=2.0)]))[1:3]
    ] == [
        "",
        "2.718",
    ]


def test_no_row_is_least_and_best_known_at_once():
    places = [line[1] for line in lines(row_tables([result("-", a=1.0, b=2.0, c=3.0)]))[1:]]
    assert places == ["c", "a"]
    many = result("-", **{f"r{n}": float(n) for n in range(40)})
    assert [row.place for row in many.least_known] == ["r39", "r38", "r37", "r36", "r35"]
    assert [row.place for row in many.best_known] == ["r0", "r1", "r2", "r3", "r4"]


def test_one_row_or_a_text_has_no_table():
    assert row_tables([result("-", a=1.0)]) == row_tables([result("-")]) == ""

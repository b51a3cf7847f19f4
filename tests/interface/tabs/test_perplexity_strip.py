"""The strips of the Perplexity tab: one scale for all, darker where the loss is lower."""

from __future__ import annotations

import re
from dataclasses import replace

from training_pro.core.jobs import PerplexityMeasured, RowScores, Segment
from training_pro.interface.tabs.perplexity_details import loss_strips


def result(lora, *losses):
    stretches = tuple(Segment(begins=f"<part {n}>", tokens=9, loss=x, right=0.5) for n, x in enumerate(losses))
    sizes = {"tokens": 9 * len(losses), "stride": 4, "max_length": 8, "seconds": 1.0, "right": 0.5}
    return PerplexityMeasured(
        model="m", lora=lora, dataset="a.txt", perplexity=2.0, loss=sum(losses), stretches=stretches, **sizes
    )


def test_all_strips_have_one_scale():
    html = loss_strips([result("b", 1.0, 2.0), result("-", 3.0, 5.0)])
    assert re.findall(r'fill-opacity="([0-9.]+)"', html) == ["1.00", "0.76", "0.53", "0.06"]
    assert "Without a LoRA: lowest perplexity “&lt;part 0&gt; …” (perplexity 20.09, 50% of tokens correct)" in html
    assert "highest perplexity “&lt;part 1&gt; …” (perplexity 148.4, 50% of tokens correct)" in html
    assert "<part" not in html


def test_a_single_segment_has_no_strip():
    assert loss_strips([result("-", 1.0)]) == ""


def test_strips_of_rows_name_no_extremes():
    row = RowScores(place="line 1", read="", begins="", tokens=9, loss=1.0, right=0.5)
    html = loss_strips([replace(result("b", 1.0, 2.0), rows=(row,))])
    assert "In row order, from first to last" in html
    assert "<p>b</p><svg" in html
    assert "Along the text" in loss_strips([result("b", 1.0, 2.0)])

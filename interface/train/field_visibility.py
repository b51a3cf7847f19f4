"""Settings that have no effect with the chosen data and values are hidden."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from markupsafe import Markup

from ..base import setting_layout

DataKind = Literal["text", "rows"]


def style(keys: Collection[str]) -> Markup:
    """A style sheet that hides these settings, and rows without any visible setting.

    The settings are hidden, not removed, so their values stay in the form in every version of Gradio.
    """
    selectors = [f"#tp-{key}" for key in sorted(keys)]
    selectors += [f"#{setting_layout.row_id(row)}" for row in setting_layout.ALL_ROWS if set(row) <= set(keys)]
    template = "{} {{display: none !important}} {} {{content: ' (not used with this dataset and these settings)'}}"
    links = [f'#tp-find-results [data-tp-go="{key}"]::after' for key in sorted(keys)]
    rules = template.format(", ".join(selectors), ", ".join(links)) if keys else ""
    return Markup("<style>{}</style>").format(Markup(rules)) if rules else Markup("")

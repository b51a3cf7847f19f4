"""The search field above the folded parts: finds settings by any of their names elsewhere, and presets."""

from __future__ import annotations

import gradio as gr
from markupsafe import Markup

from ...settings import presets
from ...settings.other_names import Named, find_settings
from ..base import add_handler, markup, private_options, setting_link

RESULT = '<p>{} <span class="tp-quiet">{}</span></p>'


class SettingSearch:
    """A text box, and links to the settings that it finds."""

    def draw(self) -> None:
        self._query = gr.Textbox(
            label="Find a setting or preset",
            placeholder="For example: save steps, stop token, out of memory, cutoff_len",
            max_lines=1,
            elem_id="tp-find",
        )
        self._results = gr.HTML(elem_id="tp-find-results", elem_classes="tp-said")

    def connect(self) -> None:
        add_handler(
            self._query.change,
            results_html,
            self._query,
            self._results,
            what="Finding a setting",
            says=self._results,
            **private_options(),
        )


def results_html(query: str) -> str:
    """Links to what the query finds."""
    if not query.strip():
        return ""
    found = find_settings(query, _preset_names())
    if not found:
        return markup.paragraph(f"No setting or preset matches {query[:60]!r}. Try a shorter word.", quiet=True)
    return Markup("").join(map(_result_html, found))


def _preset_names() -> list[Named]:
    """The presets of the menu 'Copy settings from', to which their links lead."""
    goals = presets.goals()
    return [Named("start-from", f"Preset: {goal.label}", {"preset": [goal.label]}, goal.words) for goal in goals]


def _result_html(named: Named) -> Markup:
    """A link and the first sentence of the help."""
    return Markup(RESULT).format(setting_link(named.key, named.label), named.help.partition(". ")[0])

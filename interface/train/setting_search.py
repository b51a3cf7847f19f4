"""The search field above the folded parts: finds settings by any of their names elsewhere, and presets."""

from __future__ import annotations

import gradio as gr
from markupsafe import Markup

from ...settings import presets
from ...settings.other_names import Named, find_settings
from ..base import add_handler, apply_button, markup, private_options, setting_link

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
    goals = {f"Preset: {goal.label}": goal for goal in presets.goals()}
    names = [Named("start-from", label, {"preset": [goal.label]}, goal.words) for label, goal in goals.items()]
    found = find_settings(query, names)
    if not found:
        return markup.paragraph(f"No setting or preset matches {query[:60]!r}. Try a shorter word.", quiet=True)
    return Markup("").join(_result_html(named, goals.get(named.label)) for named in found)


def _result_html(named: Named, goal: presets.Preset | None) -> Markup:
    """A link and the first sentence of the help; for a preset also a button that fills in its settings."""
    link = setting_link(named.key, named.label)
    button = Markup(" {}").format(apply_button("use", goal.values)) if goal else ""
    return Markup(RESULT).format(link + button, named.help.partition(". ")[0])

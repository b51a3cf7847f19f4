"""HTML from Jinja templates: every value is escaped, except for Markup, which is HTML already."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup


def html(template: str, **values: Any) -> Markup:
    """Fill in a template, which is compiled once."""
    from markupsafe import Markup

    return Markup(_compile(template).render(values))  # Jinja has escaped the values


@cache
def _compile(template: str) -> Template:
    from jinja2 import Environment, StrictUndefined

    # A misspelled name is an error instead of an empty place.
    return Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    ).from_string(template)

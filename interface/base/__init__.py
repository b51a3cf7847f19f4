"""Shared parts of the page: Gradio versions, event handlers, styles, the form, HTML pieces and links."""

from . import form as form
from . import markup as markup
from .form import Form as Form
from .form import shown_value as shown_value
from .handlers import add_handler as add_handler
from .handlers import confirm_click as confirm_click
from .handlers import load_script as load_script
from .handlers import page_load as page_load
from .handlers import refresh_choices as refresh_choices
from .page_context import PageContext as PageContext
from .page_context import PageEngine as PageEngine
from .page_context import ResultInputs as ResultInputs
from .page_context import StopButton as StopButton
from .page_context import follow_changes as follow_changes
from .style import CSS as CSS

"""Finds extensions in the user's folder and lets them draw, with what the webui catches and what it does not."""

from __future__ import annotations

import importlib.util
import logging
import sys
from types import ModuleType
from typing import Any

import gradio as gr

from modules import shared

state: dict[str, ModuleType] = {}


def load_extensions() -> None:
    """Every script.py is executed anew; a package that is missing stops the webui, another error leaves it out."""
    state.clear()
    for name in shared.args.extensions:
        path = shared.user_data_dir / "extensions" / name / "script.py"
        try:
            spec = importlib.util.spec_from_file_location(f"user_ext_{name}", str(path))
            assert spec is not None and spec.loader is not None
            extension = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = extension
            spec.loader.exec_module(extension)
            _apply_settings(extension, name)
            state[name] = extension
        except ModuleNotFoundError:
            raise
        except Exception:
            logging.getLogger("webui").exception("Failed to load the extension %s.", name)


def _apply_settings(extension: ModuleType, name: str) -> None:
    params: dict[str, Any] = getattr(extension, "params", {})
    params.update({key: shared.settings[f"{name}-{key}"] for key in params if f"{name}-{key}" in shared.settings})


def create_extensions_tabs() -> None:
    """A tab for each that wants one; what goes wrong in there is not caught."""
    for name, extension in state.items():
        params = getattr(extension, "params", {})
        if hasattr(extension, "ui") and params.get("is_tab"):
            with gr.Tab(params.get("display_name", name), elem_classes="extension-tab"):
                extension.ui()


def apply_css() -> str:
    return "".join(extension.custom_css() for extension in state.values() if hasattr(extension, "custom_css"))


def apply_chat_input(text: str, visible_text: str, chat: dict[str, Any]) -> tuple[str, str]:
    for extension in state.values():
        if hasattr(extension, "chat_input_modifier"):
            text, visible_text = extension.chat_input_modifier(text, visible_text, chat)
    return text, visible_text

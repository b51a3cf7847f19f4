"""Gives huggingface_hub 1.x the name `HfFolder` again, which plain Gradio 4.37.2 imports.

The webui's own build of that Gradio does without the name. Python runs this file at its start when
the folder stands on PYTHONPATH; huggingface_hub itself is not imported before somebody asks for it.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class HfFolder:
    """All that Gradio asks of it."""

    @staticmethod
    def get_token() -> str | None:
        from huggingface_hub import get_token

        return get_token()


class HubFinder:
    """Finds huggingface_hub where it lies, and has the name put in once it is loaded."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "huggingface_hub":
            return None
        spec = PathFinder.find_spec(name)
        if spec is not None and spec.loader is not None:
            _put_in_after(spec)
        return spec


def _put_in_after(spec: ModuleSpec) -> None:
    load = spec.loader.exec_module

    def load_and_put_in(module: ModuleType) -> None:
        load(module)
        if not hasattr(module, "HfFolder"):
            module.HfFolder = HfFolder

    spec.loader.exec_module = load_and_put_in


sys.meta_path.insert(0, HubFinder)

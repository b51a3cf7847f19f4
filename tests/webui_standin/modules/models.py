"""Loads models and lets them go, as the webui does for its Model tab."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modules import shared


def load_model(model_name: str, loader: str | None = None) -> tuple[Any, Any]:
    """The model and its tokenizer, by the loader that is set; the name stays noted, also where loading fails."""
    shared.model_name = model_name
    path = Path(shared.args.model_dir) / model_name
    shared.args.loader = (
        loader or shared.args.loader or ("llama.cpp" if path.suffix == ".gguf" else "Transformers")
    )
    if not path.exists():
        return None, None
    if shared.args.loader != "llama.cpp":  # modules/models.py
        from modules import sampler_hijack

        sampler_hijack.hijack_samplers()
    return _llama_cpp(path) if shared.args.loader == "llama.cpp" else _transformers(path)


def unload_model(keep_model_name: bool = False) -> None:
    if shared.model is None:
        return
    shared.model = shared.tokenizer = None
    shared.lora_names = []
    if not keep_model_name:
        shared.model_name = "None"


def _transformers(path: Path) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging

    logging.set_verbosity_error()  # modules/transformers_loader.py, when it is imported
    torch._dynamo.config.disable = True  # modules/transformers_loader.py
    kind = torch.float32 if shared.args.cpu else torch.float16
    return AutoModelForCausalLM.from_pretrained(path, dtype=kind), AutoTokenizer.from_pretrained(path)


def _llama_cpp(path: Path) -> tuple[Any, Any]:
    from modules.llama_cpp_server import LlamaServer

    try:
        server = LlamaServer(path)
    except RuntimeError:
        return None, None
    return server, server

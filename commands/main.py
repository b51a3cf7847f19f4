"""Entry point of the command line: the list of commands, and the place where errors become messages."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches

from ..core import dist_env
from ..core.errors import SavingError, TrainingProError, error_message
from ..core.readable import quote
from ..core.version import launch_command

Run = Callable[[Sequence[str]], int]
COMMANDS: Mapping[str, str] = {
    "demo": "try Training PRO: set up a model and example data, and open the page",
    "page": "open the page in your browser and train your own models",
    "setup": "set up the environment for training in the working folder, as the page of the webui does",
    "get": "download a model in transformers format from the Hugging Face Hub",
    "train": "train without the page: one run, or one run per settings file",
    "check": "check a dataset and settings, with the same report as the Check button",
    "slice": "show how a text is sliced into blocks",
    "data": "look at a dataset, clean it, split it into two files, convert it, or let a model take notes on it",
    "status": "show the progress of current runs",
    "export": "create a folder with everything that another machine needs to do a run",
    "tell": "control a run that was started in another window: stop, pause, save and more",
    "runs": "list, delete and restore LoRAs and checkpoints, or make them smaller",
    "perplexity": "measure perplexity: how well a model predicts a text or rows, with and without LoRAs",
    "recall": "measure how much of the training data the model reproduces word for word, with and without a LoRA",
    "evidence": "test a LoRA: what the model has forgotten, what it copies, and what it answers from memory",
    "merge": "merge a LoRA into its base model and save a full model (safetensors, config and tokenizer)",
    "gguf": "export a LoRA as a GGUF file for llama.cpp, to use with a GGUF file of its base model",
    "push": "upload a LoRA to the Hugging Face Hub: weights, config and a model card",
    "settings": "list every setting with its key, label, default, allowed values and help",
    "test": "run the tests",
}
# Started by the tab only.
HIDDEN_COMMANDS: Mapping[str, str] = {"worker": "work on a model for a tab whose program can't"}
# The functions of commands that share a module. Every other command is `run` in the module of its name.
FUNCTIONS: Mapping[str, str] = {
    **{"demo": "page:run_demo", "slice": "check:run_slice"},
    **{name: f"models:run_{name}" for name in ("get", "merge", "gguf", "push")},
    **{name: f"models:run_{name}" for name in ("perplexity", "recall", "evidence")},
    **{name: f"control:run_{name}" for name in ("status", "export", "tell")},
}


def main(arguments: Sequence[str]) -> int:
    """Run one command; return 0 on success, 1 on a problem the user can fix, 2 on a wrong command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Pipes and files get UTF-8, also on Windows. A console keeps its encoding.
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="backslashreplace")
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in {**COMMANDS, **HIDDEN_COMMANDS}:
        similar = "".join(f" Did you mean {command!r}?" for command in get_close_matches(name, COMMANDS, 1))
        print(f"Unknown command {name!r}.{similar}\n\n{usage()}", file=sys.stderr)
        return 2
    try:
        for argument in rest:
            # Python keeps bytes that are no text as lone surrogates. They must not get into a record or a page.
            if any("\ud800" <= character <= "\udfff" for character in argument):
                raise SavingError(
                    f"{quote(argument)} contains bytes that are not valid UTF-8. Rename the file, or type its "
                    "name again."
                )
        module, _, function = FUNCTIONS.get(name, f"{name}:run").partition(":")
        run: Run = getattr(importlib.import_module(f".{module}", __package__), function)
        return run(rest)
    except TrainingProError as error:
        if dist_env.is_main_process():  # otherwise each process of distributed training would print it
            print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output has closed it: `| head`
        # Python flushes standard output at its end, which would fail again, with a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(error_message(error), file=sys.stderr)
        return 1


def usage() -> str:
    """List all commands, one per line."""
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            "Training PRO: train LoRAs on books, scripts and notes.\n",
            f"Usage: {launch_command()} COMMAND [options]\n",
            *(f"  {name:<{width}}  {description}" for name, description in COMMANDS.items()),
            f"\n{launch_command()} COMMAND --help lists the options of that command.",
        ]
    )

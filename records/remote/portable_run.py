"""A run as a folder for another machine: its settings, its data, the versions used here, and instructions."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ...core.errors import SavingError
from ...core.files import move_new_folder, safe_paths, staging_folder, write_error_reason, write_json, write_text
from ...core.host import Folders, ModelCard
from ...core.version import VERSION
from ...settings import files
from ...settings.definitions import TrainingSettings

SETTINGS_FILE, REQUIREMENTS, README = "settings.json", "requirements.txt", "README.txt"
PACKAGES = (
    *("torch", "transformers", "peft", "accelerate", "safetensors", "bitsandbytes", "datasets", "pyarrow"),
    *("lxml", "pymupdf", "python-docx", "charset-normalizer", "jinja2", "filelock", "numpy"),
)
"""What a run reads its data and trains with."""
INSTRUCTIONS = """\
A training run for another machine
==================================

This folder was made by Training PRO {version} with Python {python}. It is a working folder that contains the
settings ({settings_file}) and the data ({data_folder}) of the run {name!r}. It does not contain the base model.

1. Copy this folder to the other machine, and install Training PRO {version} there.
2. Optional: install the torch build for your GPU, and then the package versions that this folder was made with:
       pip install -r {requirements}
   If you skip this step, Training PRO creates its own environment the first time you run it.
3. Copy {models} into "models" inside this folder, or download the model:
       python3 script.py get OWNER/NAME --user-data FOLDER
4. Train: run these commands in the folder that contains script.py. FOLDER stands for this folder. On Windows,
   write py instead of python3.
       python3 script.py check FOLDER/{settings_file} --user-data FOLDER {arguments}
       python3 script.py train FOLDER/{settings_file} --user-data FOLDER {arguments}
   With two GPUs:
       torchrun --nproc_per_node 2 script.py train FOLDER/{settings_file} --user-data FOLDER {arguments}
   To resume after Ctrl+C or a crash, add --resume to the same command.
5. Copy loras/{name} from this folder into the loras folder of the first machine. The Runs tab then shows
   the LoRA with its curve, its checkpoints and its report.
"""


@dataclass(frozen=True)
class PortableRun:
    """A run to train elsewhere: its settings, its datasets by name, the card of its model, and our folders."""

    settings: TrainingSettings
    datasets: Mapping[str, Path]
    card: ModelCard
    folders: Folders

    def write(self, out: Path) -> None:
        """Write the folder, which must not exist; it appears only when it is complete."""
        if out.exists():
            raise SavingError(f"{out} already exists. Choose another folder, or delete this one.")
        sources = list(self._sources())
        try:
            with staging_folder(out) as scratch:
                folder = scratch / out.name
                for target, source in sources:
                    _copy(source, folder / target)
                (folder / "models").mkdir(parents=True, exist_ok=True)
                write_json(folder / SETTINGS_FILE, files.as_file(self.settings))
                write_text(folder / REQUIREMENTS, "".join(f"{line}\n" for line in _requirements()))
                write_text(folder / README, self._instructions())
                move_new_folder(folder, out)
        except OSError as error:
            raise SavingError(f"{out} can't be written: {write_error_reason(error, out)}") from error

    def _sources(self) -> Iterator[tuple[Path, Path]]:
        """Each file or folder that the run reads, after its place in a working folder."""
        settings, folders = self.settings, self.folders
        for name, path in self.datasets.items():
            yield folders.datasets.relative_to(folders.user_data) / name, path
        format_file = f"{settings.rows.format}.json"
        own_format = folders.formats / format_file
        if not safe_paths.name_fault(format_file) and own_format.is_file():
            yield own_format.relative_to(folders.user_data), own_format
        if settings.what.if_exists == "continue":
            weights = (folders.loras / settings.what.name).glob("adapter_*")
            yield from ((Path("loras", settings.what.name, file.name), file) for file in weights)

    def _instructions(self) -> str:
        return INSTRUCTIONS.format(
            version=VERSION,
            python=".".join(map(str, sys.version_info[:3])),
            settings_file=SETTINGS_FILE,
            data_folder=self.folders.datasets.relative_to(self.folders.user_data).as_posix(),
            requirements=REQUIREMENTS,
            name=self.settings.what.name,
            models=" and ".join(f"the folder of the {what} {name!r}" for what, name in self._models().items()),
            arguments=" ".join(map(_quote, self._load_arguments())),
        )

    def _models(self) -> Mapping[str, str]:
        """The folders to copy, by what they hold."""
        tokenizer = Path(self.card.tokenizer_name).name
        return {"model": self.card.name, **({"tokenizer": tokenizer} if tokenizer else {})}

    def _load_arguments(self) -> Iterator[str]:
        """The arguments that load the model as here, except for memory limits: the other machine has its own."""
        for what, name in self._models().items():
            yield from (f"--{what}", name)
        if self.card.loading != "auto":
            yield from ("--load", self.card.loading)


def _quote(argument: str) -> str:
    return f'"{argument}"' if " " in argument else argument


def _copy(source: Path, target: Path) -> None:
    """Copy a file or a folder; what links in it lead to is copied, too, as a run reads it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)


def _requirements() -> Iterator[str]:
    """The installed versions; a torch built for one kind of device has a suffix that the index does not know."""
    for name, installed in _versions().items():
        yield f"{name}=={installed.partition('+')[0]}"


def _versions() -> Mapping[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # an optional one
            continue
    return found

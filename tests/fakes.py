"""What stands in for the outside: a host that lends nothing real, and a tokenizer of one word, one token."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from training_pro.chunking import EncodedText
from training_pro.core.evaluations_table import EvaluationRow
from training_pro.core.host import DeviceMemory, Folders, LoadedModel, ModelCard, ModelStatus, OwnProcess
from training_pro.core.jobs import Step

BOS, EOS = 1, 2
FIRST_WORD = 10


def make_folders(root: Path) -> Folders:
    """The folders of a working folder, with examples of its own; only the data sets' folder is made."""
    made = Folders(root / "user", root / "models", root / "loras", root / "logs", root / "examples")
    made.datasets.mkdir(parents=True)
    made.examples.mkdir()
    return made


def a_step(number: int) -> Step:
    """A step of a run of eight."""
    figures = {"loss": 2.5, "smoothed": 2.25, "learning_rate": 1e-4, "gradient_norm": 1.0, "tokens": 10}
    return Step(step=number, steps=8, epoch=number / 4, seconds=0.5, **figures)


@dataclass
class WordTokenizer:
    """One word, one id, in the order in which words are first met; a word brings the space before it along."""

    bos: int | None = BOS
    eos: int | None = EOS
    fingerprint: str = ""
    known: dict[str, int] = field(default_factory=dict)

    @property
    def stops(self) -> tuple[int, ...]:
        return () if self.eos is None else (self.eos,)

    def encode(self, texts: Sequence[str]) -> list[EncodedText]:
        return [self._encoded(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        words = {BOS: "<s>", EOS: "</s>"} | {number: word for word, number in self.known.items()}
        return " ".join(words[i] for i in ids)

    def _encoded(self, text: str) -> EncodedText:
        found = list(re.finditer(r"\s*\S+|\s+$", text))
        ids = [self.known.setdefault(m[0].strip(), FIRST_WORD + len(self.known)) for m in found]
        starts, ends = [m.start() for m in found], [m.end() for m in found]
        return EncodedText(np.array(ids, np.int32), np.array(starts, np.int64), np.array(ends, np.int64))


@dataclass
class FakeHost:
    """A host without a model; `in_use` says whether somebody has it to himself now, `uses` how often."""

    folders: Folders | None = None
    tokenizer: Any = None
    config: dict[str, Any] = field(default_factory=dict)
    model: Any = None
    loras: tuple[str, ...] = ()
    owns_process: bool = True
    own_process: OwnProcess | None = None
    read_only_reason: str = ""
    in_use: bool = False
    uses: int = 0
    rows: list[EvaluationRow] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def models(self) -> list[str]:
        return ["toy"]

    def model_status(self) -> ModelStatus:
        return ModelStatus("toy", "toy", self.loras)

    def card(self) -> ModelCard:
        return ModelCard("toy", self.config, self.tokenizer, "auto")

    def loaded_model(self) -> LoadedModel:
        return LoadedModel(self.card(), self.model, self.loras)

    def load(self, name: str, loading: str) -> None: ...

    def unload(self) -> None: ...

    def reload(self, card: ModelCard) -> None: ...

    def set_loras(self, model: Any, names: Sequence[str]) -> None:
        self.model, self.loras = model, tuple(names)

    def llama_cpp(self) -> None: ...

    @contextmanager
    def exclusive_use(self) -> Iterator[None]:
        with self.lock:
            self.in_use, self.uses = True, self.uses + 1
            try:
                yield
            finally:
                self.in_use = False

    def chat_template(self) -> str:
        return ""

    def memory(self) -> DeviceMemory:
        return DeviceMemory("toy", 0, 0)

    def add_evaluation(self, row: EvaluationRow) -> None:
        self.rows.append(row)

"""How to talk to what is being trained: what stands around a message in the examples, and prompts out of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from ...core.errors import DataError
from ...core.host import Folders
from ...settings.definitions import TrainingSettings
from ..examples import IGNORED, Example, Examples
from . import prompt_formats
from .encoding import RowTokenizer
from .prompt_formats import FormatShape, Template
from .row_dataset import marks

if TYPE_CHECKING:
    from ...chunking import Encoder

MESSAGE = "%message%"
SIGN = "\ue0f00\ue0f1"  # stands in no text
LOOKED_AT = 24  # examples, spread evenly
PROMPTS = 3  # out of the data
BEGINNING = 24  # tokens of a text that one is made of
LONGEST = 512  # tokens of a prompt out of rows
EXAMPLE_CHARS = 1000

Manner = Literal["text", "chat", "format"]


class Speaker(RowTokenizer, Protocol):
    """A tokenizer for texts and for rows."""

    @property
    def encode(self) -> Encoder: ...


class Prompt(NamedTuple):
    """What the model is asked: for a person, and as it gets it."""

    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Speaking:
    """What stands before and after a message; for a text that is gone on with nothing does."""

    manner: Manner = "text"
    origin: str = ""
    before: str = ""
    after: str = ""
    turn: str = ""  # of what stands before, that which every message of the user's begins with
    bos: int | None = None
    system: str = ""

    def prompt(self, message: str, tokenizer: Speaker) -> Prompt:
        """A message of the user's own as the model would have met it in training."""
        encode = tokenizer.encode if self.manner == "text" else tokenizer.encode_marked
        ids = tuple(encode([f"{self.before}{message}{self.after}"])[0].ids.tolist())
        opens = self.bos is not None and ids[:1] != (self.bos,)
        return Prompt(message, (self.bos, *ids) if opens and self.bos is not None else ids)

    def asked(self, text: str) -> str:
        """Of a prompt out of the data what somebody said in it."""
        inside = text.rstrip().removesuffix(self.after.rstrip())
        return inside.rpartition(self.turn)[2].strip() if self.turn else inside

    def as_json(self, settings: TrainingSettings, example: str) -> dict[str, Any]:
        """For training_prompt.json: how to talk to the LoRA."""
        return {
            "kind": self.manner,
            "format": self.origin or "a text that is gone on with",
            "template": f"{self.before}{MESSAGE}{self.after}",
            "before": self.before,
            "after": self.after,
            "system": self.system,
            "marker": settings.rows.train_only_after,
            "starts_with_bos": self.bos is not None,
            "example": example[:EXAMPLE_CHARS],
        }


def speaking(settings: TrainingSettings, folders: Folders, tokenizer: Speaker, examples: Examples) -> Speaking:
    """How most of the examples are written: as a chat, in a prompt format, or as texts."""
    bos = tokenizer.bos if settings.text.add_bos else None
    looked_at = [tokenizer.decode(examples[n].ids.tolist()) for n in _spread(len(examples), LOOKED_AT)]
    for found in (*_formats(settings, folders, tokenizer, bos), *_chats(settings, tokenizer, bos)):
        signs = [part for part in (found.after.strip(), found.turn.strip()) if part]
        if signs and 2 * sum(all(sign in text for sign in signs) for text in looked_at) > len(looked_at):
            return _with_their_system(found, tokenizer, examples) if found.manner == "chat" else found
    return Speaking(bos=bos)


def in_a_chat(tokenizer: Speaker, bos: int | None, system: str = "") -> Speaking | None:
    """As the chat template writes a first message; None where it writes none."""
    template = tokenizer.chat_template
    lead = [{"role": "system", "content": system}] if system else []
    try:
        written = template.render([*lead, {"role": "user", "content": SIGN}], (), opening=True)
    except ValueError:
        return None
    before, sign, after = written.partition(SIGN)
    if not sign:
        return None
    own = None if template.own else bos
    return Speaking("chat", template.origin, before, after, _turn(before, tokenizer), own, system)


def prompts(asked: str | Sequence[str], way: Speaking, tokenizer: Speaker, examples: Examples) -> list[Prompt]:
    """The user's own, or with 'auto' beginnings out of the data."""
    if not isinstance(asked, str):
        return [way.prompt(message, tokenizer) for message in asked]
    found: dict[str, Prompt] = {}
    for start in _spread(len(examples), PROMPTS):
        for number in range(start, min(start + LOOKED_AT, len(examples))):
            prompt = _beginning(examples[number], way, tokenizer)
            if prompt is not None and prompt.text not in found:
                found[prompt.text] = prompt
                break
    return list(found.values())


def _beginning(example: Example, way: Speaking, tokenizer: Speaker) -> Prompt | None:
    """Up to where the first reply begins; of a text the first words. None where that is too long to ask."""
    ids, first = example.ids.tolist(), _first_learned(example)
    text = first <= 1
    end = min(BEGINNING, max(1, len(ids) // 2)) if text else first
    if end > LONGEST:
        return None
    words = tokenizer.decode([n for n in ids[:end] if n != way.bos])
    asked = words if text else way.asked(words)
    return Prompt(asked, tuple(ids[:end])) if asked.strip() else None


def _first_learned(example: Example) -> int:
    labels = example.labels.tolist()
    return next((n for n, label in enumerate(labels) if label != IGNORED), len(labels))


def _spread(count: int, most: int) -> list[int]:
    return sorted({count * n // most for n in range(most)}) if count else []


def _chats(settings: TrainingSettings, tokenizer: Speaker, bos: int | None) -> Iterator[Speaking]:
    """With the user's system message, or without it where the template takes none."""
    for system in dict.fromkeys((settings.rows.system, "")):
        if (way := in_a_chat(tokenizer, bos, system)) is not None:
            yield way
            return


def _with_their_system(way: Speaking, tokenizer: Speaker, examples: Examples) -> Speaking:
    """Where most chats begin with the same system message, that belongs to how the model is talked to."""
    numbers = _spread(len(examples), LOOKED_AT)
    leads = Counter(_lead(examples[n], way, tokenizer) for n in numbers)
    lead, count = leads.most_common(1)[0]
    if not lead or lead == way.before or 2 * count <= len(numbers):
        return way
    return replace(way, before=lead, system=_system_in(lead, tokenizer))


def _lead(example: Example, way: Speaking, tokenizer: Speaker) -> str:
    """What stands before the first message of the user's."""
    ids = example.ids.tolist()[: _first_learned(example)]
    inside = tokenizer.decode([n for n in ids if n != way.bos]).rstrip().removesuffix(way.after.rstrip())
    before, turn, _ = inside.rpartition(way.turn) if way.turn else ("", "", inside)
    return before + turn


def _system_in(lead: str, tokenizer: Speaker) -> str:
    messages = [{"role": "system", "content": SIGN}, {"role": "user", "content": SIGN}]
    try:
        before, between, _ = tokenizer.chat_template.render(messages, (), opening=True).split(SIGN)
    except ValueError:
        return ""
    fits = lead.startswith(before) and lead.endswith(between)
    return lead[len(before) : len(lead) - len(between)] if fits else ""


def _turn(before: str, tokenizer: Speaker) -> str:
    """What is before every message of the user's: from the last special token on."""
    places = [before.rfind(special) for special in tokenizer.specials if special]
    return before[max([*places, 0]) :]


def _formats(
    settings: TrainingSettings, folders: Folders, tokenizer: Speaker, bos: int | None
) -> Iterator[Speaking]:
    asked, system = settings.rows.format, settings.rows.system
    if asked in ("auto", "chat", "text"):
        return
    try:
        shape = prompt_formats.format_shape(asked, (), folders, marks(tokenizer), system)
    except DataError:
        return
    if isinstance(shape, FormatShape):
        for template in _simplest(shape, system):
            before, sign, after = _around(template, system)
            if sign:
                yield Speaking("format", shape.name, before, after, before, bos, system)


def _simplest(shape: FormatShape, system: str) -> list[Template]:
    """With a reply; first the one with a system message if there is one, and with the fewest columns."""
    found = [template for template in shape.templates.values() if template.reply is not None]
    return sorted(found, key=lambda t: (("system" in t.columns) != bool(system), len(t.columns)))[:1]


def _around(template: Template, system: str) -> tuple[str, str, str]:
    columns = template.pieces[1::2]
    reply = columns[template.reply or 0]
    question = next((column for column in columns if column not in (reply, "system")), "")
    filled = template.filled({column: {question: SIGN, "system": system}.get(column, "") for column in columns})
    return filled.text[: filled.reply].partition(SIGN)

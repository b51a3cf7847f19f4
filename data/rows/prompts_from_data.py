"""Prompt style: the text around a message in the training examples, and sample prompts made from the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from ...core.errors import DataError
from ...core.host import Folders
from ...settings.definitions import TrainingSettings
from ...train_utils import spread_evenly
from ..examples import IGNORE_INDEX, Example, Examples
from . import prompt_formats
from .encoding import Tokenizer
from .row_dataset import bos_eos_texts

MESSAGE_PLACEHOLDER = "%message%"
PLACEHOLDER = "\ue0f00\ue0f1"  # private-use characters that no text has
HALF_CHARACTER = "\ufffd"  # what a tokenizer decodes from the first tokens of a character
EXAMPLES_INSPECTED = 24  # examples, evenly spread
PROMPT_COUNT = 3  # made from the data
TEXT_PROMPT_TOKENS = 24  # tokens of a text that a prompt takes
MAX_PROMPT_TOKENS = 512  # tokens of a prompt made from a row
MAX_EXAMPLE_CHARS = 4000


class Prompt(NamedTuple):
    """A prompt: the text that users see, and the ids that the model gets."""

    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class PromptStyle:
    """The text before and after a message; both are empty where the model continues a text."""

    kind: Literal["text", "chat", "format"] = "text"
    origin: str = ""
    before: str = ""
    after: str = ""
    turn: str = ""  # the end of `before` that begins every user message
    bos: int | None = None
    system: str = ""

    def prompt(self, message: str, tokenizer: Tokenizer) -> Prompt:
        """Write a message in the style of the training data."""
        # In a text, what looks like a special token was learned as text.
        encode = tokenizer.encode if self.kind == "text" else tokenizer.encode_marked
        ids = tuple(encode([f"{self.before}{message}{self.after}"])[0].ids.tolist())
        return Prompt(message, ids if self.bos is None or ids[:1] == (self.bos,) else (self.bos, *ids))

    def asked(self, text: str) -> str:
        """Extract the last user message from a prompt made from the data."""
        rest = text.rstrip().removesuffix(self.after.rstrip())
        return rest.rpartition(self.turn)[2].strip() if self.turn else rest

    def as_json(self, settings: TrainingSettings, example: str) -> dict[str, Any]:
        """Return the content of training_prompt.json: how to prompt the LoRA."""
        return {
            "kind": self.kind,
            "format": self.origin or "a text to continue",
            "template": f"{self.before}{MESSAGE_PLACEHOLDER}{self.after}",
            "before": self.before,
            "after": self.after,
            "system": self.system,
            "marker": settings.rows.train_only_after,
            "starts_with_bos": self.bos is not None,
            "example": example[:MAX_EXAMPLE_CHARS],
        }


def detect_prompt_style(
    settings: TrainingSettings, folders: Folders, tokenizer: Tokenizer, examples: Examples
) -> PromptStyle:
    """Detect how most of the examples are written: as a chat, in a prompt format, or as texts."""
    bos = tokenizer.bos if settings.text.add_bos else None
    texts = [tokenizer.decode(examples[n].ids.tolist()) for n in spread_evenly(len(examples), EXAMPLES_INSPECTED)]
    styles = [*_format_styles(settings, folders, tokenizer, bos)]
    # With the user's system message, or without one where the template refuses it.
    chats = (chat_prompt_style(tokenizer, bos, system) for system in (settings.rows.system, ""))
    styles += [style for style in chats if style is not None][:1]
    for style in styles:
        markers = [part for part in (style.after.strip(), style.turn.strip()) if part]
        if markers and 2 * sum(all(marker in text for marker in markers) for text in texts) > len(texts):
            return _with_common_system(style, tokenizer, examples) if style.kind == "chat" else style
    return PromptStyle(bos=bos)


def _format_styles(
    settings: TrainingSettings, folders: Folders, tokenizer: Tokenizer, bos: int | None
) -> Iterator[PromptStyle]:
    """Yield the style of the prompt format, if there is one: of its simplest template with a reply."""
    format_name, system = settings.rows.format, settings.rows.system
    if format_name in ("auto", "chat", "text"):
        return
    try:
        name, templates = prompt_formats.parse_format(format_name, folders, bos_eos_texts(tokenizer))
    except DataError:
        return
    # Simple: with the system message where one is set, and with the fewest columns.
    ranked = sorted(
        (template for template in templates.values() if template.reply is not None),
        key=lambda template: (("system" in template.columns) != bool(system), len(template.columns)),
    )
    for template in ranked[:1]:
        columns = template.pieces[1::2]
        reply = columns[template.reply or 0]
        question = next((column for column in columns if column not in (reply, "system")), "")
        texts = dict.fromkeys(columns, "") | {"system": system, question: PLACEHOLDER}
        filled = template.fill(texts)
        before, placeholder, after = filled.text[: filled.reply].partition(PLACEHOLDER)
        if placeholder:
            yield PromptStyle("format", name, before, after, before, bos, system)


def chat_prompt_style(tokenizer: Tokenizer, bos: int | None, system: str = "") -> PromptStyle | None:
    """Return the style of the chat template's first message; None where the template refuses it."""
    template = tokenizer.chat_template
    system_message = [{"role": "system", "content": system}] if system else []
    try:
        text = template.render([*system_message, {"role": "user", "content": PLACEHOLDER}], (), opening=True)
    except ValueError:
        return None
    before, placeholder, after = text.partition(PLACEHOLDER)
    if not placeholder:
        return None
    # Every user message begins with the text from the last special token on.
    turn = before[max([0, *(before.rfind(special) for special in tokenizer.specials if special)]) :]
    # A template of the tokenizer itself writes its BOS.
    return PromptStyle("chat", template.origin, before, after, turn, None if template.own else bos, system)


def _with_common_system(style: PromptStyle, tokenizer: Tokenizer, examples: Examples) -> PromptStyle:
    """Add the system message that most chats begin with."""
    numbers = spread_evenly(len(examples), EXAMPLES_INSPECTED)
    leads = Counter[str]()  # the texts before the first user message
    for number in numbers:
        ids = examples[number].ids.tolist()[: _first_learned(examples[number])]
        text = tokenizer.decode([n for n in ids if n != style.bos]).rstrip().removesuffix(style.after.rstrip())
        before, turn, _ = text.rpartition(style.turn) if style.turn else ("", "", text)
        leads[before + turn] += 1
    lead, count = leads.most_common(1)[0]
    if not lead or lead == style.before or 2 * count <= len(numbers):
        return style
    messages = [{"role": "system", "content": PLACEHOLDER}, {"role": "user", "content": PLACEHOLDER}]
    try:
        before, between, _ = tokenizer.chat_template.render(messages, (), opening=True).split(PLACEHOLDER)
    except ValueError:  # of the template, or of other than three parts
        return replace(style, before=lead, system="")
    fits = lead.startswith(before) and lead.endswith(between)
    return replace(style, before=lead, system=lead[len(before) : len(lead) - len(between)] if fits else "")


def make_prompts(
    requested: str | Sequence[str], style: PromptStyle, tokenizer: Tokenizer, examples: Examples
) -> list[Prompt]:
    """Make the sample prompts: the user's own, or for 'auto' beginnings of examples."""
    if not isinstance(requested, str):
        return [style.prompt(message, tokenizer) for message in requested]
    unique: dict[str, Prompt] = {}
    for start in spread_evenly(len(examples), PROMPT_COUNT):
        # Where an example makes no prompt of its own, one of those after it.
        for number in range(start, min(start + EXAMPLES_INSPECTED, len(examples))):
            prompt = _prompt_from(examples[number], style, tokenizer)
            if prompt is not None and prompt.text not in unique:
                unique[prompt.text] = prompt
                break
    return list(unique.values())


def _prompt_from(example: Example, style: PromptStyle, tokenizer: Tokenizer) -> Prompt | None:
    """Cut a prompt from an example: up to its first reply, or the first words of a text.

    None where it would be too long.
    """
    ids, end = example.ids.tolist(), _first_learned(example)
    is_text = end <= 1
    if is_text:
        end = _end_of_word(ids, min(TEXT_PROMPT_TOKENS, max(1, len(ids) // 2)), tokenizer)
    if end > MAX_PROMPT_TOKENS:
        return None
    decoded = tokenizer.decode([n for n in ids[:end] if n != style.bos])
    message = decoded if is_text else style.asked(decoded)
    return Prompt(message, tuple(ids[:end])) if message.strip() else None


def _end_of_word(ids: Sequence[int], end: int, tokenizer: Tokenizer) -> int:
    """The last place up to `end` where a word ends; where there is none, as in Chinese, where a character ends."""
    for place in range(end, end // 2, -1):
        before, after = tokenizer.decode(ids[:place]), tokenizer.decode(ids[: place + 1])
        is_inside_word = before[-1:].isalnum() and after[len(before) :][:1].isalnum()
        if not before.endswith(HALF_CHARACTER) and not is_inside_word:
            return place
    while end > 1 and tokenizer.decode(ids[:end]).endswith(HALF_CHARACTER):
        end -= 1
    return end


def _first_learned(example: Example) -> int:
    labels = example.labels.tolist()
    return next((n for n, label in enumerate(labels) if label != IGNORE_INDEX), len(labels))

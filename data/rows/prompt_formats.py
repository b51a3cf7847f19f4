"""How prompts are written: prompt formats, which are JSON files of templates, and the style of the examples.

A format's templates are found by the columns that each one needs. The style is the text around a message in the
training examples; with it sample prompts are made, and users are told how to prompt the LoRA.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ...core.errors import DataError
from ...core.files import read_small_file, safe_paths, usable_entries
from ...core.host import Folders
from ...settings.definitions import TrainingSettings
from ...train_utils import spread_evenly
from ..examples import IGNORE_INDEX, Example, Examples, RowSource
from ..readers import Row, find_pair, json_rows
from .chat_templates import common_prefix_length
from .encoding import Tokenizer
from .row_schema import BadRowError, FixedText, RowSchema

SHIPPED_FORMATS = Path(__file__).resolve().parent.parent.parent / "formats"
PLAIN_FORMATS = ("auto", "chat", "text")  # the values of Data format that are no prompt format
COLUMN_PLACEHOLDER = re.compile(r"%([^%\s][^%\n]*?)%")
REPLY_COLUMNS = ("output", "response", "answer", "completion", "generation", "reply", "assistant", "a")
QUESTION_COLUMN, ANSWER_COLUMN = "instruction", "output"
MESSAGE_PLACEHOLDER = "%message%"
PLACEHOLDER = "\ue0f00\ue0f1"  # private-use characters that no text has
HALF_CHARACTER = "\ufffd"  # what a tokenizer decodes from the first tokens of a character
EXAMPLES_INSPECTED = 24  # examples, evenly spread
PROMPT_COUNT = 3  # made from the data
TEXT_PROMPT_TOKENS = 24  # tokens of a text that a prompt takes
MAX_EXAMPLE_CHARS = 4000


@dataclass(frozen=True)
class FormatTemplate:
    """A text with %column% placeholders.

    `pieces` are texts and column names in turn; `reply` is the number of the last column that holds a reply.
    """

    pieces: tuple[str, ...]
    reply: int | None

    @property
    def columns(self) -> frozenset[str]:
        return frozenset(self.pieces[1::2])

    def fill(self, columns: Mapping[str, str]) -> FixedText:
        texts = [columns[piece] if number % 2 else piece for number, piece in enumerate(self.pieces)]
        if self.reply is None:
            return FixedText("".join(texts))
        before_reply = "".join(texts[: 2 * self.reply + 1])
        prompt_end = len("".join(texts[: 2 * self.reply]))
        # Most tokenizers make one token of a space and the word after it, so the reply begins before its spaces.
        return FixedText("".join(texts), len(before_reply.rstrip(" ")), prompt_end)


def load_format_schema(
    format_name: str, rows: Sequence[Row], folders: Folders, tokenizer: Tokenizer, system: str
) -> RowSchema:
    """Load the schema of a format; the columns of a row that have text decide on the template."""
    name, templates = parse_format(format_name, folders, tokenizer)
    # Columns are those of the format by their names in lower case, or else questions and answers.
    columns = {str(key).strip().lower(): str(key) for row in rows for key in row.columns}
    own = {column.strip().lower(): column for required in templates for column in required}
    synonyms: dict[str, str] = {}
    if any({column.strip().lower() for column in required} <= columns.keys() for required in templates):
        for name_in_row in dict.fromkeys(str(key) for row in rows for key in row.columns):
            if name_in_row not in own.values() and (key := name_in_row.strip().lower()) in own:
                synonyms[name_in_row] = own[key]
    elif pair := find_pair(columns):
        synonyms = {columns[pair[0]]: QUESTION_COLUMN, columns[pair[1]]: ANSWER_COLUMN}

    def read(row: Mapping[str, Any]) -> FixedText:
        named = {synonyms.get(str(key), str(key)): value for key, value in row.items()}
        filled = {key: value for key, value in named.items() if isinstance(value, str) and value.strip()}
        if system:
            filled.setdefault("system", system)
        for key, value in named.items():
            if key in own.values() and (number := json_rows.number_text(value)):
                filled[key] = number
        # The template with exactly these columns, otherwise the one that uses most of them.
        if frozenset(filled) in templates:
            return templates[frozenset(filled)].fill(filled)
        candidates = [columns for columns in templates if columns <= filled.keys()]
        if not candidates:
            existing = ", ".join(sorted(filled)) or "none"
            required = "; or ".join(", ".join(sorted(columns)) for columns in templates)
            raise BadRowError(f"has text in these columns: {existing}. {name} needs text in: {required}.")
        return templates[max(candidates, key=len)].fill(filled)

    has_replies = any(template.reply is not None for template in templates.values())
    takes_system = any("system" in columns for columns in templates)
    return RowSchema("format", f"{name}, which you chose under Data format", (), read, has_replies, takes_system)


def parse_format(
    format_name: str, folders: Folders, tokenizer: Tokenizer
) -> tuple[str, dict[frozenset[str], FormatTemplate]]:
    """The name of a format for users, and its templates by columns; instead of a name a template can be given."""
    opening, closing = (
        [*([] if token is None else [tokenizer.decode([token])]), mark]
        for token, mark in ((tokenizer.bos, "<s>"), (tokenizer.eos, "</s>"))
    )
    templates = {}
    for text in load_templates(format_name, folders).values():
        # BOS and EOS written as text are removed: every text gets them anyway.
        for mark in opening:
            text = text.removeprefix(mark)
        for mark in closing:
            if text.rstrip().endswith(mark):
                text = text.rstrip().removesuffix(mark).rstrip(" ")
        pieces = COLUMN_PLACEHOLDER.split(text)
        columns = pieces[1::2]
        replies = [n for n, column in enumerate(columns) if column.lower() in REPLY_COLUMNS]
        reply = replies[-1] if replies and len(set(columns)) > 1 else None
        templates[frozenset(columns)] = FormatTemplate(tuple(pieces), reply)
    return "the template" if COLUMN_PLACEHOLDER.search(format_name) else format_name, templates


def load_templates(format_name: str, folders: Folders) -> dict[str, str]:
    """Load the templates of a format by their columns; instead of a name a template can be given.

    The user's files take precedence over shipped ones.
    """
    if COLUMN_PLACEHOLDER.search(format_name):
        return {"": format_name}
    file = f"{format_name}.json"
    for folder in () if safe_paths.name_fault(file) else (folders.formats, SHIPPED_FORMATS):
        path = safe_paths.child(folder, file, "Data format", refusal=DataError)
        if not path.is_file():
            continue
        try:
            content = json.loads(read_small_file(path))
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"Data format: {path.name} can't be read ({error}). It must be JSON.") from error
        templates = content.values() if isinstance(content, dict) else ()
        if not templates or not all(isinstance(v, str) and COLUMN_PLACEHOLDER.search(v) for v in templates):
            raise DataError(
                f"Data format: {path.name} must map column names to templates, such as "
                '{"instruction,output": "%instruction%\\n%output%"}.'
            )
        return dict(content)
    paths = (path for folder in (SHIPPED_FORMATS, folders.formats) for path in usable_entries(folder))
    available = ", ".join(sorted({path.stem for path in paths if path.suffix == ".json"}, key=str.lower))
    raise DataError(
        f"Data format: there is no format named {format_name!r}. Available: auto, chat, text, {available}."
    )


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
    lead: str = ""
    """What the template writes between `after` and a reply, such as an empty thought; asked with it."""

    def prompt(self, message: str, tokenizer: Tokenizer) -> Prompt:
        """Write a message in the style of the training data."""
        # In a text, what looks like a special token was learned as text.
        encode = tokenizer.encode if self.kind == "text" else tokenizer.encode_marked
        ids = tuple(encode([f"{self.before}{message}{self.after}{self.lead}"])[0].ids.tolist())
        return Prompt(message, ids if self.bos is None or ids[:1] == (self.bos,) else (self.bos, *ids))

    def asked(self, text: str) -> str:
        """Extract the last user message from a prompt made from the data."""
        rest = self.without_opening(text)
        return rest.rpartition(self.turn)[2].strip() if self.turn else rest

    def without_opening(self, text: str) -> str:
        """A prompt made from the data up to the end of its last message."""
        opened = text.rstrip().removesuffix(f"{self.after}{self.lead}".rstrip())
        return opened.removesuffix(self.after.rstrip())

    def as_json(self, settings: TrainingSettings, example: str, message: str) -> dict[str, Any]:
        """Return the content of training_prompt.json: how to prompt the LoRA."""
        return {
            "kind": self.kind,
            "format": self.origin or "a text to continue",
            "template": f"{self.before}{MESSAGE_PLACEHOLDER}{self.after}{self.lead}",
            "before": self.before,
            "after": f"{self.after}{self.lead}",
            "system": self.system,
            "marker": settings.rows.train_only_after,
            "starts_with_bos": self.bos is not None,
            "example": example[:MAX_EXAMPLE_CHARS],
            "message": message[:MAX_EXAMPLE_CHARS],
        }


def detect_prompt_style(
    settings: TrainingSettings, folders: Folders, tokenizer: Tokenizer, examples: Examples
) -> PromptStyle:
    """Detect how most of the examples are written: as a chat, in a prompt format, or as texts."""
    bos, system = tokenizer.bos if settings.text.add_bos else None, settings.rows.system
    name, templates = "", dict[frozenset[str], FormatTemplate]()
    if settings.rows.format not in PLAIN_FORMATS:
        with suppress(DataError):
            name, templates = parse_format(settings.rows.format, folders, tokenizer)
    # The simplest template of the prompt format: with the system message where one is set, and the fewest columns.
    ranked = sorted(
        (template for template in templates.values() if template.reply is not None),
        key=lambda template: (("system" in template.columns) != bool(system), len(template.columns)),
    )
    for template in ranked[:1]:
        columns = template.pieces[1::2]
        reply = columns[template.reply or 0]
        question = next((column for column in columns if column not in (reply, "system")), "")
        filled = template.fill(dict.fromkeys(columns, "") | {"system": system, question: PLACEHOLDER})
        before, placeholder, after = filled.text[: filled.reply].partition(PLACEHOLDER)
        of_rows = sum(isinstance(examples.sources[n], RowSource) for n in examples.source_numbers())
        if placeholder and 2 * of_rows > len(examples):  # a chosen format is that of all rows
            own = system if "system" in columns else ""
            return PromptStyle("format", name, before, after, before, bos, own)
    # With the user's system message, or without one where the template refuses it.
    style = chat_prompt_style(tokenizer, bos, system) or chat_prompt_style(tokenizer, bos)
    texts = [tokenizer.decode(examples[n].ids.tolist()) for n in spread_evenly(len(examples), EXAMPLES_INSPECTED)]
    markers = [part for part in (style.after.strip(), style.turn.strip()) if part] if style else []
    # The style of more than half of the examples.
    if style and markers and 2 * sum(all(marker in text for marker in markers) for text in texts) > len(texts):
        if 2 * sum(f"{style.after}{style.lead}" in text for text in texts) <= len(texts):
            style = replace(style, lead="")  # most replies have thoughts of their own
        return _with_common_system(style, tokenizer, examples)
    return PromptStyle(bos=bos)


def chat_prompt_style(tokenizer: Tokenizer, bos: int | None, system: str = "") -> PromptStyle | None:
    """Return the style of the chat template's first message; None where the template refuses it."""
    template, lead = tokenizer.chat_template, ""
    system_message = [{"role": "system", "content": system}] if system else []
    asked = [*system_message, {"role": "user", "content": PLACEHOLDER}]
    try:
        text = template.render(asked, (), opening=True)
    except ValueError:
        return None
    with suppress(ValueError):
        whole = template.render([*asked, {"role": "assistant", "content": PLACEHOLDER}], (), opening=False)
        shared = text[: common_prefix_length(text, whole)].removesuffix("<")
        if PLACEHOLDER in shared:  # where a template begins a thought that its replies don't have
            text = shared
        has_prompt = text != template.render(asked, (), opening=False) and whole.startswith(text)
        lead = whole.removeprefix(text).partition(PLACEHOLDER)[0] if has_prompt else ""
    before, placeholder, after = text.partition(PLACEHOLDER)
    if not placeholder:
        return None
    # Every user message begins with the text from the last special token on.
    turn = before[max([0, *(before.rfind(special) for special in tokenizer.specials if special)]) :]
    # A template of the tokenizer itself writes its BOS.
    return PromptStyle(
        "chat",
        template.origin,
        before,
        after,
        turn,
        None if template.own else bos,
        system,
        lead if lead.strip() else "",
    )


def reply_lead(tokenizer: Tokenizer) -> list[int]:
    """What the template begins each reply with, such as an empty thought; usually nothing."""
    style = chat_prompt_style(tokenizer, None)
    if style is None or not style.lead:
        return []
    opening = f"{style.before}{style.after}"
    encoded = tokenizer.encode_marked([opening + style.lead])[0]  # a token may begin before it, as in a row
    lead: list[int] = encoded.ids[encoded.starts >= len(opening)].tolist()
    return lead


def _with_common_system(style: PromptStyle, tokenizer: Tokenizer, examples: Examples) -> PromptStyle:
    """Add the system message that most chats begin with."""
    numbers = spread_evenly(len(examples), EXAMPLES_INSPECTED)
    leads = Counter[str]()  # the texts before the first user message
    for number in numbers:
        ids = examples[number].ids.tolist()[: _first_learned(examples[number])]
        text = style.without_opening(tokenizer.decode([n for n in ids if n != style.bos]))
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
    system = lead[len(before) : len(lead) - len(between)] if fits else ""
    # A greeting may follow it, as the reply to nothing.
    ends = [place for special in tokenizer.specials if special and (place := system.find(special)) >= 0]
    return replace(style, before=lead, system=system[: min(ends, default=None)].rstrip())


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
            # Up to its first reply, or the first words of a text.
            ids, end = examples[number].ids.tolist(), _first_learned(examples[number])
            is_text = end <= 1
            if is_text:
                # Where a word ends; where there is none, as in Chinese, where a character ends.
                end = min(TEXT_PROMPT_TOKENS, max(1, len(ids) // 2))
                for place in range(end, end // 2, -1):
                    before, after = tokenizer.decode(ids[:place]), tokenizer.decode(ids[: place + 1])
                    is_inside_word = before[-1:].isalnum() and after[len(before) :][:1].isalnum()
                    if not before.endswith(HALF_CHARACTER) and not is_inside_word:
                        end = place
                        break
                while end > 1 and tokenizer.decode(ids[:end]).endswith(HALF_CHARACTER):
                    end -= 1
            decoded = tokenizer.decode([n for n in ids[:end] if n != style.bos])
            message = decoded if is_text else style.asked(decoded)
            if message.strip() and message not in unique:
                is_led = is_text or decoded.endswith(style.lead)
                lead = [] if is_led else tokenizer.encode_marked([style.lead])[0].ids.tolist()
                unique[message] = Prompt(message, (*ids[:end], *lead))
                break
    return list(unique.values())


def _first_learned(example: Example) -> int:
    labels = example.labels.tolist()
    return next((n for n, label in enumerate(labels) if label != IGNORE_INDEX), len(labels))

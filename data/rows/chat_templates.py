"""Rendering of chats with a chat template, and the position of each message in the text.

Once for each order of roles, the template renders placeholders instead of contents: the layout is the text
between the messages. The contents put into the layout must give the same text as the template itself. Where they
do not (templates that look at the contents), each content is replaced in turn, and its position is where the
text changes.

    layout    <|im_start|>user\\n  0  <|im_end|>\\n<|im_start|>assistant\\n  1  <|im_end|>\\n
    learned                                                              |---------------|   a reply and its stop
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from .row_schema import BadRowError, Chat, Message

PLACEHOLDER_PATTERN = re.compile("\ue0f0(\\d+)\ue0f1")
PLACEHOLDER = "\ue0f0\ue0f1"
PLAIN_FIELDS = {"role", "content"}
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class ChatTemplate(Protocol):
    """A chat template; `render` raises ValueError where it refuses a chat."""

    @property
    def origin(self) -> str:
        """Where the template is from, in words."""
        ...

    @property
    def own(self) -> bool:
        """Whether it is the tokenizer's own template, which then also writes BOS and EOS."""
        ...

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], *, opening: bool) -> str:
        """Render a chat; `opening` is add_generation_prompt."""
        ...


class Turn(NamedTuple):
    """The part of the text that a message takes, from `start` up to `end`: what would be learned of it."""

    start: int
    end: int
    reply: bool
    learned: bool | None


class RenderedText(NamedTuple):
    """A rendered chat, and the positions of its messages."""

    text: str
    turns: tuple[Turn, ...]


class MessageAffixes(NamedTuple):
    """Characters around the content that belong to a message: the spaces before it, and its stop token."""

    lead: int
    tail: int


@dataclass(frozen=True)
class TemplateLayout:
    """The fixed texts that a template writes around the messages, and the order of the messages between them."""

    pieces: tuple[str, ...]
    order: tuple[int, ...]
    around: tuple[MessageAffixes, ...]

    def fill(self, messages: Sequence[Message], contents: Sequence[str]) -> RenderedText:
        texts, turns, position = [self.pieces[0]], [], len(self.pieces[0])
        for piece, number in zip(self.pieces[1:], self.order, strict=True):
            end = position + len(contents[number])
            lead, tail = self.around[number]
            message = messages[number]
            turns.append(Turn(position - lead, end + tail, message.role == "assistant", message.learned))
            texts += (contents[number], piece)
            position = end + len(piece)
        return RenderedText("".join(texts), tuple(turns))


@dataclass
class ChatRenderer:
    """Renders chats with one template; keeps a layout for each order of roles."""

    template: ChatTemplate
    specials: Collection[str]  # texts of special tokens; each may be a stop token
    layouts: dict[tuple[str, ...], TemplateLayout | None] = field(default_factory=dict)
    merged_systems: int = 0

    def __call__(self, chat: Chat, *, places: bool = True) -> RenderedText:
        """Render a chat; `places`: with the positions of its messages."""
        try:
            return self._render(chat, places=places)
        except ValueError as error:
            if isinstance(error, BadRowError):
                raise
            merged_chat = _merge_system_message(chat)
            if merged_chat is None:
                raise BadRowError(f"is rejected by {self.template.origin}: {error}") from error
        try:
            rendered = self._render(merged_chat, places=places)
        except BadRowError:
            raise
        except ValueError as error:
            raise BadRowError(f"is rejected by {self.template.origin}: {error}") from error
        self.merged_systems += 1
        return rendered

    def _render(self, chat: Chat, *, places: bool) -> RenderedText:
        fields = [m.fields for m in chat.messages]
        text = self.template.render(fields, chat.tools, opening=False)
        if not places:
            return RenderedText(text, ())
        return self._from_layout(chat, text) or RenderedText(text, tuple(self._find_turns(chat, text)))

    def _from_layout(self, chat: Chat, text: str) -> RenderedText | None:
        if chat.tools or any(m.fields.keys() != PLAIN_FIELDS for m in chat.messages):
            return None
        roles = tuple(m.role for m in chat.messages)
        if roles not in self.layouts:
            self.layouts[roles] = self._build_layout(roles)
        layout = self.layouts[roles]
        contents = [m.content for m in chat.messages]
        for variant in (contents, [c.strip() for c in contents]):
            if layout and (rendered := layout.fill(chat.messages, variant)).text == text:
                return rendered
        return None

    def _build_layout(self, roles: tuple[str, ...]) -> TemplateLayout | None:
        """Build the layout of an order of roles; None if a message is not written exactly once."""
        messages = [{"role": role, "content": f"\ue0f0{n}\ue0f1"} for n, role in enumerate(roles)]
        text = self.template.render(messages, (), opening=False)
        pieces, order = (
            PLACEHOLDER_PATTERN.split(text)[::2],
            tuple(int(n) for n in PLACEHOLDER_PATTERN.findall(text)),
        )
        if sorted(order) != list(range(len(roles))):
            return None
        tails = self._tails(pieces[1:], order, roles)
        leads = [self._lead(messages, number, text) for number in range(len(roles))]
        return TemplateLayout(tuple(pieces), order, tuple(map(MessageAffixes, leads, tails)))

    def _lead(self, messages: Sequence[Mapping[str, Any]], number: int, text: str) -> int:
        """Count the spaces between the generation prompt and a reply."""
        if messages[number]["role"] != "assistant":
            return 0
        try:
            opening = self.template.render(messages[:number], (), opening=True)
        except ValueError:
            return 0
        gap = text[len(opening) : text.index(str(messages[number]["content"]))]
        return len(gap) if text.startswith(opening) and not gap.strip() else 0

    def _tails(self, pieces: Sequence[str], order: Sequence[int], roles: Sequence[str]) -> list[int]:
        """For each message count the characters after it that are its stop token."""
        text_after = dict(zip(order, pieces, strict=True))
        last_text = next((text_after[n] for n in reversed(order) if roles[n] == "assistant"), "")
        return [
            self._tail(text_after[number], last_text) if roles[number] == "assistant" else 0
            for number in range(len(roles))
        ]

    def _tail(self, text: str, last_text: str) -> int:
        """Count the characters that end a reply.

        Up to the end of a special token, if only spaces come before it; otherwise the text that all replies end
        with.
        """
        stripped = text.lstrip()
        stop = max((s for s in self.specials if s and stripped.startswith(s)), key=len, default="")
        if stop:
            return len(text) - len(stripped) + len(stop)
        return len(last_text[: _common_prefix_length(text, last_text)].rstrip())

    def _find_turns(self, chat: Chat, text: str) -> list[Turn]:
        """Find the messages by replacing each content and comparing the texts."""
        numbers = [n for n, m in enumerate(chat.messages) if m.role == "assistant" or m.learned is not None]
        spans = {n: self._locate_content(chat, n, text) for n in numbers}
        last_text = text[spans[numbers[-1]][1] :] if numbers else ""
        return [self._turn(chat.messages[n], text, *spans[n], last_text) for n in numbers]

    def _turn(self, message: Message, text: str, start: int, end: int, last_text: str) -> Turn:
        is_reply = message.role == "assistant"
        tail = self._tail(text[end:], last_text) if is_reply else 0
        return Turn(start, end + tail, is_reply, message.learned)

    def _locate_content(self, chat: Chat, number: int, text: str) -> tuple[int, int]:
        """Return where the content of a message begins and ends; a reply begins at the generation prompt's end."""
        fields = [dict(m.fields) for m in chat.messages]
        opening = self._opening(fields[:number], chat.tools)
        if fields[number].get("tool_calls"):
            return self._locate_tool_calls(fields[: number + 1], chat.tools, text, opening)
        fields[number]["content"] = PLACEHOLDER
        changed = self.template.render(fields, chat.tools, opening=False)
        start = _common_prefix_length(text, changed)
        end = len(text) - _common_prefix_length(text[start:][::-1], changed[start:][::-1])
        begins_at_opening = chat.messages[number].role == "assistant" and opening and text.startswith(opening)
        return (min(start, len(opening)) if begins_at_opening else start), max(start, end)

    def _opening(self, before: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> str:
        try:
            return self.template.render(before, tools, opening=True) if before else ""
        except ValueError:
            return ""

    def _locate_tool_calls(
        self, fields: Sequence[Mapping[str, Any]], tools: Sequence[Any], text: str, opening: str
    ) -> tuple[int, int]:
        """Return the span of a tool call: from the generation prompt's end to the end of the chat cut after it."""
        whole = self.template.render(fields, tools, opening=False).rstrip()
        if not text.startswith(whole) or not text.startswith(opening):
            raise BadRowError(f"can't be separated into messages after formatting with {self.template.origin}.")
        return len(opening), len(whole)


def default_system_message(template: ChatTemplate) -> str:
    """Return the system message that a template writes by itself where a chat has none; may be empty."""
    user = {"role": "user", "content": _QUESTION}
    try:
        with_system = template.render([{"role": "system", "content": _SYSTEM}, user], (), opening=False)
        without_system = template.render([user], (), opening=False).partition(_QUESTION)[0]
    except ValueError:  # a template that refuses a system message has no default
        return ""
    before, _, rest = with_system.partition(_SYSTEM)
    after = rest.partition(_QUESTION)[0]
    if not rest or not without_system.startswith(before) or not without_system.endswith(after):
        return ""
    return without_system[len(before) : len(without_system) - len(after)].strip()


_SYSTEM, _QUESTION = "what the system says", "what is asked"


def _common_prefix_length(first: str, second: str) -> int:
    """Count the characters that two texts have in common at their beginnings."""
    shorter = min(len(first), len(second))
    return next((n for n in range(shorter) if first[n] != second[n]), shorter)


def _merge_system_message(chat: Chat) -> Chat | None:
    """Put the system message before the first question, for templates without a system role."""
    messages = chat.messages
    if len(messages) < 2 or messages[0].role != "system" or messages[1].role != "user":
        return None
    content = f"{messages[0].content}\n\n{messages[1].content}"
    merged = Message({**messages[1].fields, "content": content}, messages[1].learned)
    return Chat((merged, *messages[2:]), chat.tools)

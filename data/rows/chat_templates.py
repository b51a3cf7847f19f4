"""Rendering of chats with a chat template, and the position of each message in the text.

Once for each order of roles, the template renders placeholders instead of contents: the layout is the text
between the messages. The contents put into the layout must give the same text as the template itself. Where they
do not (templates that look at the contents), each content is replaced in turn, and its position is where the
text changes.

    layout    <|im_start|>user\\n  0  <|im_end|>\\n<|im_start|>assistant\\n  1  <|im_end|>\\n
    learned                                                              |---------------|   a reply and its stop
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from .row_schema import BadRowError, Chat, Message

# Private-use characters, which no text has and which no template looks at.
PLACEHOLDER_PATTERN = re.compile("\ue0f0(\\d+)\ue0f1")
PLACEHOLDER = "\ue0f0\ue0f1"
PLAIN_FIELDS = {"role", "content"}
SYSTEM, QUESTION = "what the system says", "what is asked"
# For a model without a template: that of Qwen and many others, with its two special tokens as text.
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class ChatTemplate(Protocol):
    """A chat template. `origin` says in words where it is from; `own`: it also writes BOS and EOS."""

    @property
    def origin(self) -> str: ...
    @property
    def own(self) -> bool: ...
    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], *, opening: bool) -> str:
        """Render a chat, with add_generation_prompt if `opening`; raises ValueError where it refuses the chat."""
        ...


class Turn(NamedTuple):
    """The part of the text that a message takes, from `start` up to `end`: what would be learned of it."""

    start: int
    end: int
    reply: bool
    learned: bool | None


class TemplateLayout(NamedTuple):
    """The fixed texts that a template writes around the messages, and the order of the messages between them.

    `around` counts the characters of these texts that belong to each message: what a reply begins with, its stop.
    """

    pieces: list[str]
    order: list[int]
    around: list[tuple[int, int]]

    def fill(self, messages: Sequence[Message], contents: Sequence[str]) -> tuple[str, list[Turn]]:
        texts, turns, position = [self.pieces[0]], [], len(self.pieces[0])
        for piece, number in zip(self.pieces[1:], self.order, strict=True):
            message, end = messages[number], position + len(contents[number])
            lead, tail = self.around[number]
            turns.append(Turn(position - lead, end + tail, message.role == "assistant", message.learned))
            texts += (contents[number], piece)
            position = end + len(piece)
        return "".join(texts), turns


@dataclass
class ChatRenderer:
    """Renders chats with one template; keeps a layout for each order of roles."""

    template: ChatTemplate
    specials: Collection[str]  # texts of special tokens; each may be a stop token
    layouts: dict[tuple[str, ...], TemplateLayout | None] = field(default_factory=dict)
    merged_systems: int = 0

    def __call__(self, chat: Chat, *, places: bool = True) -> tuple[str, Sequence[Turn]]:
        """Render a chat; `places`: with the positions of its messages."""
        variants, messages = [chat], chat.messages
        roles = [message.role for message in messages]
        after = roles.index("assistant") + 1 if "assistant" in roles else 0
        if "user" not in roles[:after] and after and messages[after - 1].learned is False:
            # Templates whose chats begin with the user, such as Mistral's: a greeting joins the system message.
            greeting = "\n\n".join(message.content for message in messages[:after])
            messages = (Message({"role": "system", "content": greeting}), *messages[after:])
            variants.append(Chat(messages, chat.tools))
        if len(messages) > 1 and (messages[0].role, messages[1].role) == ("system", "user"):
            # Templates without a system role, such as Gemma's: its message goes before the first question.
            content = f"{messages[0].content}\n\n{messages[1].content}"
            merged = Message({**messages[1].fields, "content": content}, messages[1].learned)
            variants.append(Chat((merged, *messages[2:]), chat.tools))
        if any("tool_calls" in message.fields for message in messages):
            # Most templates write arguments as an object. Those that want text, such as DeepSeek's, refuse it.
            objects = ([m._replace(fields=_parse_arguments(m.fields)) for m in each.messages] for each in variants)
            variants = [*(Chat(tuple(each), chat.tools) for each in objects), *variants]
        reason: ValueError | None = None
        for variant in variants:
            try:
                rendered = self._render(variant, places=places)
            except BadRowError:
                raise
            except ValueError as error:
                reason = error
                continue
            self.merged_systems += (roles[0], variant.messages[0].role) == ("system", "user")
            return rendered
        raise BadRowError(f"is rejected by {self.template.origin}: {reason}") from reason

    def divisions(self, chat: Chat, text: str, turns: Sequence[Turn]) -> tuple[int, ...]:
        """Where a long text is divided: where the beginning that every part gets ends, and where exchanges begin.

        Empty for a chat of one exchange, and where a template writes the rest of a chat in another way than alone.
        """
        questions = chat.later_questions
        if not questions:
            return ()
        replies = [number for number, message in enumerate(chat.messages) if message.role == "assistant"]
        # From the end, because a greeting may be part of the system message.
        ends = dict(zip(replies[::-1], [turn.end for turn in turns if turn.reply][::-1], strict=False))
        starts = [
            next((n for n in range(ends[number - 1], len(text)) if not text[n].isspace()), len(text))
            for number in questions
        ]
        try:
            rest, _ = ChatRenderer(self.template, self.specials)(chat.part(questions[0]), places=False)
        except BadRowError:
            return ()
        rest, text = rest.rstrip(), text.rstrip()
        same = len(text) - common_prefix_length(rest[::-1], text[::-1])  # from here on, both are the same
        # Where the system message is a part of the first question, it takes the place of a question's header.
        header = max(same - starts[0], 0)
        beginning = rest[: len(rest) - len(text) + starts[0] + header]
        asked = text.find(chat.messages[questions[0]].content.strip(), starts[0])
        if same > asked or not text.startswith(beginning):
            return ()
        return len(beginning), *(start + header for start in starts)

    def _render(self, chat: Chat, *, places: bool) -> tuple[str, Sequence[Turn]]:
        messages, fields = chat.messages, [message.fields for message in chat.messages]
        text = self.template.render(fields, chat.tools, opening=False)
        if not places:
            return text, ()
        if not chat.tools and all(each.keys() == PLAIN_FIELDS for each in fields):
            roles = tuple(message.role for message in messages)
            if roles not in self.layouts:
                self.layouts[roles] = self._build_layout(roles)
            layout = self.layouts[roles]
            contents = [message.content for message in messages]
            # Many templates strip the contents.
            for variant in (contents, [content.strip() for content in contents]):
                if layout and (rendered := layout.fill(messages, variant))[0] == text:
                    return rendered
        # Otherwise each content is replaced, and the texts are compared.
        numbers = [n for n, m in enumerate(messages) if m.role == "assistant" or m.learned is not None]
        spans = {number: self._locate_content(chat, number, text) for number in numbers}
        last_text = text[spans[numbers[-1]][1] :] if numbers else ""
        turns = []
        for number, (start, end) in spans.items():
            is_reply = messages[number].role == "assistant"
            tail = self._tail(text[end:], last_text) if is_reply else 0
            turns.append(Turn(start, end + tail, is_reply, messages[number].learned))
        return text, turns

    def _build_layout(self, roles: tuple[str, ...]) -> TemplateLayout | None:
        """Build the layout of an order of roles; None if a message is not written exactly once."""
        messages = [{"role": role, "content": f"\ue0f0{n}\ue0f1"} for n, role in enumerate(roles)]
        text = self.template.render(messages, (), opening=False)
        pieces = PLACEHOLDER_PATTERN.split(text)[::2]
        order = [int(number) for number in PLACEHOLDER_PATTERN.findall(text)]
        if sorted(order) != list(range(len(roles))):
            return None
        text_after = dict(zip(order, pieces[1:], strict=True))
        last_text = next((text_after[n] for n in reversed(order) if roles[n] == "assistant"), "")
        around = [(0, 0)] * len(roles)
        for number, role in enumerate(roles):
            if role != "assistant":
                continue
            start = text.index(messages[number]["content"])
            lead = start - self._learned_from(messages[:number], (), text, start)
            around[number] = lead, self._tail(text_after[number], last_text)
        return TemplateLayout(pieces, order, around)

    def _learned_from(
        self, before: Sequence[Mapping[str, Any]], tools: Sequence[Any], text: str, start: int
    ) -> int:
        """Where a reply with content from `start` on begins for the model: after the generation prompt.

        What a template writes between them the model has to write: spaces, an empty thought, a channel's name.
        """
        try:
            opening = self.template.render(before, tools, opening=True)
            has_prompt = opening != self.template.render(before, tools, opening=False)
        except ValueError:  # a template may refuse a chat that ends here
            return start
        is_written = has_prompt or not text[len(opening) : start].strip()
        return min(start, len(opening)) if is_written and text.startswith(opening) else start

    def _tail(self, text: str, last_text: str) -> int:
        """Count the characters that end a reply.

        Up to the end of a special token, if only spaces come before it; otherwise the text that all replies end
        with.
        """
        stripped = text.lstrip()
        stop = max((s for s in self.specials if s and stripped.startswith(s)), key=len, default="")
        if stop:
            return len(text) - len(stripped) + len(stop)
        return len(last_text[: common_prefix_length(text, last_text)].rstrip())

    def _locate_content(self, chat: Chat, number: int, text: str) -> tuple[int, int]:
        """Return where the content of a message begins and ends; a reply begins at the generation prompt's end."""
        fields = [dict(message.fields) for message in chat.messages]
        whole = fields[: number + 1]
        fields[number] = {**fields[number], "content": PLACEHOLDER}
        called = fields[number].pop("tool_calls", None)  # written where the content is, or after it
        try:
            changed = self.template.render(fields, chat.tools, opening=False)
            start = common_prefix_length(text, changed)
            end = len(text) - common_prefix_length(text[start:][::-1], changed[start:][::-1])
        except ValueError:  # Mistral's refuses a tool's result without its call: the chat is cut after the call
            cut = self.template.render(whole, chat.tools, opening=False).rstrip()
            if not called or not text.startswith(cut):
                raise
            opening = self.template.render(whole[:-1], chat.tools, opening=True)
            if not text.startswith(opening):
                raise
            stop = max((s for s in self.specials if s and cut.endswith(s)), key=len, default="")
            return len(opening), len(cut) - len(stop)
        if chat.messages[number].role == "assistant":
            start = self._learned_from(whole[:-1], chat.tools, text, start)
        return start, end


def default_system_message(template: ChatTemplate) -> str:
    """Return the system message that a template writes by itself where a chat has none; may be empty."""
    user = {"role": "user", "content": QUESTION}
    try:
        with_system = template.render([{"role": "system", "content": SYSTEM}, user], (), opening=False)
        without_system = template.render([user], (), opening=False).partition(QUESTION)[0]
    except ValueError:  # a template that refuses a system message has no default
        return ""
    before, _, rest = with_system.partition(SYSTEM)
    after = rest.partition(QUESTION)[0]
    if not rest or not without_system.startswith(before) or not without_system.endswith(after):
        return ""
    return without_system[len(before) : len(without_system) - len(after)].strip()


def _parse_arguments(value: Any, key: str = "") -> Any:
    """The fields of a message; the arguments of tool calls, which OpenAI has as JSON in a string, are objects."""
    if isinstance(value, Mapping):
        return {name: _parse_arguments(each, name) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_parse_arguments(each) for each in value]
    with suppress(ValueError):
        return json.loads(value) if key == "arguments" and str(value).lstrip().startswith("{") else value
    return value


def common_prefix_length(first: str, second: str) -> int:
    """Count the characters that two texts have in common at their beginnings."""
    shorter = min(len(first), len(second))
    return next((n for n in range(shorter) if first[n] != second[n]), shorter)

"""Chats to text through a chat template, and where each message then stands.

Once for each order of roles, the template is filled with signs in place of the contents: the skeleton says what
stands between the messages. A chat's own text, with the skeleton around it, must come out as the template itself
writes it; where it does not (templates that look at the contents), each content is changed in turn, and what
changes in the text with it is its place.

    skeleton   <|im_start|>user\\n  0  <|im_end|>\\n<|im_start|>assistant\\n  1  <|im_end|>\\n
    learned                                                               |---------------|   a reply and its stop
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from .row_schema import BadRowError, Chat, Message

SIGN = re.compile("\ue0f0(\\d+)\ue0f1")
SIGN_ALONE = "\ue0f0\ue0f1"
PLAIN_FIELDS = {"role", "content"}
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class ChatTemplate(Protocol):
    """What writes a chat out; a ValueError says why it will not."""

    @property
    def origin(self) -> str:
        """Whose it is, in words."""
        ...

    @property
    def own(self) -> bool:
        """Whether it is the tokenizer's own, which then also knows about BOS and EOS."""
        ...

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], *, opening: bool) -> str:
        """`opening` adds what stands before a reply."""
        ...


class Turn(NamedTuple):
    """A message in the text: what of it would be learned, from `start` up to `end`."""

    start: int
    end: int
    reply: bool
    learned: bool | None


class Rendered(NamedTuple):
    """A chat as text."""

    text: str
    turns: tuple[Turn, ...]


class Around(NamedTuple):
    """What belongs to a message beside its content: spaces that lead to it, and its stop token."""

    lead: int
    tail: int


@dataclass(frozen=True)
class Skeleton:
    """The text of a template around contents: fixed pieces, and between them the messages in their order there."""

    pieces: tuple[str, ...]
    order: tuple[int, ...]
    around: tuple[Around, ...]

    def filled(self, messages: Sequence[Message], contents: Sequence[str]) -> Rendered:
        parts, turns, at = [self.pieces[0]], [], len(self.pieces[0])
        for piece, number in zip(self.pieces[1:], self.order, strict=True):
            end = at + len(contents[number])
            lead, tail = self.around[number]
            message = messages[number]
            turns.append(Turn(at - lead, end + tail, message.role == "assistant", message.learned))
            parts += (contents[number], piece)
            at = end + len(piece)
        return Rendered("".join(parts), tuple(turns))


@dataclass
class Renderer:
    """A chat template with what has been found out about it."""

    template: ChatTemplate
    specials: Collection[str]  # texts of special tokens, any of which may be a stop
    skeletons: dict[tuple[str, ...], Skeleton | None] = field(default_factory=dict)
    merged_systems: int = 0

    def __call__(self, chat: Chat, *, places: bool = True) -> Rendered:
        """The chat as text, with its turns where they are wanted."""
        try:
            return self._rendered(chat, places=places)
        except ValueError as error:
            if isinstance(error, BadRowError):
                raise
            merged = _merged_system(chat)
            if merged is None:
                raise BadRowError(f"is refused by {self.template.origin}: {error}") from error
        try:
            found = self._rendered(merged, places=places)
        except BadRowError:
            raise
        except ValueError as error:
            raise BadRowError(f"is refused by {self.template.origin}: {error}") from error
        self.merged_systems += 1
        return found

    def _rendered(self, chat: Chat, *, places: bool) -> Rendered:
        fields = [m.fields for m in chat.messages]
        text = self.template.render(fields, chat.tools, opening=False)
        if not places:
            return Rendered(text, ())
        return self._by_skeleton(chat, text) or Rendered(text, tuple(self._by_differences(chat, text)))

    def _by_skeleton(self, chat: Chat, text: str) -> Rendered | None:
        if chat.tools or any(m.fields.keys() != PLAIN_FIELDS for m in chat.messages):
            return None
        roles = tuple(m.role for m in chat.messages)
        if roles not in self.skeletons:
            self.skeletons[roles] = self._skeleton(roles)
        skeleton = self.skeletons[roles]
        contents = [m.content for m in chat.messages]
        for filling in (contents, [c.strip() for c in contents]):
            if skeleton and (found := skeleton.filled(chat.messages, filling)).text == text:
                return found
        return None

    def _skeleton(self, roles: tuple[str, ...]) -> Skeleton | None:
        """The skeleton of an order of roles; None where the template does not write each message once."""
        messages = [{"role": role, "content": f"\ue0f0{n}\ue0f1"} for n, role in enumerate(roles)]
        text = self.template.render(messages, (), opening=False)
        pieces, order = SIGN.split(text)[::2], tuple(int(n) for n in SIGN.findall(text))
        if sorted(order) != list(range(len(roles))):
            return None
        tails = self._tails(pieces[1:], order, roles)
        leads = [self._lead(messages, number, text) for number in range(len(roles))]
        return Skeleton(tuple(pieces), order, tuple(map(Around, leads, tails)))

    def _lead(self, messages: Sequence[Mapping[str, Any]], number: int, text: str) -> int:
        """The spaces between what stands before a reply when the model is asked for one, and the reply."""
        if messages[number]["role"] != "assistant":
            return 0
        try:
            opening = self.template.render(messages[:number], (), opening=True)
        except ValueError:
            return 0
        gap = text[len(opening) : text.index(str(messages[number]["content"]))]
        return len(gap) if text.startswith(opening) and not gap.strip() else 0

    def _tails(self, pieces: Sequence[str], order: Sequence[int], roles: Sequence[str]) -> list[int]:
        """For each message how much of what follows is its stop."""
        after = dict(zip(order, pieces, strict=True))
        last = next((after[n] for n in reversed(order) if roles[n] == "assistant"), "")
        return [
            self._tail(after[number], last) if roles[number] == "assistant" else 0 for number in range(len(roles))
        ]

    def _tail(self, piece: str, last: str) -> int:
        """Up to the end of a special token, if only spaces stand before it; else what every reply ends with."""
        bare = piece.lstrip()
        stop = max((s for s in self.specials if s and bare.startswith(s)), key=len, default="")
        if stop:
            return len(piece) - len(bare) + len(stop)
        return len(last[: _alike(piece, last)].rstrip())

    def _by_differences(self, chat: Chat, text: str) -> list[Turn]:
        """Where each message stands, from what changes in the text when another content is put in its place."""
        wanted = [n for n, m in enumerate(chat.messages) if m.role == "assistant" or m.learned is not None]
        places = {n: self._place(chat, n, text) for n in wanted}
        last = text[places[wanted[-1]][1] :] if wanted else ""
        return [self._turn(chat.messages[n], text, *places[n], last) for n in wanted]

    def _turn(self, message: Message, text: str, start: int, end: int, last: str) -> Turn:
        reply = message.role == "assistant"
        tail = self._tail(text[end:], last) if reply else 0
        return Turn(start, end + tail, reply, message.learned)

    def _place(self, chat: Chat, number: int, text: str) -> tuple[int, int]:
        """Where the content of a message begins and ends; a reply begins where the model would be asked for it."""
        fields = [dict(m.fields) for m in chat.messages]
        opening = self._opening(fields[:number], chat.tools)
        if fields[number].get("tool_calls"):
            return self._place_of_calls(fields[: number + 1], chat.tools, text, opening)
        fields[number]["content"] = SIGN_ALONE
        other = self.template.render(fields, chat.tools, opening=False)
        start = _alike(text, other)
        end = len(text) - _alike(text[start:][::-1], other[start:][::-1])
        asked = chat.messages[number].role == "assistant" and opening and text.startswith(opening)
        return (min(start, len(opening)) if asked else start), max(start, end)

    def _opening(self, before: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> str:
        try:
            return self.template.render(before, tools, opening=True) if before else ""
        except ValueError:
            return ""

    def _place_of_calls(
        self, fields: Sequence[Mapping[str, Any]], tools: Sequence[Any], text: str, opening: str
    ) -> tuple[int, int]:
        """A call of a tool: from where the model is asked up to where the template ends without what follows."""
        whole = self.template.render(fields, tools, opening=False).rstrip()
        if not text.startswith(whole) or not text.startswith(opening):
            raise BadRowError(f"cannot be told apart into messages in what {self.template.origin} makes of it.")
        return len(opening), len(whole)


def own_system(template: ChatTemplate) -> str:
    """The system message that a template writes where a chat has none; nothing for one that writes none."""
    user = {"role": "user", "content": _QUESTION}
    try:
        given = template.render([{"role": "system", "content": _SYSTEM}, user], (), opening=False)
        bare = template.render([user], (), opening=False).partition(_QUESTION)[0]
    except ValueError:  # refused: then there is none
        return ""
    before, _, rest = given.partition(_SYSTEM)
    behind = rest.partition(_QUESTION)[0]
    if not rest or not bare.startswith(before) or not bare.endswith(behind):
        return ""
    return bare[len(before) : len(bare) - len(behind)].strip()


_SYSTEM, _QUESTION = "what the system says", "what is asked"


def _alike(one: str, other: str) -> int:
    """How many letters two texts have in common at their beginnings."""
    shorter = min(len(one), len(other))
    return next((n for n in range(shorter) if one[n] != other[n]), shorter)


def _merged_system(chat: Chat) -> Chat | None:
    """The same chat with the system message before the first question, for templates that know none."""
    messages = chat.messages
    if len(messages) < 2 or messages[0].role != "system" or messages[1].role != "user":
        return None
    content = f"{messages[0].content}\n\n{messages[1].content}"
    first = Message({**messages[1].fields, "content": content}, messages[1].learned)
    return Chat((first, *messages[2:]), chat.tools)

"""Chats in the form of Mistral's own tokenizers, which have no template but write chats out themselves."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULE = "transformers.tokenization_mistral_common"


def is_of_mistral(tokenizer: Any) -> bool:
    return type(tokenizer).__module__ == MODULE


@dataclass(frozen=True, eq=False)
class MistralFormat:
    """They write what a model is asked; a reply is what they put after it when the chat goes on."""

    tokenizer: Any
    text: str = "Mistral's own"
    origin: str = "the model's own form of chats"
    own: bool = True

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], *, opening: bool) -> str:
        """As a chat template would; calls of tools are not written as replies here, and said so."""
        from mistral_common.exceptions import MistralCommonException

        asked, reply = list(map(dict, messages)), ""
        if asked and asked[-1].get("role") == "assistant":
            last = asked.pop()
            if last.get("tool_calls"):
                raise ValueError("a chat must not end with the call of a tool.")
            reply = f"{last['content']}{self.tokenizer.eos_token}"
        try:
            with _silent():
                written = self.tokenizer.apply_chat_template(asked, tools=list(tools) or None, tokenize=False)
        except (MistralCommonException, TypeError, KeyError) as error:
            raise ValueError(" ".join(str(error).split())) from error
        return f"{written}{reply}"


@contextmanager
def _silent() -> Iterator[None]:
    """It warns at each chat that text is unsafe: special tokens in it are read one by one below."""
    logger = logging.getLogger(MODULE)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def by_specials(tokenizer: Any, ids_of: Callable[[str], list[int]]) -> Callable[[str], list[int]]:
    """The same ids, with each special token in the text as its own, which they would read as letters."""
    own = {str(token): tokenizer.convert_tokens_to_ids(token) for token in tokenizer.all_special_tokens}
    pattern = re.compile("|".join(re.escape(token) for token in sorted(own, key=len, reverse=True)))

    def ids(text: str) -> list[int]:
        found: list[int] = []
        at = 0
        for match in pattern.finditer(text):
            found += ids_of(text[at : match.start()]) if match.start() > at else []
            found.append(own[match[0]])
            at = match.end()
        return found + (ids_of(text[at:]) if at < len(text) else [])

    return ids

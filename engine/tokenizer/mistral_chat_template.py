"""Mistral's own tokenizers: they format chats in code instead of a Jinja template, and report no offsets."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# transformers 5 takes this class for Mistral's models where mistral-common is installed and tekken.json is found.
MISTRAL_MODULE = "transformers.tokenization_mistral_common"


@dataclass(frozen=True, eq=False)
class MistralChatTemplate:
    """Chat template of a tokenizer of mistral_common; a reply follows the prompt as it would in a longer chat."""

    tokenizer: Any
    text: str = "Mistral's own"
    origin: str = "the model's own chat format"
    own: bool = True

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], *, opening: bool) -> str:
        """Format a chat; ValueError if it ends with a tool call, which is not supported as a reply."""
        from mistral_common.exceptions import MistralCommonException

        prompt, reply = list(map(dict, messages)), ""
        if prompt and prompt[-1].get("role") == "assistant":
            last = prompt.pop()
            if last.get("tool_calls"):
                raise ValueError("a chat can't end with a tool call.")
            reply = f"{last['content']}{self.tokenizer.eos_token}"
        # It warns that every chat as text is unsafe, but special tokens are encoded by themselves here.
        logger = logging.getLogger(MISTRAL_MODULE)
        was_disabled, logger.disabled = logger.disabled, True
        try:
            text = self.tokenizer.apply_chat_template(prompt, tools=list(tools) or None, tokenize=False)
        except (MistralCommonException, TypeError, KeyError) as error:
            raise ValueError(" ".join(str(error).split())) from error
        finally:
            logger.disabled = was_disabled
        return f"{text}{reply}"


def split_at_special_tokens(tokenizer: Any, ids_of: Callable[[str], list[int]]) -> Callable[[str], list[int]]:
    """Encoder that turns special tokens in a text into their ids, where the tokenizer would read them as text."""
    special_ids = {str(token): tokenizer.convert_tokens_to_ids(token) for token in tokenizer.all_special_tokens}
    longest_first = sorted(special_ids, key=len, reverse=True)
    pattern = re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    def encode(text: str) -> list[int]:
        ids: list[int] = []
        for part in filter(None, pattern.split(text)):
            ids += [special_ids[part]] if part in special_ids else ids_of(part)
        return ids

    return encode

"""Chat logs of TextGen and SillyTavern as conversations, with the versions of replies that were swiped away.

    TextGen        internal: [[what I said, the reply], ...], metadata: {assistant_0: {versions: [{content}]}}
    SillyTavern    each line: name, is_user, is_system, mes, swipes: [text, ...]

Thoughts, tool calls and attachments are dropped and counted.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from ...core.errors import DataError
from ...core.files import modified_at, safe_paths
from ...train_utils import natural_key, size
from . import text_files
from .chat_exports import SYSTEM_MESSAGES, THOUGHTS, TOOL_MESSAGES, ConversationError, expect
from .json_rows import MESSAGES_COLUMN, Row, Table
from .reader_process import MB

MAX_LOG_BYTES = 100 * MB  # years of one chat are some 10 MB, and JSON takes five times its size in memory
NOTHING_SAID = "<|BEGIN-VISIBLE-CHAT|>"  # TextGen writes it as my side of a greeting
MY_NAME, CHARACTER = "You", "AI"  # TextGen's own defaults, for logs that do not say who talks
# What is dropped from replies, as in modules/reasoning.py of TextGen. A thought or a call that was cut off reaches
# to the end; where the chat template wrote the beginning of a thought, the reply has only its end.
DROPPED = [
    (re.compile(pattern, re.DOTALL), reason)
    for pattern, reason in (
        (r"<(think|seed:think)>.*?(?:</\1>|\Z)", THOUGHTS),
        (r"<\|channel\|>(?:analysis|commentary).*?(?:<\|channel\|>final<\|message\|>|\Z)", THOUGHTS),
        (r"\A.*(?:</think>|</seed:think>|<channel\|>)|<\|channel>thought.*", THOUGHTS),
        (r"<tool_call>.*?(?:</tool_call>|\Z)", TOOL_MESSAGES),
    )
]
MY_MACRO = re.compile(r"\{\{user\}\}|<user>", re.IGNORECASE)
CHARACTER_MACRO = re.compile(r"\{\{char\}\}|<bot>", re.IGNORECASE)
# A corrected word in a reply of usual length leaves more in common; another try at the same reply much less.
SAME_SHARE = 0.9


class ChatOptions(NamedTuple):
    """What the user asks of chats; `pairs`: preferences between versions instead of conversations."""

    side: str = "character"
    my_name: str = ""
    context: bool = True
    replace_names: bool = False
    pairs: bool = False


class ChatMessage(NamedTuple):
    """What somebody wrote in a chat, and its versions that were not kept."""

    name: str
    mine: bool
    text: str
    versions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Conversation:
    """The turns of a chat, and a message for each; a system message may come before these."""

    turns: Sequence[ChatMessage]
    messages: Sequence[Mapping[str, Any]]


def make_conversation(said: Sequence[ChatMessage], options: ChatOptions, context: str = "") -> Conversation:
    """All that one side says before the other one answers is one turn; the learned side is the assistant."""
    is_group = len({message.name for message in said if not message.mine}) > 1
    turns, messages = list[ChatMessage](), list[dict[str, Any]]()
    # The context tells the model to be the character, so it would be wrong where the model learns to be me.
    if context and options.context and options.side == "character":
        messages.append({"role": "system", "content": context})
    for mine, group in groupby(said, key=lambda message: message.mine):
        texts, versions, speaker = list[str](), tuple[str, ...](), ""
        for message in group:
            # Among several others, the model must know who speaks.
            lead = f"{message.name}: " if is_group and not mine and message.name != speaker else ""
            before = "".join(f"{text}\n" for text in texts) if message.versions else ""
            versions = tuple(f"{before}{lead}{version}" for version in message.versions)
            texts.append(f"{lead}{message.text}")
            speaker = message.name
        turns.append(ChatMessage(speaker, mine, "\n".join(texts), versions))
        role = "assistant" if mine == (options.side == "user") else "user"
        messages.append({"role": role, "content": turns[-1].text})
    if turns and messages[-len(turns)]["role"] == "assistant":
        # A greeting is the same in every chat and answers nothing, so the model sees it without learning it.
        messages[-len(turns)]["train"] = False
    return Conversation(turns, messages)


def preference_rows(conversation: Conversation) -> Iterator[dict[str, Any]]:
    """What was kept of each learned reply, against each version that was swiped away or edited."""
    messages = conversation.messages
    for number, turn in enumerate(conversation.turns, start=len(messages) - len(conversation.turns)):
        if messages[number]["role"] != "assistant" or "train" in messages[number]:
            continue
        for version in turn.versions:
            if not is_correction(turn.text, version):
                rejected = {"role": "assistant", "content": version}
                yield {"prompt": messages[:number], "chosen": [messages[number]], "rejected": [rejected]}


def is_correction(text: str, version: str) -> bool:
    """Whether two versions differ only by a correction, such as a typing error, and not by taste."""
    words, others = (re.findall(r"\w+", each.casefold()) for each in (text, version))
    matcher = difflib.SequenceMatcher(None, words, others, autojunk=False)
    # The quick ratio is never below the exact one, which takes long for long replies.
    return matcher.quick_ratio() >= SAME_SHARE and matcher.ratio() >= SAME_SHARE


Read = Callable[[Row, Counter[str]], Iterable[Conversation]]


def to_table(table: Table, what: str, read: Read, options: ChatOptions) -> Table:
    """The conversations that are read from the rows of a file, as rows of messages or of preferences."""

    def rows() -> Iterator[Row]:
        number = 0  # of the conversation: the validation split never divides one, and a file may have several
        for row in table.rows():
            left_out: Counter[str] = Counter()
            try:
                if row.problem:
                    raise ConversationError(row.problem)
                for conversation in read(row, left_out):
                    number, messages = number + 1, conversation.messages
                    if options.pairs:
                        found = list(preference_rows(conversation))
                    else:
                        has_reply = any(each["role"] == "assistant" and "train" not in each for each in messages)
                        found = [{MESSAGES_COLUMN: messages}] if has_reply else []
                    for columns in found or [{}]:
                        yield Row(number, columns, left_out=left_out.copy(), without_reply=not found)
                        left_out.clear()  # it is counted once
            except ConversationError as error:
                number += 1
                yield Row(number, {}, str(error))

    return replace(table, unit="conversation", rows=rows, what=what, private=True)


def read_folder(folder: Path, name: str, options: ChatOptions) -> Table:
    """TextGen's own logs with a character, or those of instruct mode: a conversation in each file."""
    files, names, context, notes = _log_files(folder), (options.my_name or MY_NAME, CHARACTER), "", list[str]()
    if folder.parent.name == "chat":  # user_data/logs/chat/CHARACTER; the chats of instruct mode have none
        character, context, *notes = _read_character(folder.parents[2] / "characters", folder.name)
        names = (names[0], character)

    def read(row: Row, left_out: Counter[str]) -> Iterator[Conversation]:
        file = files[row.number - 1]
        try:
            said = list(_read_textgen(_load(file), names, left_out))
        except (ConversationError, DataError) as error:
            raise ConversationError(f"'{file.name}': {error}") from error
        yield make_conversation(said, options, _fill_names(context, names))

    logs = Table(name, "log", lambda: (Row(number, {}) for number in range(1, len(files) + 1)), tuple(notes))
    return to_table(logs, "your chats in TextGen", read, options)


def count_replies(folder: Path) -> tuple[int, int]:
    """How many chats of a folder of TextGen have replies, and how many replies these are."""
    counts = [_count_in_file(file, modified_at(file)) for file in _log_files(folder)]
    return sum(map(bool, counts)), sum(counts)


@lru_cache(maxsize=20_000)
def _count_in_file(file: Path, modified: float) -> int:
    """The replies of a log, a greeting aside; read again only after it was modified."""
    try:
        said = list(_read_textgen(_load(file), (MY_NAME, CHARACTER), Counter()))
    except (ConversationError, DataError):
        return 0
    return sum(not message.mine for message in said[1:])


def _log_files(folder: Path) -> list[Path]:
    # Nothing outside of the folder is read, so a link that leads out is no chat.
    files = [path for path in folder.glob("*.json") if path.is_file() and not safe_paths.leads_out(path)]
    return sorted(files, key=lambda path: natural_key(path.name))


def _load(file: Path) -> Any:
    with text_files.open_binary(file, file.name) as stream:
        content = stream.read(MAX_LOG_BYTES + 1)
    if len(content) > MAX_LOG_BYTES:
        raise ConversationError(f"this file is larger than {size(MAX_LOG_BYTES)}, too large for a chat.")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConversationError("this file is damaged, or it is not a chat.") from error


def _read_character(folder: Path, name: str) -> tuple[str, ...]:
    """The name and the context of a character; a note where its file is missing or damaged."""
    import yaml

    # In the order in which TextGen looks for it.
    files = (folder / f"{name}{suffix}" for suffix in (".yml", ".yaml", ".json"))
    file = next(filter(Path.is_file, files), folder / f"{name}.yaml")
    try:
        with file.open(encoding="utf-8") as stream:
            text = stream.read(MB)
        found = json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
        return str(found.get("name") or name), str(found.get("context") or "").strip()
    except (OSError, ValueError, AttributeError, RecursionError, yaml.YAMLError):
        return name, "", f"The character {name} can't be read from {folder}, so its chats have no system message."


def unpack_textgen(table: Table, options: ChatOptions) -> Table:
    """Logs of TextGen that lie among the datasets, away from their characters."""
    names = (options.my_name or MY_NAME, CHARACTER)

    def read(row: Row, left_out: Counter[str]) -> Iterator[Conversation]:
        yield make_conversation(list(_read_textgen(row.columns, names, left_out)), options)

    return to_table(table, "a chat from TextGen", read, options)


def _read_textgen(log: Any, names: tuple[str, str], left_out: Counter[str]) -> Iterator[ChatMessage]:
    """What was said in a log of TextGen, older ones included; versions come from regenerating and editing."""
    log = expect(dict, log, "the file")
    metadata = log["metadata"] if isinstance(log.get("metadata"), dict) else {}
    for number, exchange in enumerate(expect(list, log.get("internal", log.get("data")), "'internal'")):
        texts = _list(exchange)[:2]
        if len(texts) < 2 or not all(isinstance(text, str) for text in texts):
            raise ConversationError(f"entry {number + 1} under 'internal' must be two texts, mine and the reply.")
        for text, side, name in zip(texts, ("user", "assistant"), names, strict=True):
            about = metadata.get(f"{side}_{number}")
            about = about if isinstance(about, dict) else {}
            left_out["attachments"] += len(_list(about.get("attachments")))
            left_out[TOOL_MESSAGES] += len(_list(about.get("tool_sequence")))
            if text != NOTHING_SAID:
                others = [each.get("content") for each in _list(about.get("versions")) if isinstance(each, dict)]
                yield from _message(name, side == "user", text, others, names, left_out)


def unpack_sillytavern(table: Table, options: ChatOptions) -> Table:
    """A chat of SillyTavern: the whole file is one conversation."""

    def read(_: Row, left_out: Counter[str]) -> Iterator[Conversation]:
        said, names = list[ChatMessage](), [options.my_name or MY_NAME, CHARACTER]
        for row in table.rows():
            line, text = row.columns, row.columns.get("mes")
            left_out["damaged lines"] += bool(row.problem)
            left_out[SYSTEM_MESSAGES] += line.get("is_system") is True
            if not isinstance(text, str) or line.get("is_system") is True:  # the first line is about the chat
                continue
            is_mine, extra = bool(line.get("is_user")), line.get("extra")
            names[not is_mine] = name = str(line.get("name"))
            if isinstance(extra, dict):
                left_out[THOUGHTS] += bool(extra.get("reasoning"))
                left_out["attachments"] += sum(key in extra for key in ("image", "file", "files", "media"))
            said += _message(name, is_mine, text, _list(line.get("swipes")), (names[0], names[1]), left_out)
        yield make_conversation(said, options)

    return to_table(replace(table, rows=lambda: iter([Row(1, {})])), "a chat from SillyTavern", read, options)


def _message(
    name: str, mine: bool, text: str, others: Sequence[Any], names: tuple[str, str], left_out: Counter[str]
) -> Iterator[ChatMessage]:
    """A message without thoughts and tool calls, if any of it is left; with its other versions, each once."""

    def clean(text: str, left_out: Counter[str]) -> str:
        for pattern, reason in DROPPED if not mine else ():
            text, count = pattern.subn("", text)
            left_out[reason] += count
        return _fill_names(text, names).strip()

    kept = clean(text, left_out)
    versions = [clean(other, Counter()) for other in others if isinstance(other, str)]
    if kept:
        yield ChatMessage(name, mine, kept, tuple(dict.fromkeys(v for v in versions if v not in ("", kept))))
    elif not mine:  # an empty message of mine asks for one more reply
        left_out["empty messages"] += 1


def _fill_names(text: str, names: tuple[str, str]) -> str:
    # By functions, since a name may have a backslash.
    return CHARACTER_MACRO.sub(lambda _: names[1], MY_MACRO.sub(lambda _: names[0], text))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []

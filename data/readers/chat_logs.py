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
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from ...core.files import modified_at, parse_json, safe_paths
from ...settings.definitions import TrainingSettings
from ...train_utils import natural_key, size
from .json_rows import MESSAGES_COLUMN, Row, Table, describe_value
from .reader_process import MB

SYSTEM_MESSAGES, TOOL_MESSAGES, THOUGHTS = "system messages", "tool messages", "thoughts"
HIDDEN, NARRATED = "hidden messages", "narrator's messages"
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


class ConversationError(ValueError):
    """A malformed conversation; the message names the part that is wrong."""


class ChatMessage(NamedTuple):
    """What somebody wrote in a chat, and its versions that were not kept."""

    name: str
    mine: bool
    text: str
    versions: tuple[str, ...] = ()


class Turn(NamedTuple):
    """A message as a row has it, and its versions that were not kept."""

    message: Mapping[str, Any]
    versions: Sequence[str] = ()

    @property
    def is_learned(self) -> bool:
        return self.message["role"] == "assistant" and "train" not in self.message


def make_conversation(
    said: Sequence[ChatMessage], settings: TrainingSettings, context: str = "", *, of_group: bool = False
) -> list[Turn]:
    """All that one side says before the other one answers is one turn; the learned side is the assistant.

    `of_group`: the chat has several others, though perhaps not here.
    """
    is_group = of_group or len({message.name for message in said if not message.mine}) > 1
    # The context tells the model to be the character, so it would be wrong where the model learns to be me.
    is_character = settings.rows.chat_side == "character"
    has_context = context and settings.rows.chat_context and is_character
    turns = [Turn({"role": "system", "content": context})] if has_context else []
    for number, (mine, group) in enumerate(groupby(said, key=lambda message: message.mine)):
        texts, versions, speaker = list[str](), tuple[str, ...](), ""
        for message in group:
            # Among several others, the model must know who speaks.
            lead = f"{message.name}: " if is_group and not mine and message.name != speaker else ""
            before = "".join(f"{text}\n" for text in texts) if message.versions else ""
            versions = tuple(f"{before}{lead}{version}" for version in message.versions)
            texts.append(f"{lead}{message.text}")
            speaker = message.name
        role = "user" if mine == is_character else "assistant"
        # A greeting is the same in every chat and answers nothing, so the model sees it without learning it.
        greets = {"train": False} if role == "assistant" and number == 0 else {}
        turns.append(Turn({"role": role, "content": "\n".join(texts), **greets}, versions))
    return turns


def preference_rows(turns: Sequence[Turn]) -> Iterator[dict[str, Any]]:
    """What was kept of each learned reply, against each version that was swiped away or edited."""
    messages = [turn.message for turn in turns]
    for number, turn in enumerate(turns):
        for version in turn.versions if turn.is_learned else ():
            if not is_correction(turn.message["content"], version):
                rejected = {"role": "assistant", "content": version}
                yield {"prompt": messages[:number], "chosen": [turn.message], "rejected": [rejected]}


def is_correction(text: str, version: str) -> bool:
    """Whether two versions differ only by a correction, such as a typing error, and not by taste."""
    words, others = (re.findall(r"\w+", each.casefold()) for each in (text, version))
    matcher = difflib.SequenceMatcher(None, words, others, autojunk=False)
    # The quick ratio is never below the exact one, which takes long for long replies.
    return matcher.quick_ratio() >= SAME_SHARE and matcher.ratio() >= SAME_SHARE


Read = Callable[[Row, Counter[str]], Iterable[Sequence[Turn]]]


def to_table(table: Table, what: str, read: Read, settings: TrainingSettings) -> Table:
    """The conversations that are read from the rows of a file, as rows of messages or of preferences."""

    def rows() -> Iterator[Row]:
        number = 0  # of the conversation: the validation split never divides one, and a file may have several
        for row in table.rows():
            left_out: Counter[str] = Counter()
            try:
                if row.problem:
                    raise ConversationError(row.problem)
                for turns in read(row, left_out):
                    number += 1
                    messages = [turn.message for turn in turns]
                    found = [{MESSAGES_COLUMN: messages}] * any(turn.is_learned for turn in turns)
                    if settings.preferences.from_versions:
                        found = list(preference_rows(turns))
                    for columns in found or [{}]:
                        yield Row(number, columns, left_out=left_out.copy(), without_reply=not found)
                        left_out.clear()  # it is counted once
            except ConversationError as error:
                number += 1
                yield Row(number, {}, str(error))

    return replace(table, unit="conversation", rows=rows, what=what, private=True)


def read_folder(folder: Path, name: str, settings: TrainingSettings) -> Table:
    """TextGen's own logs with a character, or those of instruct mode: a conversation in each file."""
    files, names, context, notes = _log_files(folder), _names(settings), "", list[str]()
    if folder.parent.name == "chat":  # user_data/logs/chat/CHARACTER; the chats of instruct mode have none
        character, context, *notes = _read_character(folder.parents[2] / "characters", folder.name)
        names = (names[0], character)

    def read(row: Row, left_out: Counter[str]) -> Iterator[list[Turn]]:
        said = _read_log(files[row.number - 1], names, left_out)
        yield make_conversation(said, settings, _fill_names(context, names))

    logs = Table(name, "log", lambda: (Row(number, {}) for number in range(1, len(files) + 1)), tuple(notes))
    return to_table(logs, "your chats in TextGen", read, settings)


def count_replies(folder: Path) -> tuple[int, int]:
    """How many chats of a folder of TextGen have replies, and how many replies these are."""
    counts = [_count_in_file(file, modified_at(file)) for file in _log_files(folder)]
    return sum(map(bool, counts)), sum(counts)


@lru_cache(maxsize=20_000)
def _count_in_file(file: Path, modified: float) -> int:
    """The replies of a log, a greeting aside; read again only after it was modified."""
    try:
        said = _read_log(file, (MY_NAME, CHARACTER), Counter())
    except ConversationError:
        return 0
    return sum(not message.mine for message in said[1:])


def _log_files(folder: Path) -> list[Path]:
    # Nothing outside of the folder is read, so a link that leads out is no chat.
    files = [path for path in folder.glob("*.json") if path.is_file() and not safe_paths.leads_out(path)]
    return sorted(files, key=lambda path: natural_key(path.name))


def _read_log(file: Path, names: tuple[str, str], left_out: Counter[str]) -> list[ChatMessage]:
    """What was said in one of TextGen's own logs; an error names the file."""
    try:
        if file.stat().st_size > MAX_LOG_BYTES:
            raise ConversationError(f"this file is larger than {size(MAX_LOG_BYTES)}, too large for a chat.")
        return list(_read_textgen(parse_json(file), names, left_out))
    except (OSError, ValueError) as error:
        is_told = isinstance(error, (ConversationError, OSError))
        reason = error if is_told else "this file is damaged, or it is not a chat."
        raise ConversationError(f"'{file.name}': {reason}") from error


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


def unpack_textgen(table: Table, _: Path, settings: TrainingSettings) -> Table:
    """Logs of TextGen that lie among the datasets, away from their characters."""

    def read(row: Row, left_out: Counter[str]) -> Iterator[list[Turn]]:
        yield make_conversation(list(_read_textgen(row.columns, _names(settings), left_out)), settings)

    return to_table(table, "a chat from TextGen", read, settings)


def _read_textgen(log: Any, names: tuple[str, str], left_out: Counter[str]) -> Iterator[ChatMessage]:
    """What was said in a log of TextGen, older ones included; versions come from regenerating and editing."""
    log = expect(dict, log, "the file")
    metadata = log["metadata"] if isinstance(log.get("metadata"), dict) else {}
    for number, exchange in enumerate(expect(list, log.get("internal", log.get("data")), "'internal'")):
        texts = as_list(exchange)[:2]
        if len(texts) < 2 or not all(isinstance(text, str) for text in texts):
            raise ConversationError(f"entry {number + 1} under 'internal' must be two texts, mine and the reply.")
        for text, side, name in zip(texts, ("user", "assistant"), names, strict=True):
            about = metadata.get(f"{side}_{number}")
            about = about if isinstance(about, dict) else {}
            left_out["attachments"] += len(as_list(about.get("attachments")))
            left_out[TOOL_MESSAGES] += len(as_list(about.get("tool_sequence")))
            if text != NOTHING_SAID:
                others = [each.get("content") for each in as_list(about.get("versions")) if isinstance(each, dict)]
                yield from _message(name, side == "user", text, others, names, left_out)


def unpack_sillytavern(table: Table, _: Path, settings: TrainingSettings) -> Table:
    """A chat of SillyTavern: the whole file is one conversation."""

    def read(_: Row, left_out: Counter[str]) -> Iterator[list[Turn]]:
        said, names = list[ChatMessage](), [*_names(settings)]
        for row in table.rows():
            line, text = row.columns, row.columns.get("mes")
            left_out["damaged lines"] += bool(row.problem)
            if not isinstance(text, str):  # the first line is about the chat
                continue
            is_mine, extra = bool(line.get("is_user")), line.get("extra")
            kind = extra.get("type") if isinstance(extra, dict) else None
            if kind == "narrator" or line.get("is_system") is True:
                # What the user has hidden with /hide has no type.
                left_out[NARRATED if kind == "narrator" else SYSTEM_MESSAGES if kind else HIDDEN] += 1
                continue
            names[not is_mine] = name = str(line.get("name"))
            if isinstance(extra, dict):
                left_out[THOUGHTS] += bool(extra.get("reasoning"))
                left_out["attachments"] += sum(key in extra for key in ("image", "file", "files", "media"))
            said += _message(name, is_mine, text, as_list(line.get("swipes")), (names[0], names[1]), left_out)
        yield make_conversation(said, settings)

    return to_table(replace(table, rows=lambda: iter([Row(1, {})])), "a chat from SillyTavern", read, settings)


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
        # What the kept reply begins with was kept, too, and continued.
        rejected = dict.fromkeys(version for version in versions if version and not kept.startswith(version))
        yield ChatMessage(name, mine, kept, tuple(rejected))
    elif not mine:  # an empty message of mine asks for one more reply
        left_out["empty messages"] += 1


def _names(settings: TrainingSettings) -> tuple[str, str]:
    return settings.rows.chat_user.strip() or MY_NAME, CHARACTER


def _fill_names(text: str, names: tuple[str, str]) -> str:
    # By functions, since a name may have a backslash.
    return CHARACTER_MACRO.sub(lambda _: names[1], MY_MACRO.sub(lambda _: names[0], text))


def expect(kind: type[Any], value: Any, what: str) -> Any:
    """The value, if it is of this kind."""
    if not isinstance(value, kind):
        must = "a list" if kind is list else "a JSON object"
        raise ConversationError(f"{what} is {describe_value(value)}. It must be {must}.")
    return value


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []

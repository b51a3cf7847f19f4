"""Chats in exports of messengers, as conversations between me and the others; Discord's by DiscordChatExporter.

    WhatsApp    [12.03.24, 18:22:11] Maren: text    or    12/03/2024, 6:22 PM - Maren: text
    Discord     guild, channel: {name}, messages: [{type, timestamp, content, author: {name, nickname, isBot}}]
    Telegram    name, messages: [{type, date_unixtime, from, text: "a" or ["a", {text}]}], or chats: {list: [...]}
    Messenger   title, messages: [{sender_name, timestamp_ms, content}], the newest first; Instagram's are the same

None of them says which of the people is me.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from ...core.errors import DataError
from ...settings.definitions import TrainingSettings
from ...train_utils import format_count
from . import chat_logs, text_files
from .chat_exports import join_parts
from .chat_logs import ChatMessage, ConversationError, Turn, as_list, expect, make_conversation, to_table
from .json_rows import Row, Table

# After a night or a day at work, people rarely go on with what they were saying.
PAUSE_SECONDS = 6 * 3600
DIRECTION_MARKS = "\u200e\u200f\u202a\u202b\u202c\ufeff"
# A short word may stand between date and time: "12/03/2024 à 18:22". U+202F is a narrow space.
WHATSAPP_LINE = re.compile(
    rf"[{DIRECTION_MARKS}]*\[?(\d{{1,4}})[./-](\d{{1,2}})[./-](\d{{1,4}}),?\s(?:[^\W\d]{{1,3}}\s)?"
    r"(\d{1,2})[:.](\d{2})(?:[:.]\d{2})?(?:\s?([ap])\.?\s?m\.?)?(?:\]|\s-)\s(?:([^\n]{1,100}?):\s)?(.*)",
    re.IGNORECASE,
)
YEAR_FIRST, MONTH_FIRST, DAY_FIRST = (0, 1, 2), (2, 0, 1), (2, 1, 0)  # places of year, month and day
# What stands for an attachment, a deleted message or a call, or after an edited text. On iOS, WhatsApp's own words
# begin with U+200E.
FILE_KINDS = "jpe?g|png|webp|gif|mp4|3gp|opus|m4a|mp3|aac|pdf|docx?|xlsx?|pptx?|vcf|zip|txt"
# Android has no U+200E before its words, so these are known in some languages only.
DELETED = (
    "This message was deleted|You deleted this message|"
    "Diese Nachricht wurde gelöscht|Du hast diese Nachricht gelöscht|"
    "Ce message a été supprimé|Vous avez supprimé ce message|Se eliminó este mensaje|Eliminaste este mensaje|"
    "Questo messaggio è stato eliminato|Hai eliminato questo messaggio|Dit bericht is verwijderd|"
    "Mensagem apagada|Esta mensagem foi apagada|Você apagou esta mensagem"
)
EDITED = "edit|bearbeit|modif|bewerkt|redig|redak|редакт|düzenle|edyt|编辑|編輯|編集|수정"  # in many languages
OMITTED = re.compile(
    "\u200e<[^<>\n]*>|^\u200e.*$"
    rf"|^<[^\W\d]+ [^<>=\"\n]{{2,60}}>$| <[^<>\n]*(?:{EDITED})[^<>\n]*>$"
    rf"|^[^\n]+\.(?:{FILE_KINDS}) \([^()\n]{{3,40}}\)$"
    rf"|^(?:null|(?:{DELETED})\.?|Missed (?:voice|video) call)$",
    re.MULTILINE | re.IGNORECASE,
)
DISCORD_TALK = ("Default", "Reply", "0", "19")  # older versions write numbers; the rest are notices of Discord
META_MEDIA = {"photos", "videos", "audio_files", "files", "gifs", "sticker", "share"}
META_NOTICE = re.compile(r"Liked a message|Reacted .+ to your message ?")


class Post(NamedTuple):
    """A message as a messenger exports it; `at` in seconds, NaN where the time can't be read."""

    name: str
    text: str
    at: float
    bot: bool = False


def is_whatsapp(path: Path) -> bool:
    """Whether a text is a chat exported from WhatsApp, by its first lines."""
    if path.suffix.lower() != ".txt":
        return False
    head = b""
    with suppress(OSError), path.open("rb") as file:  # its reader says why
        head = file.read(4096)
    found = list(map(WHATSAPP_LINE.match, head.decode("utf-8", errors="ignore").lstrip().split("\n")))
    return found[0] is not None and any(match and match[7] for match in found)


def read_whatsapp(path: Path, name: str, settings: TrainingSettings) -> Table:
    """The chat in a text that WhatsApp has exported."""
    text, notes = text_files.read_text(path, name)
    entries = list[tuple[re.Match[str], list[str]]]()  # the first line of each message, and all of its text
    for line in text.split("\n"):
        if found := WHATSAPP_LINE.match(line):
            entries.append((found, [found[8]]))
        elif entries:
            entries[-1][1].append(line)
    # Only numbers above 12 tell which of day and month comes first.
    order = DAY_FIRST
    if any(int(found[1]) > 31 for found, _ in entries):
        order = YEAR_FIRST
    elif any(int(found[2]) > 12 for found, _ in entries):
        order = MONTH_FIRST
    posts, left_out = list[Post](), Counter[str]()
    for found, parts in entries:
        if not found[7]:  # who joined, who called, and that all this is encrypted
            left_out[chat_logs.SYSTEM_MESSAGES] += 1
            continue
        text, omitted = OMITTED.subn("", "\n".join(parts))
        left_out["attachments and deleted messages"] += omitted
        text = text.translate(dict.fromkeys(map(ord, DIRECTION_MARKS))).strip()
        *date, hour, minute = map(int, found.groups()[:5])
        if found[6]:  # 12 PM is noon
            hour = hour % 12 + 12 * (found[6].lower() == "p")
        year, month, day = (date[place] for place in order)
        at = math.nan
        with suppress(ValueError):  # where there is no such day
            at = (datetime(year % 100 + 2000, month, day, hour, minute) - datetime(2000, 1, 1)).total_seconds()
        if text:
            posts.append(Post(found[7].strip(f"{DIRECTION_MARKS}~ \u202f"), text, at))

    def read(_: Row, counted: Counter[str]) -> Iterator[list[Turn]]:
        counted.update(left_out)
        yield from _conversations(posts, name, f"{path.parent.name} {path.stem}", settings, counted)

    file = Table(name, "file", lambda: iter([Row(1, {})]), notes)
    return to_table(file, "a chat from WhatsApp", read, settings)


def unpack_chats(program: str, table: Table, path: Path, settings: TrainingSettings) -> Table:
    """The chats in a file of JSON, one in each row."""
    my_name = settings.rows.chat_user.strip().casefold()

    def writers(row: Row) -> Iterator[str]:
        with suppress(ConversationError):
            yield from (post.name.casefold() for post in READ_POSTS[program](row.columns, Counter()))

    # In one chat of several I may have written nothing, but not in all of them.
    several = len(list(islice(table.rows(), 2))) > 1
    several = several and (not my_name or any(my_name in writers(row) for row in table.rows()))

    def read(row: Row, left_out: Counter[str]) -> Iterator[list[Turn]]:
        posts, channel = list(READ_POSTS[program](row.columns, left_out)), row.columns.get("channel")
        name = channel.get("name") if isinstance(channel, dict) else row.columns.get("name")
        title = " ".join(str(each or "") for each in (path.stem, name, _decoded(row.columns.get("title") or "")))
        yield from _conversations(posts, table.name, title, settings, left_out, several=several)

    return to_table(table, f"a chat from {program}", read, settings)


def _read_discord(export: Mapping[str, Any], left_out: Counter[str]) -> Iterator[Post]:
    for number, message in enumerate(expect(list, export.get("messages"), "'messages'"), start=1):
        author = expect(dict, expect(dict, message, f"message {number}").get("author"), f"author {number}")
        name, text = author.get("nickname") or author.get("name"), message.get("content")
        if not isinstance(name, str) or not isinstance(text, str):
            raise ConversationError(f"message {number} has no author or no text.")
        if str(message.get("type", "Default")) not in DISCORD_TALK:
            left_out[chat_logs.SYSTEM_MESSAGES] += 1
            continue
        left_out["attachments"] += len(as_list(message.get("attachments")))
        at = math.nan
        with suppress(ValueError, OverflowError, OSError):
            at = datetime.fromisoformat(str(message.get("timestamp"))).timestamp()
        if text.strip():
            yield Post(name.strip(), text.strip(), at, author.get("isBot") is True)


def _read_telegram(chat: Mapping[str, Any], left_out: Counter[str]) -> Iterator[Post]:
    for number, message in enumerate(expect(list, chat.get("messages"), "'messages'"), start=1):
        if expect(dict, message, f"message {number}").get("type") != "message":
            left_out[chat_logs.SYSTEM_MESSAGES] += 1
            continue
        # An account that was deleted has only an id.
        name, text = message.get("from") or message.get("from_id"), message.get("text")
        if not isinstance(name, str):
            raise ConversationError(f"message {number} has no name under 'from'.")
        left_out["attachments"] += not {"photo", "file", "media_type"}.isdisjoint(message)
        text = join_parts(text if isinstance(text, list) else [text], left_out).strip()
        if "forwarded_from" in message:  # somebody else's words
            left_out["forwarded messages"] += 1
        elif text:
            yield Post(name.strip(), text, _seconds(message.get("date_unixtime")))


def _read_messenger(chat: Mapping[str, Any], left_out: Counter[str]) -> Iterator[Post]:
    for number, message in enumerate(reversed(expect(list, chat.get("messages"), "'messages'")), start=1):
        name = expect(dict, message, f"message {number} from the end").get("sender_name")
        if not isinstance(name, str):
            raise ConversationError(f"message {number} from the end has no 'sender_name'.")
        text, share = _decoded(message.get("content") or "").strip(), message.get("share")
        if "call_duration" in message or META_NOTICE.fullmatch(text):
            left_out[chat_logs.SYSTEM_MESSAGES] += 1
            continue
        left_out["attachments"] += not META_MEDIA.isdisjoint(message)
        # A link that somebody wrote is in the text. Otherwise the text says only that something was shared.
        is_said = not isinstance(share, dict) or str(share.get("link")) in text
        if text and is_said:
            yield Post(_decoded(name).strip(), text, _seconds(message.get("timestamp_ms")) / 1000)


READ_POSTS: Mapping[str, Callable[[Mapping[str, Any], Counter[str]], Iterator[Post]]] = {
    "Discord": _read_discord,
    "Telegram": _read_telegram,
    "Messenger or Instagram": _read_messenger,
}


def _decoded(text: Any) -> str:
    """A text of Meta, which writes each byte of UTF-8 as a character."""
    try:
        return str(text).encode("latin-1").decode()
    except UnicodeError:
        return str(text)


def _seconds(value: Any) -> float:
    try:
        return float(str(value))
    except ValueError:
        return math.nan


def _conversations(
    posts: Sequence[Post],
    name: str,
    title: str,
    settings: TrainingSettings,
    left_out: Counter[str],
    *,
    several: bool = False,
) -> Iterator[list[Turn]]:
    """The conversations of a chat, which are divided by long pauses."""
    my_name = settings.rows.chat_user.strip()
    people = Counter(post.name for post in posts if not post.bot)
    named_after = {person for person in people if person.casefold() in title.casefold()}
    mine = {person for person in people if person.casefold() == my_name.casefold()}
    if len(people) > 1:  # among people, a bot plays music or rolls dice
        left_out["messages of bots"] += len(posts) - people.total()
        posts = [post for post in posts if not post.bot]
        # A chat of two is named after the other one: "WhatsApp Chat with Maren.txt".
        if not my_name and len(people) == 2:
            mine = people.keys() - named_after
    elif not my_name and people.total() < len(posts):  # I talk with a bot
        mine = set(people)
    if not mine and (my_name or not people) and (several or people.keys() == named_after):
        yield []  # I wrote nothing in this one of my chats
        return
    if len(mine) != 1:
        problem = f"has no messages of {my_name!r}" if my_name else "does not say who you are"
        listed = ", ".join(f"{who} ({format_count(count, 'message')})" for who, count in people.most_common(10))
        enter = "Enter your name under 'My name in chats'. The file has messages of"
        raise DataError(f"{name} {problem}. {enter}: {listed or 'nobody'}.")

    # Also my own name, which the others may write; and parts of names, unless they are usual words.
    persons = {person: f"Person {n}" for n, person in enumerate(dict.fromkeys(post.name for post in posts), 1)}
    parts = {part: persons[person] for person in persons for part in person.split()}
    words = {part: person for part, person in parts.items() if len(part) > 1 and not part.islower()} | persons
    longest_first = map(re.escape, sorted(words, key=len, reverse=True))
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(longest_first)})(?!\w)")
    said, earlier = list[ChatMessage](), math.nan
    for who, text, at, _ in posts:
        if at - earlier > PAUSE_SECONDS:
            yield make_conversation(said, settings, of_group=len(people) > 2)
            said = []
        earlier, shown = at, who
        if settings.rows.chat_names:
            shown, text = persons[who], pattern.sub(lambda found: words[found[0]], text)
        said.append(ChatMessage(shown, who in mine, text))
    yield make_conversation(said, settings, of_group=len(people) > 2)

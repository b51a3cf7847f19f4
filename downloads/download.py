"""A model brought from the hub: aside first, on from where it broke off, and in its place when it is whole."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from ..core.errors import BusyError, ModelError, first_line
from ..core.files import PART, free_bytes, lock, moved, moved_when_new, safe_paths, why_not_written
from ..core.jobs import Ended, Event, Fetched, Note, Stage
from ..train_utils import duration, several, size
from . import hub
from .hub_models import Offer, Part, Wanted

ASIDE = ".getting-"
LOCK = "lock"
PARTIAL_CONTENT = 206
TOLD_SECONDS = 1.0
SPEED_SECONDS = 10.0  # by the bytes of so long
PAUSES_SECONDS = (1, 2, 4, 8, 16)
"""Before the line is tried again; whenever something came they begin anew."""

Tell = Callable[[Event], object]
Stopping = Callable[[], bool]


class _StopAsked(Exception):  # noqa: N818 - no error
    """Somebody asked to stop."""


def get(asked: Wanted, models: Path, tell: Tell, stopping: Stopping = lambda: False) -> Ended:
    """Bring it into the models folder; what cannot be is said before anything is written."""
    folder = safe_paths.child(models, asked.folder, "Model", refusal=ModelError)
    aside = safe_paths.child(models, f"{ASIDE}{asked.folder}", "Model", refusal=ModelError)
    _refuse_what_is_there(folder)
    tell(Stage(text=f"Asking the hub for {asked.words}"))
    offer = hub.offer(asked)
    _refuse_no_room(offer, aside)
    tell(Note(text=_announced(offer, folder, _here(offer, aside))))
    begun = time.monotonic()
    try:
        _bring(offer, folder, aside, Meter(offer, aside, tell, stopping))
    except (KeyboardInterrupt, _StopAsked):
        return Ended(outcome="stopped", text=f"Stopped. {_left(offer, aside)}")
    except ModelError as error:
        raise ModelError(f"{error} {_left(offer, aside)}") from error
    except OSError as error:
        why = f"{models} cannot be written: {why_not_written(error, models)}."
        raise ModelError(f"{why} {_left(offer, aside)}") from error
    took = f"{size(offer.size)}, {duration(time.monotonic() - begun)}"
    return Ended(outcome="finished", text=f"{asked.words} is in {folder} ({took}).", folder=folder)


class Meter:
    """How much is here, told now and then; and the place where a stop is heard."""

    def __init__(self, offer: Offer, aside: Path, tell: Tell, stopping: Stopping) -> None:
        self.tell, self._stopping = tell, stopping
        self._here = {part.name: _here_of(part, offer, aside) for part in offer.parts}
        self._done, self._total = sum(self._here.values()), offer.size
        self._recent: deque[tuple[float, int]] = deque()
        self._told, self._seen = float("-inf"), -1

    def at(self, part: Part, position: int) -> None:
        """So far of this file."""
        self.hear()
        self._done += position - self._here[part.name]
        self._here[part.name] = position
        now = time.monotonic()
        if self._done == self._seen or (now - self._told < TOLD_SECONDS and self._done < self._total):
            return
        self._told, self._seen = now, self._done
        self._recent.append((now, self._done))
        while now - self._recent[0][0] > SPEED_SECONDS:
            self._recent.popleft()
        self.tell(Fetched(done=self._done, total=self._total, speed=self._speed()))

    def hear(self) -> None:
        if self._stopping():
            raise _StopAsked

    def wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.hear()
            time.sleep(min(0.1, left))

    def _speed(self) -> float:
        (first, before), (last, after) = self._recent[0], self._recent[-1]
        return (after - before) / (last - first) if last > first else 0.0


def _refuse_what_is_there(folder: Path) -> None:
    if (folder / "config.json").is_file():
        raise ModelError(
            f"{folder.name} is there already, in {folder.parent}: choose it. To bring it anew, delete or rename "
            "that folder first."
        )
    if folder.exists():
        raise ModelError(f"{folder} is there but holds no model: delete or rename it, then try again.")


def _refuse_no_room(offer: Offer, aside: Path) -> None:
    lacking, free = offer.size - _here(offer, aside), free_bytes(aside)
    if lacking > free:
        raise ModelError(
            f"{offer.wanted.words} needs {size(lacking)} more on the disk of {aside.parent}, and {size(free)} are "
            "free: make room, or choose a smaller model."
        )


def _announced(offer: Offer, folder: Path, here: int) -> str:
    licence = f", licence {offer.licence}" if offer.licence else ""
    known = f" ({size(here)} are here already)" if here else ""
    return (
        f"{offer.wanted.words} at {offer.commit[:7]}: {offer.kind}{licence}, {several(len(offer.parts), 'file')}, "
        f"{size(offer.size)}{known}, for {folder}; {size(free_bytes(folder))} are free there."
    )


def _bring(offer: Offer, folder: Path, aside: Path, meter: Meter) -> None:
    with lock(aside / LOCK) as ours:
        if not ours:
            raise BusyError(f"Another program is bringing {offer.wanted.words} just now. Wait until it is done.")
        for part in offer.parts:
            if not _came(part, offer, aside):
                _fill(part, aside, offer, meter)
            meter.at(part, part.size)
        _put_together(offer, folder, aside)
    shutil.rmtree(aside, ignore_errors=True)


def _came(part: Part, offer: Offer, aside: Path) -> bool:
    """Whether all of it is here."""
    return _place(aside, part).is_file() or (_together(aside, offer) / part.name).is_file()


def _together(aside: Path, offer: Offer) -> Path:
    """All files as they will stand; by the commit, so that what could not take its place yet is found again."""
    return aside / offer.commit


def _place(aside: Path, part: Part) -> Path:
    """A file whole, until all are: its name says its content, since a branch may have moved on meanwhile."""
    return aside / f"{part.name}.{part.content[:16]}"


def _on_its_way(aside: Path, part: Part) -> Path:
    place = _place(aside, part)
    return place.with_name(place.name + PART)


def _fill(part: Part, aside: Path, offer: Offer, meter: Meter) -> None:
    """Until it has come to its end; a line that breaks is tried again for a while."""
    file = _on_its_way(aside, part)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    pauses = iter(PAUSES_SECONDS)
    while (begin := file.stat().st_size) < part.size:
        try:
            _append(file, begin, part, offer, meter)
            break
        except hub.troubles() as error:
            if file.stat().st_size > begin:
                pauses = iter(PAUSES_SECONDS)
            pause = next(pauses, None) if hub.passes(error) else None
            if pause is None:
                with hub.in_words(offer.wanted):
                    raise
            meter.tell(Note(text=f"The line broke ({first_line(error).rstrip('.')}); trying again in {pause} s."))
            meter.wait(pause)
    _check(part, file, meter)
    moved(file, _place(aside, part))


def _append(file: Path, begin: int, part: Part, offer: Offer, meter: Meter) -> None:
    """What comes of it from that byte on; a hub that cannot begin there sends it from the first."""
    with hub.stream(offer.wanted, offer.commit, part.name, begin=begin) as answer:
        goes_on = begin and answer.status_code == PARTIAL_CONTENT
        with file.open("ab" if goes_on else "wb") as written:
            for piece in answer.iter_bytes():
                written.write(piece)
                meter.at(part, written.tell())


def _check(part: Part, file: Path, meter: Meter) -> None:
    """By its size, and where the hub tells its SHA-256 by that."""
    sound = file.stat().st_size == part.size
    if sound and part.hashed:
        meter.tell(Stage(text=f"Checking {part.name}"))
        with file.open("rb") as opened:
            sound = hashlib.file_digest(opened, "sha256").hexdigest() == part.content
    if not sound:
        file.unlink()
        raise ModelError(f"{part.name} came damaged, and is thrown away.")


def _put_together(offer: Offer, folder: Path, aside: Path) -> None:
    whole = _together(aside, offer)
    for part in offer.parts:
        if (came := _place(aside, part)).is_file():
            place = whole / part.name
            place.parent.mkdir(parents=True, exist_ok=True)
            moved(came, place)
    moved_when_new(whole, folder)


def _here(offer: Offer, aside: Path) -> int:
    """The bytes that need not come any more."""
    return sum(_here_of(part, offer, aside) for part in offer.parts)


def _here_of(part: Part, offer: Offer, aside: Path) -> int:
    places = (_together(aside, offer) / part.name, _place(aside, part), _on_its_way(aside, part))
    return sum(file.stat().st_size for file in places if file.is_file())


def _left(offer: Offer, aside: Path) -> str:
    """What stands aside now, in words; where that is nothing, its folder goes."""
    if not (here := _here(offer, aside)):
        shutil.rmtree(aside, ignore_errors=True)
        return "Nothing of it was kept."
    return (
        f"{size(here)} of {size(offer.size)} are here: asked for again, it goes on from there. To give it up, "
        f"delete {aside}."
    )

"""LoRAs on a model that TextGen runs in llama-server, which takes them as GGUF files when it starts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from ..core.errors import BusyError, ModelError, first_line
from ..core.readable import readable

# Our attribute on the webui's LlamaServer: what is attached is forgotten when the webui stops that server.
ATTACHED = "training_pro_lora"
# A line of llama-server's log that says why it ended, and what stands before its words: time, level and function.
REASON = re.compile(r"(?i:\b(?:error|failed)\b)|^[\d.]+ E ")
LOG_PREFIX = re.compile(r"^(?:[\d.]+ )?(?:[IWED] )?(?:(?:\w+ +)?\w*_\w*: )?")
MAX_LOG_BYTES = 1_000_000


@dataclass(frozen=True)
class AttachedLora:
    """A LoRA that llama-server has loaded; the time of its file tells whether it was trained further since."""

    name: str
    file: Path
    mtime: int
    strength: float


class LlamaCppModel:
    """The model in the webui's llama-server. Its methods are called with exclusive use of the model."""

    def __init__(self, shared: Any, models: Any, server_module: Any) -> None:
        self._shared, self._models, self._server_module = shared, models, server_module
        self.file = Path(shared.model.model_path).absolute()  # a link may point to a file without an ending

    def attach(self, name: str, file: Path, strength: float) -> None:
        """Attach this LoRA instead of the one before; if llama.cpp refuses it, the model is loaded as it was."""
        before, lora = self._attached(), AttachedLora(name, file, file.stat().st_mtime_ns, strength)
        try:
            if before and (before.file, before.mtime) == (lora.file, lora.mtime):
                self._set_strength(lora)
            else:
                self._load(lora)
        except Exception as error:
            self._load(before)
            state = f"with {before.name} again" if before else "again without a LoRA"
            raise ModelError(f"{first_line(error)} The model was loaded {state}.") from error

    def detach(self) -> tuple[str, ...]:
        """Load the model without the LoRA that was attached, and return its name, if there was one."""
        if (before := self._attached()) is None:
            return ()
        self._load(None)
        return (before.name,)

    def _attached(self) -> AttachedLora | None:
        # With --parallel, the webui generates without the lock that exclusive use is.
        if getattr(self._models, "active_generation_count", 0):
            raise BusyError("The model is generating a reply. Wait until it has ended, then try again.")
        return getattr(self._shared.model, ATTACHED, None)

    def _load(self, lora: AttachedLora | None) -> None:
        """Start llama-server again with this LoRA or none; the user's flags are borrowed only while it starts."""
        shared = self._shared
        name, args, flags = shared.model_name, shared.args, shared.args.extra_flags
        with self._heard_pipes() as pipes:
            try:
                args.extra_flags = add_lora(flags, lora.file) if lora else flags
                self._models.unload_model(keep_model_name=True)
                shared.model, shared.tokenizer = self._models.load_model(name, "llama.cpp")
            finally:
                args.extra_flags = flags
        if shared.model is None:
            what = f"{name} with the LoRA {lora.name!r}" if lora else name
            raise ModelError(f"llama.cpp can't load {what}: {find_reason(pipes)}.")
        if lora:
            self._set_strength(lora)

    def _set_strength(self, lora: AttachedLora) -> None:
        """Change the strength in the running server, and empty its cache of prompts."""
        server = self._shared.model

        def ask(method: str, path: str, body: object = None) -> Any:
            address = f"http://127.0.0.1:{server.port}{path}"
            response = server.session.request(method, address, json=body, timeout=60)
            response.raise_for_status()
            return response.json()

        try:
            # The server sets LoRAs that are not in the list to 0. Before ours may be those of the user's flags.
            *others, ours = ask("GET", "/lora-adapters")
            scales = [{"id": other["id"], "scale": other["scale"]} for other in others]
            ask("POST", "/lora-adapters", [*scales, {"id": ours["id"], "scale": lora.strength}])
            # It would go on from what it computed for earlier prompts with the previous strength
            # (launch_slot_with_task in llama.cpp's server-context.cpp). A request without the cache replaces that.
            for slot in range(ask("GET", "/props")["total_slots"]):
                ask("POST", "/completion", {"prompt": ".", "n_predict": 0, "id_slot": slot, "cache_prompt": False})
        except (OSError, ValueError, LookupError) as error:
            raise ModelError(f"llama-server did not accept the strength: {first_line(error)}.") from error
        setattr(server, ATTACHED, lora)
        self._shared.lora_names = [lora.name]

    @contextmanager
    def _heard_pipes(self) -> Iterator[list[_HeardPipe]]:
        """Keep the output of the servers that the webui starts meanwhile; it only passes it to its console."""
        pipes: list[_HeardPipe] = []
        module, name = self._server_module, "filter_stderr_with_progress"
        pass_on: Any = getattr(module, name, None)  # a webui without it: the reason is only in its console

        def listen(pipe: Any) -> None:
            pipes.append(_HeardPipe(pipe))
            pass_on(pipes[-1])

        setattr(module, name, listen)
        try:
            yield pipes
        finally:
            setattr(module, name, pass_on)


class _HeardPipe:
    """The output of llama-server on its way to the console, and the beginning of what it said."""

    def __init__(self, pipe: Any) -> None:
        self._pipe, self.said, self.closed = pipe, bytearray(), Event()

    def read(self, count: int) -> bytes:
        chunk: bytes = self._pipe.read(count)
        self.said += chunk[: MAX_LOG_BYTES - len(self.said)]
        return chunk

    def close(self) -> None:
        self._pipe.close()
        self.closed.set()


def find_reason(pipes: Sequence[_HeardPipe]) -> str:
    """The first line that says why llama-server ended, or else its last one."""
    lines = ["it gave no reason; see the console of the webui"]
    for pipe in pipes:
        pipe.closed.wait(5)  # it ended just now, and its output is still read
        lines += [line for line in map(readable, pipe.said.decode(errors="replace").splitlines()) if line.strip()]
    return LOG_PREFIX.sub("", next(filter(REASON.search, lines), lines[-1])).strip().rstrip(".")


def add_lora(flags: str | None, file: Path) -> str:
    """Add a LoRA to the flags in the notation that they have; the webui's loader knows two."""
    flags = (flags or "").strip()
    if flags[:1] in ('"', "'") and flags[:1] == flags[-1:]:
        flags = flags[1:-1].strip()
    # llama-server splits at commas outside double quotes. It gets no strength here (--lora-scaled): it would split
    # that off at a colon, and C:\loras has one.
    path = f'"{file}"' if "," in str(file) else str(file)
    # Prompts that the server keeps in memory (--cache-ram) can't be removed when the strength changes.
    if flags and not flags.startswith("-"):
        return f"{flags},lora={path},cache-ram=0"
    return f"{flags} --lora {shlex.quote(path)} --cache-ram 0".strip()

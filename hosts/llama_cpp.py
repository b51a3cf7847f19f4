"""LoRAs on a model that TextGen runs in llama-server, which takes them as GGUF files when it starts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
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
REQUEST_SECONDS = 60


@dataclass(frozen=True)
class AttachedLora:
    """A LoRA that llama-server has loaded; the time of its file tells whether it was trained further since."""

    name: str
    file: Path
    mtime: int
    strength: float


class LlamaCppModel:
    """The model in the webui's llama-server. Every method is called with exclusive use of the model."""

    def __init__(self, shared: Any, models: Any, server_module: Any) -> None:
        self._shared, self._models, self._server_module = shared, models, server_module
        self.file = Path(shared.model.model_path).resolve()

    def attach(self, name: str, file: Path, strength: float) -> None:
        """Attach this LoRA instead of the one before; if llama.cpp refuses it, the model is loaded as it was."""
        self._refuse_during_reply()
        before: AttachedLora | None = getattr(self._shared.model, ATTACHED, None)
        lora = AttachedLora(name, file, file.stat().st_mtime_ns, strength)
        try:
            if before and (before.file, before.mtime) == (lora.file, lora.mtime):
                self._set_strength(lora)
            else:
                self._load(lora)
        except Exception as error:
            self._restore(before)
            state = f"with {before.name} again" if before else "again without a LoRA"
            raise ModelError(
                f"llama.cpp can't use the LoRA {name!r} with {self._shared.model_name}: {first_line(error)}. "
                f"The model was loaded {state}."
            ) from error

    def detach(self) -> tuple[str, ...]:
        """Load the model without the LoRA that was attached, and return its name, if there was one."""
        self._refuse_during_reply()
        before: AttachedLora | None = getattr(self._shared.model, ATTACHED, None)
        if before is None:
            return ()
        self._restore(None)
        return (before.name,)

    def _refuse_during_reply(self) -> None:
        # With --parallel, the webui generates without the lock that exclusive use is.
        if getattr(self._models, "active_generation_count", 0):
            raise BusyError(
                "The model is generating a reply. Wait until it has ended or press Stop in the Chat tab. Then try "
                "again."
            )

    def _restore(self, lora: AttachedLora | None) -> None:
        try:
            self._load(lora)
        except ModelError as error:
            name = self._shared.model_name
            raise ModelError(f"llama.cpp can't load {name}: {error}. In the Model tab, press Load.") from error

    def _load(self, lora: AttachedLora | None) -> None:
        """Start llama-server again with this LoRA or none; the user's flags are borrowed only while it starts."""
        shared = self._shared
        name, args, flags = shared.model_name, shared.args, shared.args.extra_flags
        with self._listen() as log:
            try:
                args.extra_flags = add_lora(flags, lora.file) if lora else flags
                self._models.unload_model(keep_model_name=True)
                shared.model, shared.tokenizer = self._models.load_model(name, "llama.cpp")
            finally:
                args.extra_flags = flags
            if shared.model is None:
                raise ModelError(find_reason(log()) or "it gave no reason; see the console of the webui")
        if lora:
            self._set_strength(lora)

    def _set_strength(self, lora: AttachedLora) -> None:
        """Change the strength in the running server, and empty its cache of prompts."""
        server = self._shared.model
        web, url = server.session, f"http://127.0.0.1:{server.port}"

        def ask(method: str, path: str, body: object = None) -> Any:
            response = web.request(method, url + path, json=body, timeout=REQUEST_SECONDS)
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
                body = {"prompt": ".", "n_predict": 0, "id_slot": slot, "cache_prompt": False}
                ask("POST", "/completion", body)
        except (OSError, ValueError, LookupError) as error:
            raise ModelError(f"it did not accept the strength ({first_line(error)})") from error
        setattr(server, ATTACHED, lora)
        self._shared.lora_names = [lora.name]

    @contextmanager
    def _listen(self) -> Iterator[Any]:
        """Yield a function that returns what a server that was started meanwhile, and has ended, wrote."""
        module, name = self._server_module, "filter_stderr_with_progress"
        original = getattr(module, name, None)
        if original is None:  # another version of the webui: the reason is only in its console
            yield lambda: ""
            return
        pipes: list[_KeptPipe] = []

        def listen(pipe: Any) -> None:
            pipes.append(_KeptPipe(pipe))
            try:
                original(pipes[-1])
            finally:
                pipes[-1].ended.set()

        def log() -> str:
            return "\n".join(pipe.text() for pipe in pipes)

        setattr(module, name, listen)
        try:
            yield log
        finally:
            setattr(module, name, original)
            for pipe in pipes:
                pipe.keeps = False  # the server writes for as long as it runs


class _KeptPipe:
    """The output of llama-server on its way to the console."""

    def __init__(self, pipe: Any) -> None:
        self._pipe, self._said = pipe, bytearray()
        self.keeps, self.ended = True, Event()

    def read(self, count: int) -> bytes:
        chunk: bytes = self._pipe.read(count)
        if self.keeps:
            self._said += chunk
        return chunk

    def close(self) -> None:
        self._pipe.close()

    def text(self) -> str:
        self.ended.wait(5)
        return self._said.decode(errors="replace")


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


def find_reason(log: str) -> str:
    """The first line of llama-server's log that says why it ended, or else its last one."""
    lines = [line for line in map(readable, log.splitlines()) if line.strip()]
    reason = next(filter(REASON.search, lines), lines[-1] if lines else "")
    return LOG_PREFIX.sub("", reason).strip().rstrip(".")

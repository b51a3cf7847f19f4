"""Objects of ours between two processes of Training PRO, over pipes.

The two may run different versions of Python, and know this package by different names: `user_ext_Training_PRO` in
the webui is `__main__` on the command line. So each message begins with the name that its sender uses.
"""

from __future__ import annotations

import io
import pickle
import struct
import threading
from typing import IO, Any

ROOT_NAME = __package__.rpartition(".")[0]
# What our own classes hold beside each other and numbers and texts; nothing else is made from a message.
PLAIN = ("builtins", "collections", "pathlib", "numpy", "markupsafe")
UNSAFE = ("eval", "exec", "compile", "open", "__import__", "getattr", "setattr", "delattr", "input", "breakpoint")


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, root: str) -> None:
        super().__init__(io.BytesIO(data))
        self._root = root

    def find_class(self, module: str, name: str) -> Any:
        if module == self._root or module.startswith(f"{self._root}."):
            module = ROOT_NAME + module[len(self._root) :]
        elif module.partition(".")[0] not in PLAIN or name in UNSAFE:
            raise pickle.UnpicklingError(f"{module}.{name} is not expected in a message")
        elif module.startswith("pathlib"):  # Python 3.13 has its classes in pathlib._local
            module = "pathlib"
        return super().find_class(module, name)


class Channel:
    """One end of the pipes; any thread may send, and one thread receives."""

    def __init__(self, read: IO[bytes], write: IO[bytes]) -> None:
        self._read, self._write, self._sending = read, write, threading.Lock()

    def send(self, message: Any) -> None:
        data = ROOT_NAME.encode() + b"\0" + pickle.dumps(message, protocol=4)
        with self._sending:
            self._write.write(struct.pack("<Q", len(data)) + data)
            self._write.flush()

    def receive(self) -> Any:
        """The next message; raises EOFError if the other process has ended."""
        header = self._read.read(8)
        data = self._read.read(struct.unpack("<Q", header)[0]) if len(header) == 8 else b""
        if not data:
            raise EOFError
        root, _, pickled = data.partition(b"\0")
        return _Unpickler(pickled, root.decode()).load()

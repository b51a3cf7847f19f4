"""A package registry of tiny wheels in a folder, and the same over HTTP."""

from __future__ import annotations

import base64
import zipfile
from hashlib import sha256
from http.server import BaseHTTPRequestHandler
from pathlib import Path


def put_wheel(registry, name, version="1.0", requires=(), code=""):
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {other}\n" for other in requires)
    files = {
        f"{module}/__init__.py": code or f"version = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={digest(text)},{len(text)}\n" for path, text in files.items())
    folder = registry / name
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, f"{info}/RECORD": record + f"{info}/RECORD,,\n"}.items():
            wheel.writestr(path, text)
    links = "".join(
        f'<a href="{file.name.replace("+", "%2B")}#sha256={sha256(file.read_bytes()).hexdigest()}">{file.name}</a>'
        for file in folder.glob("*.whl")
    )
    (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")


def digest(text):
    return base64.urlsafe_b64encode(sha256(text.encode()).digest()).rstrip(b"=").decode()


class Mirror(BaseHTTPRequestHandler):
    """The registry over HTTP, with ranges; `cut` breaks the next download after so many bytes.

    With `is_locked`, a wheel needs any user and password.
    """

    root, cut, asked, is_locked = Path(), 0, [], False

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = self.root / self.path.strip("/")
        data = (path / "index.html" if path.is_dir() else path).read_bytes()
        begin = int((self.headers["Range"] or "bytes=0-")[6:-1])
        cut, is_wheel = Mirror.cut, path.suffix == ".whl" and self.command == "GET"
        if self.is_locked and path.suffix == ".whl" and "Authorization" not in self.headers:
            self.send_error(401)
            return
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(data) - begin))
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        if is_wheel:
            Mirror.cut = 0
            self.asked.append((path.parent.name, begin))
        if self.command == "GET":
            self.wfile.write(data[begin : begin + cut if is_wheel and cut else None])

    def log_message(self, *args): ...

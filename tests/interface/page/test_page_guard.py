"""The standalone page answers this computer, its own pages, and whoever gave the password; nobody else."""

from __future__ import annotations

import re
import socket

import gradio as gr
import pytest
from gradio.routes import App
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient
from training_pro.core.jobs import Session
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import StandaloneHost, standalone_folders
from training_pro.interface.page import build_page, guard_middleware, page_guard

OWN, FOREIGN = "http://127.0.0.1:7862", "http://evil.example:7862"
PASSWORD = "a word"
OPEN = {"/", "/login", "/theme.css", "/favicon.ico", "/robots.txt", "/manifest.json", "/startup-events"}
OPEN_FOLDERS = ("/assets/", "/static/", "/svelte/")


@pytest.fixture(scope="module")
def blocks(tmp_path_factory):
    host = StandaloneHost(standalone_folders(tmp_path_factory.mktemp("user_data")))
    page, options = build_page(host, PeftEngine(), Session())
    page.launch(prevent_thread_lock=True, quiet=True, **options)
    page.close()  # it is complete now; the tests need no socket
    return page


def serve(
    blocks: gr.Blocks, *, listens: bool = False, password: str = "", names=(), host: str = OWN
) -> TestClient:
    """The page as `page` serves it, without a socket."""
    blocks.auth = (lambda _, given: given == password) if password else None
    blocks.auth_message = None
    guard = guard_middleware(listens=listens, asks_password=bool(password), names=names)
    app = App.create_app(blocks, app_kwargs={"middleware": [guard]})
    return TestClient(app, base_url=host, follow_redirects=False, raise_server_exceptions=False)


FOREIGN_HOSTS = ("evil.example:7862", "127.0.0.1.evil.example", "", "a" * 9000, "[::1", "x@localhost.evil")


def test_a_foreign_host_with_an_equal_origin_is_refused(blocks):
    """DNS rebinding: the name of another web page leads to this computer."""
    client = serve(blocks)
    for host in (*FOREIGN_HOSTS, "192.168.0.7", "10.0.0.1:7862"):
        reply = client.get("/config", headers={"host": host, "origin": f"http://{host}"})
        assert (
            reply.status_code == 403 and "can't be opened at the address" in reply.text and len(reply.text) < 250
        )


def test_names_of_this_computer_and_with_listen_its_addresses_and_own_names_are_served(blocks):
    client = serve(blocks)
    for host in ("127.0.0.1:7862", "LOCALHOST", "[::1]:7862", "127.0.0.2", "localhost."):
        assert client.get("/config", headers={"host": host}).status_code == 200, host
    client = serve(blocks, listens=True, names=["Train.Example"])
    for host in ("192.168.0.7:7862", f"{socket.gethostname()}:7862", "train.example", "[fe80::1]:7862"):
        assert client.get("/config", headers={"host": host}).status_code == 200, host
    for host in FOREIGN_HOSTS:
        assert client.get("/config", headers={"host": host}).status_code == 403, host


def test_requests_of_other_pages_are_refused_and_links_to_the_page_are_not(blocks):
    client = serve(blocks)
    for headers in (
        {"origin": FOREIGN},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
    ):
        for path in ("/config", "/queue/join", "/upload", "/login"):
            reply = client.post(path, headers=headers)
            assert reply.status_code == 403 and "comes from another website" in reply.text
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/", headers=link).status_code == 200
    assert client.get("/config", headers={"origin": OWN, "sec-fetch-site": "same-origin"}).status_code == 200


def paths(routes, prefix=""):
    """All routes of an app, also those of routers and mounted apps, with their variables filled in."""
    for route in routes:
        path = getattr(route, "path", "") or ""
        if nested := getattr(route, "routes", None) or getattr(
            getattr(route, "original_router", None), "routes", None
        ):
            yield from paths(nested, prefix + path)
        else:
            yield re.sub(r"\{[^}]*\}", "x", prefix + path), sorted(getattr(route, "methods", None) or {"GET"})


def test_without_the_password_no_route_answers(blocks):
    """Every route of the installed Gradio; what the question for the password needs gives nothing away."""
    client = serve(blocks, password=PASSWORD)
    asked, refused = set(), set()
    for path, methods in paths(client.app.routes):
        for address in {path, f"/gradio_api{path}"}:
            for method in methods:
                asked.add(address)
                plain = (address.removeprefix("/gradio_api") or "/").rstrip("/") or "/"
                if plain in OPEN or plain.startswith(OPEN_FOLDERS):
                    continue
                reply = client.request(method, address)
                assert reply.status_code == 401, (method, address)
                refused.add(address)
    assert len(asked) > 60 and len(refused) > 45
    for path in ("/", "/startup-events", "/manifest.json"):
        reply = client.get(path)
        assert reply.status_code < 500 and "tp-start" not in reply.text


def test_with_the_password_the_page_answers_and_many_wrong_ones_are_slowed(blocks):
    client = serve(blocks, password=PASSWORD)
    assert client.post("/login", data={"username": "me", "password": PASSWORD}).status_code == 200
    assert client.get("/config").status_code == 200
    client.cookies.clear()
    forged = {"cookie": "access-token-x=y; access-token-unsecure-x=z"}
    assert client.get("/config", headers=forged).status_code == 401
    replies = [client.post("/login", data={"username": "me", "password": str(n)}) for n in range(30)]
    codes = [reply.status_code for reply in replies]
    assert codes[:3] == [400] * 3 and codes.count(429) > 10 and client.get("/config").status_code == 401
    assert re.match(r"Too many wrong passwords. Try again in \d+ seconds?\.", replies[-1].text)


class Guessing:
    """Wrong passwords at moments of our own clock."""

    def __init__(self):
        self.now = 0.0
        self.guesses = page_guard.Guesses(clock=lambda: self.now)

    def passes(self, address):
        try:
            self.guesses.count(address)
        except HTTPException:
            return False
        return True


def test_wrong_passwords_are_slowed_and_the_right_one_is_not_locked_out():
    guessing, moments = Guessing(), []
    for _ in range(40):
        while not guessing.passes("1.2.3.4"):
            guessing.now += 0.5
        moments.append(guessing.now)
    pairs = zip(moments, moments[page_guard.GUESSES_OF_ONE :], strict=False)
    assert all(later - earlier >= page_guard.SECONDS for earlier, later in pairs)
    guessing.guesses.forget("1.2.3.4")
    assert guessing.passes("1.2.3.4")


def test_many_addresses_are_slowed_together_and_take_no_memory():
    guessing = Guessing()
    addresses = [f"10.0.{number // 250}.{number % 250}" for number in range(5000)]
    assert sum(map(guessing.passes, addresses)) == page_guard.GUESSES_OF_ALL
    assert guessing.passes("127.0.0.1"), "the owner, who sits at this computer"
    for address in addresses:
        guessing.now += 2
        guessing.passes(address.replace("10.0", "10.1"))
    assert len(guessing.guesses.recent) <= page_guard.GUESSES_OF_ALL


def test_bodies_have_a_limit(blocks):
    client = serve(blocks)
    reply = client.post("/queue/join", headers={"content-length": "64000001"}, content=b"{}")
    assert reply.status_code == 413 and "64,000,000 bytes" in reply.text
    reply = client.post("/upload", headers={"content-length": "4000000001"}, content=b"{}")
    assert reply.status_code == 413 and "folder training/datasets" in reply.text

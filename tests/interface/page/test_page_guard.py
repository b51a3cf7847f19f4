"""The standalone page answers this computer, its own pages, and whoever gave the password; nobody else."""

from __future__ import annotations

import itertools
import re
import socket

import gradio as gr
import pytest
from gradio.routes import App
from starlette.testclient import TestClient
from training_pro.core.jobs import Session
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import LOADING_OPTIONS, StandaloneHost, standalone_folders
from training_pro.interface.page import build_page, guard_middleware
from training_pro.interface.page.page_guard import (
    FREE_GUESSES,
    GUESSES_A_MINUTE,
    LONGEST_WAIT,
    MAX_ADDRESSES,
    Guesses,
    Refusal,
)

OWN, FOREIGN = "http://127.0.0.1:7862", "http://evil.example:7862"
PASSWORD = "a word"
OPEN = {"/", "/login", "/theme.css", "/favicon.ico", "/robots.txt", "/manifest.json", "/startup-events"}
OPEN_FOLDERS = ("/assets/", "/static/", "/svelte/")


@pytest.fixture(scope="module")
def blocks(tmp_path_factory):
    host = StandaloneHost(standalone_folders(tmp_path_factory.mktemp("user_data")))
    page, options = build_page(host, PeftEngine(), Session(), loadings=LOADING_OPTIONS)
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


@pytest.mark.parametrize(
    "host", ["127.0.0.1:7862", "localhost:7862", "LOCALHOST", "[::1]:7862", "127.0.0.2", "localhost."]
)
def test_names_of_this_computer_are_served(blocks, host):
    assert serve(blocks).get("/config", headers={"host": host}).status_code == 200


HOSTS = [
    "evil.example",
    "evil.example:7862",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "",
    "a" * 9000,
    "[::1",
    "x@localhost.evil",
]


@pytest.mark.parametrize("host", [*HOSTS, "192.168.0.7", "10.0.0.1:7862"])
def test_a_foreign_host_with_an_equal_origin_is_refused(blocks, host):
    """DNS rebinding: the name of another web page leads to this computer."""
    reply = serve(blocks).get("/config", headers={"host": host, "origin": f"http://{host}"})
    assert reply.status_code == 403 and "can't be opened at the address" in reply.text and len(reply.text) < 250


def test_with_listen_addresses_and_own_names_are_served_and_foreign_names_are_not(blocks):
    client = serve(blocks, listens=True, names=["Train.Example"])
    for host in ("192.168.0.7:7862", f"{socket.gethostname()}:7862", "train.example", "[fe80::1]:7862"):
        assert client.get("/config", headers={"host": host}).status_code == 200, host
    assert [client.get("/config", headers={"host": host}).status_code for host in HOSTS] == [403] * len(HOSTS)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": FOREIGN},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
    ],
)
def test_requests_of_other_pages_are_refused(blocks, headers):
    client = serve(blocks)
    for path in ("/config", "/queue/join", "/upload", "/login"):
        reply = client.post(path, headers=headers)
        assert reply.status_code == 403 and "comes from another website" in reply.text


def test_a_link_to_the_page_and_its_own_requests_are_served(blocks):
    client = serve(blocks)
    assert (
        client.get("/", headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}).status_code == 200
    )
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


def test_with_the_password_the_page_answers(blocks):
    client = serve(blocks, password=PASSWORD)
    wrong = client.post("/login", data={"username": "me", "password": "x"})
    assert wrong.status_code == 400 and client.get("/config").status_code == 401
    assert client.post("/login", data={"username": "me", "password": PASSWORD}).status_code == 200
    assert client.get("/config").status_code == 200
    client.cookies.clear()
    assert (
        client.get("/config", headers={"cookie": "access-token-x=y; access-token-unsecure-x=z"}).status_code == 401
    )


def test_200_wrong_passwords_are_slowed_and_the_right_one_is_not_locked_out(blocks):
    client = serve(blocks, password=PASSWORD)
    replies = [client.post("/login", data={"username": "me", "password": str(n)}) for n in range(200)]
    codes = [reply.status_code for reply in replies]
    assert codes[:FREE_GUESSES] == [400] * FREE_GUESSES and codes.count(429) > 180
    assert re.match(r"Too many wrong passwords. Try again in \d+ seconds?\.", replies[-1].text)


def test_guesses_wait_longer_and_longer_but_never_long():
    now = [0.0]
    guesses, seconds = Guesses(clock=lambda: now[0]), []
    for _ in range(40):
        while True:
            try:
                guesses.count("1.2.3.4")
                break
            except Refusal:
                now[0] += 0.5
        seconds.append(now[0])
    gaps = [after - before for before, after in itertools.pairwise(seconds)]
    assert gaps[: FREE_GUESSES - 1] == [0] * (FREE_GUESSES - 1) and gaps == sorted(gaps)
    assert gaps[-1] == LONGEST_WAIT


def test_many_addresses_are_slowed_together_and_take_no_memory():
    now = [0.0]
    guesses, passed = Guesses(clock=lambda: now[0]), 0
    for number in range(5000):
        try:
            guesses.count(f"10.0.{number // 250}.{number % 250}")
            passed += 1
        except Refusal:
            pass
    guesses.count("127.0.0.1")  # the owner, who sits at this computer
    assert passed == GUESSES_A_MINUTE
    now[0] += 60
    for number in range(5000):
        now[0] += 2
        guesses.count(f"10.1.{number // 250}.{number % 250}")
    assert len(guesses.by_address) == MAX_ADDRESSES and len(guesses.recent) <= GUESSES_A_MINUTE


def test_bodies_have_a_limit(blocks):
    client = serve(blocks)
    reply = client.post("/queue/join", headers={"content-length": "64000001"}, content=b"{}")
    assert reply.status_code == 413 and "64,000,000 bytes" in reply.text
    reply = client.post("/upload", headers={"content-length": "4000000001"}, content=b"{}")
    assert reply.status_code == 413 and "folder training/datasets" in reply.text

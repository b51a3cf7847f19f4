"""Many pages at once on one server, by the requests of a browser: one run starts, and all pages follow it."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psutil
import pytest
from training_pro.tests.browser import servers
from training_pro.tests.hardness.conftest import MEASURED, MEGABYTE

httpx = pytest.importorskip("httpx", reason="httpx sends the requests of many pages at once")

pytestmark = pytest.mark.timeout(0)
GROWTH_LIMIT, SMALL_GROWTH_MEGABYTES = 1.05, 40
PATIENCE_SECONDS = 120
JSON = {"Content-Type": "application/json"}
VERSION = re.compile("[0-9a-f]{32}")
LOOK = re.compile('data-tp-look="([^"]+)"')


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[servers.Server]:
    with servers.demo(tmp_path_factory.mktemp("load")) as demo:
        yield demo


class HttpPage:
    """What one open page sends: its session, and the events of its buttons by the id of the button."""

    def __init__(self, client: Any, config: dict[str, Any]) -> None:
        self.client, self.config, self.session = client, config, uuid.uuid4().hex
        self.version = ""  # of the buttons
        self.prefix = config.get("api_prefix", "")
        self.components = {each["id"]: each for each in config["components"]}

    @classmethod
    async def open(cls, client: Any) -> HttpPage:
        """Load the page and its config."""
        (await client.get("/")).raise_for_status()
        return cls(client, (await client.get("/config")).json())

    def component(self, elem_id: str) -> int:
        return next(i for i, each in self.components.items() if each["props"].get("elem_id") == elem_id)

    def event(self, elem_id: str, kind: str = "click", output: str = "") -> dict[str, Any]:
        """The event of a component, or with its output the one that is sent when the page is loaded."""
        wanted = self.component(elem_id) if elem_id else None
        for event in self.config["dependencies"]:
            named = [tuple(target) for target in event["targets"]]
            if output and self.component(output) not in event["outputs"]:
                continue
            if any(name == kind and wanted in (None, number) for number, name in named):
                return dict(event)
        raise AssertionError(f"no event {kind} of {elem_id or 'the page'}")

    async def join(self, event: dict[str, Any], **values: object) -> str:
        """Send an event with the values of the page, some of them changed, and return the id of the request."""
        return str((await self.post("/queue/join", event, **values))["event_id"])

    async def call(self, event: dict[str, Any]) -> dict[str, Any]:
        """Send an event that does not wait in the queue, and return its answer."""
        return await self.post("/run/predict", event)

    async def post(self, route: str, event: dict[str, Any], **values: object) -> dict[str, Any]:
        changed = {self.component(f"tp-{key}"): value for key, value in values.items()}
        data = [changed.get(i, self.components[i]["props"].get("value")) for i in event["inputs"]]
        body = {"data": data, "fn_index": event["id"], "session_hash": self.session, "event_data": None}
        body["trigger_id"] = event["targets"][0][0]
        answer = await self.client.post(self.prefix + route, content=json.dumps(body), headers=JSON)
        answer.raise_for_status()
        return dict(answer.json())

    async def send(self, event: dict[str, Any], **values: object) -> AsyncIterator[dict[str, Any]]:
        """Send an event, and follow what comes back; answers to other events of the page are skipped."""
        sent = await self.join(event, **values)
        url, params = f"{self.prefix}/queue/data", {"session_hash": self.session}
        async with self.client.stream("GET", url, params=params) as stream:
            async for line in stream.aiter_lines():
                if line.startswith("data:"):
                    message = json.loads(line.removeprefix("data:"))
                    if message["msg"] != "close_stream" and message.get("event_id") not in (None, sent):
                        continue
                    yield message
                    if message["msg"] in ("process_completed", "close_stream"):
                        return

    async def ask(self, event: dict[str, Any], **values: object) -> list[dict[str, Any]]:
        """Send an event, and return all that came back."""
        return [message async for message in self.send(event, **values)]

    async def follow(self, updates: int) -> int:
        """Follow the run for so many updates, as a page does from its load on, and return their number."""
        event = self.event("", "load", "tp-run")
        for other in self.config["dependencies"]:
            is_sent = other["backend_fn"] and any(name == "load" for _, name in other["targets"])
            if is_sent and other["id"] != event["id"]:
                await self.join(other)
        return await self.follow_by(event, updates)

    async def follow_by(self, event: dict[str, Any], updates: int) -> int:
        """Follow the stream of this event; with many pages it ends, and the page asks by itself."""
        seen, data = 0, []
        async for message in self.send(event):
            if message["msg"] == "process_generating":
                seen += 1
                if self.has_new_controls(event, message["output"]["data"]):
                    await self.join(self.event("tp-version", "change"))
            if seen >= updates:
                return seen
            data = message.get("output", {}).get("data", data)
        look = self.event("tp-look")
        beat = look["outputs"].index(self.component("tp-beat"))
        while seconds := float(LOOK.search(str(data[beat]))[1]):
            await asyncio.sleep(seconds)
            data = (await self.call(look))["data"]
            if self.has_new_controls(look, data):
                await self.ask(self.event("tp-version", "change"))
            seen += 1
            if seen >= updates:
                return seen
        # Unlike a browser, this page closed its stream meanwhile. Gradio 4.37 keeps what it had sent by the id of
        # a generator that is gone, and a new generator of the session can get the same id.
        self.session = uuid.uuid4().hex
        return seen + await self.follow_by(self.event("tp-again"), updates - seen)

    def has_new_controls(self, event: dict[str, Any], data: list[Any]) -> bool:
        """Whether the version of the run's buttons has changed, so that the page asks for them."""
        sent = VERSION.search(json.dumps(data[event["outputs"].index(self.component("tp-version"))]))
        before, self.version = self.version, sent[0] if sent else self.version
        return self.version != before


BUSY = "The model is busy"


def client_of(server: servers.Server) -> Any:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=server.url.rstrip("/"), timeout=PATIENCE_SECONDS, limits=limits)


def used(server: servers.Server) -> tuple[float, int]:
    """Memory of the server in MB, and its open files."""
    process = psutil.Process(server._process.pid)
    return process.memory_info().rss / MEGABYTE, process.num_fds() if hasattr(process, "num_fds") else 0


async def start_all(client: Any, count: int) -> list[str]:
    """Press Start on so many pages at once, and return what each was told."""
    pages = await asyncio.gather(*(HttpPage.open(client) for _ in range(count)))
    values = {
        "name": "load", "data": ["story.txt"], "cutoff": "64", "epochs": "1000", "batch_size": "1",
        "if_exists": "replace", "sample_every": "never", "save_each_epoch": False, "recall_passages": 0,
    }  # fmt: skip

    async def press(page: HttpPage) -> str:
        told = ""  # a page that is refused follows the run of the other one, so the refusal has to suffice
        async for message in page.send(page.event("tp-start"), **values):
            if message["msg"] == "process_generating":
                told += json.dumps(message["output"]["data"])
            if BUSY in told:
                break
        return told

    return list(await asyncio.gather(*(press(page) for page in pages)))


@pytest.mark.parametrize(
    ("starts", "followers", "reloads"), [(20, 6, 16), pytest.param(500, 50, 1_000, marks=pytest.mark.hours)]
)
def test_many_pages_on_one_server(server, proof, record_property, starts, followers, reloads):
    """On our own page, where `MAX_PAGES` limits the pages that Gradio remembers; a host has its own limit."""
    record_property("what", f"{starts} starts at once, {followers} pages that show the run, {reloads} reloads")

    async def attack() -> dict[str, tuple[float, int]]:
        uses = {}
        async with client_of(server) as client:
            with proof.case("all starts at once make one run"):
                told = await start_all(client, starts)
                proof.cases += starts - 1
                assert sum(BUSY in text for text in told) == starts - 1, told[:3]
            for wave in ("early", "late"):
                with proof.case(f"{followers} pages follow, {wave}"):
                    pages = await asyncio.gather(*(HttpPage.open(client) for _ in range(followers)))
                    seen = await asyncio.gather(*(page.follow(10) for page in pages))
                    assert seen == [10] * followers
                for _ in range(reloads // 2):
                    with proof.case("a page is loaded, and closed again"):
                        assert await (await HttpPage.open(client)).follow(1) == 1
                await asyncio.sleep(3)  # Gradio ends the streams of closed pages
                uses[wave] = used(server)
            page = await HttpPage.open(client)
            await page.ask(page.event("tp-stop"))
        return uses

    uses = asyncio.run(attack())
    early, late = uses["early"], uses["late"]
    proof.worst_megabytes = late[0] - early[0]
    record_property("figures", f"{early[0]:.0f} MB after half of the test, {late[0]:.0f} MB at the end")
    with proof.case("memory and open files"):
        assert not MEASURED or late[1] <= early[1] + 5, uses
        limit = max(early[0] * GROWTH_LIMIT, early[0] + SMALL_GROWTH_MEGABYTES)
        assert not MEASURED or late[0] <= limit, uses
    with proof.case("nothing broke on the server"):
        assert server.stumbles() == []


@pytest.mark.parametrize("value", [{"a": 1}, [[]], 1e308, True, "\udc80"], ids=repr)
def test_a_strange_value_is_answered_with_a_sentence(server, value):
    """Gradio's own answer is `{"error": null}`."""

    async def send() -> list[dict[str, Any]]:
        async with client_of(server) as client:
            page = await HttpPage.open(client)
            values = dict.fromkeys(("name", "data", "epochs", "batch_size", "overlap", "chunking"), value)
            return await page.ask(page.event("tp-check"), **values)

    end = asyncio.run(send())[-1]
    said = json.dumps(end.get("output"))
    assert 'error": null' not in said and len(said) > 40, end

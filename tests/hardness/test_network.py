"""Nothing phones home: a whole run and the page work with loopback alone, and ask for no more."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from training_pro.commands.environment import ROOT
from training_pro.hosts.tiny import make_tiny

WATCHER = """
import sys

LOCAL = ("127.", "localhost", "::1", "0.0.0.0")

def watch(event, args):
    if event == "socket.connect":
        address = args[1]
        place = address[0] if isinstance(address, tuple) else ""  # a path: a socket of this machine
    elif event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        place = args[1][0] if event == "socket.sendto" and isinstance(args[1], tuple) else args[0]
    else:
        return
    if isinstance(place, bytes):
        place = place.decode()
    if isinstance(place, str) and place and not place.startswith(LOCAL):
        with open({seen!r}, "a") as file:
            file.write(f"{{event}} {{place}}\\n")
        raise OSError("no network here")

sys.addaudithook(watch)

# The sitecustomize that this one hides, such as that of the webui's pins.
import os
import runpy

for folder in sys.path:
    other = os.path.join(folder, "sitecustomize.py")
    if os.path.isfile(other) and os.path.realpath(other) != os.path.realpath(__file__):
        runpy.run_path(other)
        break
"""


@pytest.fixture
def offline(tmp_path):
    """Run script.py in a process that refuses, and notes, every socket but loopback."""
    seen, site = tmp_path / "seen", tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(WATCHER.format(seen=str(seen)))
    own = {"PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}
    removed = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "GRADIO_ANALYTICS_ENABLED", "HF_DATASETS_OFFLINE")
    environment = {key: value for key, value in os.environ.items() if key not in removed} | own

    def start(*arguments: str) -> subprocess.Popen:
        command = [sys.executable, str(ROOT / "script.py"), *arguments, "--user-data", str(tmp_path / "user_data")]
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    start.seen = lambda: seen.read_text().split("\n") if seen.exists() else []
    return start


def test_the_watcher_sees_and_refuses(tmp_path, offline):
    """A watcher that sees nothing would prove nothing."""
    code = "import socket; socket.create_connection(('203.0.113.1', 80), 1)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert "no network here" in ended.stderr
    assert offline.seen()[0] == "socket.getaddrinfo 203.0.113.1"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_whole_run_needs_no_network(tmp_path, offline):
    make_tiny(tmp_path / "user_data" / "models" / "tiny")
    data = tmp_path / "user_data" / "training" / "datasets"
    data.mkdir(parents=True)
    rows = [{"instruction": f"q {n}", "output": "a"} for n in range(16)]
    (data / "chat.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = "--name lit --data chat.jsonl --batch-size 2 --epochs 2 --rank 2 --train-head true --eval-share 0.25"
    words += " --eval-every 3 --save-every 3 --sample-every epoch --model tiny"
    for command in ("check", "train"):
        process = offline(command, *words.split())
        output, _ = process.communicate()
        assert process.returncode == 0, output
    lora = tmp_path / "user_data" / "loras" / "lit"
    assert {"adapter_model.safetensors", "report.html", "samples.jsonl"} <= {path.name for path in lora.iterdir()}
    assert offline.seen() == []


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_page_starts_without_a_network(offline):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = offline("page", "--port", str(port), "--no-browser")
    try:
        while "is running at" not in (line := process.stdout.readline()):
            assert line, process.wait()
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/").read().decode()
        assert "gradio_config" in text
        time.sleep(3)  # what runs in the background after the start
    finally:
        process.terminate()
        process.communicate()
    assert offline.seen() == []

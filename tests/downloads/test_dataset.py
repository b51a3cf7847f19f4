"""Datasets from a hub and files from a URL: what arrives, what is refused, and that a stop leaves nothing."""

import json
import socket

import pytest
from training_pro.core.errors import DataError, SavingError, StoppedError
from training_pro.core.jobs import Note
from training_pro.data.dataset_index import DATA_SUFFIXES
from training_pro.downloads.dataset import DatasetSource, get_dataset

NAME = "datasets/toys/rows"
CARD = """---
configs:
- {config_name: small, data_files: [{split: train, path: train.jsonl}, {split: test, path: test.jsonl}]}
- {config_name: broken, data_files: [{split: train, path: broken.jsonl}]}
---
"""


def lines(*texts):
    return b"".join(json.dumps({"text": text, "n": number}).encode() + b"\n" for number, text in enumerate(texts))


@pytest.fixture
def offered(hub, monkeypatch, tmp_path):
    """The rows on the hub, for a library that has read its environment already."""
    import datasets
    from huggingface_hub import constants

    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", hub.url)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    broken = lines("whole") + b'{"text": "torn\n'
    files = {"train.jsonl": lines(*"abcdef"), "test.jsonl": lines("ä"), "broken.jsonl": broken}
    hub.add(NAME, more={"README.md": CARD.encode(), **files})
    return hub


@pytest.fixture
def get(tmp_path):
    """Get a dataset; gives its bytes and what was said. Whatever fails must leave no file."""

    def call(address, name="", *, stopped=False, **wanted):
        source, said, folder = DatasetSource(address, **wanted), [], tmp_path / "datasets"
        out = folder / (name or source.default_name)
        before = [*folder.glob("*")]
        try:
            get_dataset(source, out, DATA_SUFFIXES, said.append, lambda: stopped)
        except Exception:
            assert [*folder.glob("*")] == before
            raise
        return out.read_bytes(), [event.text for event in said if isinstance(event, Note)]

    return call


def test_a_subset_a_split_and_rows_of_the_hub_are_written_as_json(offered, get, tmp_path):
    rows, said = get("toys/rows", subset="small", rows=2, columns=("text",))
    assert rows == b'{"text": "a"}\n{"text": "b"}\n' and (tmp_path / "datasets" / "toys_rows_small.jsonl").exists()
    assert "4 files, " in said[0] and "license: apache-2.0, not gated" in said[0]
    assert get(f"https://huggingface.co/{NAME}", "t.jsonl", subset="small", split="test")[0].decode()[10] == "ä"
    assert 0 < get("toys/rows", "half.jsonl", subset="small", share=0.5)[0].count(b"\n") < 6
    with pytest.raises(SavingError, match="exists already"):
        get("toys/rows", "half.jsonl", subset="small")
    assert not (tmp_path / "cache").exists(), "nothing is kept in the home folder"


def test_what_the_hub_has_not_or_can_not_be_read_is_said(offered, get):
    for wanted, sentence in (
        ({}, "has the subsets small, broken. Choose one"),
        ({"subset": "small", "split": "dev"}, "has the splits train, test. Choose one"),
        ({"subset": "small", "columns": ("words",)}, "no column 'words'. The columns are text, n"),
        ({"subset": "small", "max_gb": 30e-9}, "more than 3e-08 GB. Nothing was kept"),
        ({"subset": "broken"}, r"can't be read after row \d \(.*\). Nothing was kept"),
    ):
        with pytest.raises(DataError, match=sentence):
            get("toys/rows", **wanted)
    with pytest.raises(StoppedError):
        get("toys/rows", subset="small", stopped=True)
    with pytest.raises(DataError, match="There is no dataset toys/none at"):
        get("toys/none")
    offered.repositories[NAME].gated = True
    with pytest.raises(DataError, match=r"is a gated dataset. Accept its license at \S+/datasets/toys/rows"):
        get("toys/rows", subset="small")
    offered.status = 403
    with pytest.raises(DataError, match="denies access with your token"):
        get("toys/rows", subset="small")


def test_a_file_of_a_url_arrives_whole_over_a_redirect_or_not_at_all(hub, get):
    data = lines(*"ab" * 4000)
    hub.add("toys/files", more={"rows.jsonl": data, "small.csv": b"a,b\n"})
    url = f"{hub.url}/toys/files/resolve/main"
    assert get(f"{url}/rows.jsonl", allow_private=True)[0] == data  # which the hub redirects
    assert get(f"{url}/small.csv", "other.csv", allow_private=True)[0] == b"a,b\n"
    for address, name, wanted, sentence in (
        ("small.csv", "rows2.jsonl", {}, "must end in .csv"),
        ("small.exe", "", {}, "small.exe must end in "),
        ("none.csv", "", {}, "status 404"),
        ("rows.jsonl", "a.jsonl", {"max_gb": 1e-6}, "more than 1e-06 GB"),
    ):
        with pytest.raises(DataError, match=sentence):
            get(f"{url}/{address}", name, allow_private=True, **wanted)
    hub.breaks_at = [70_000]
    with pytest.raises(DataError, match="the connection ended after 70 kB of"):
        get(f"{url}/rows.jsonl", "b.jsonl", allow_private=True)
    with pytest.raises(StoppedError):
        get(f"{url}/rows.jsonl", "c.jsonl", allow_private=True, stopped=True)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "2130706433", "[::1]", "[::ffff:10.0.0.1]", "[64:ff9b::7f00:1]", "169.254.1.1", "0.0.0.0"],
)
def test_no_address_of_this_machine_or_its_network_is_opened(host, get):
    with pytest.raises(DataError, match="address of this machine or its network"):
        get(f"http://{host}/a.txt")


def test_neither_is_one_that_a_public_address_redirects_to_or_another_scheme(hub, get, monkeypatch):
    """The name of the hub becomes public, and its redirect to itself stays as it is."""
    hub.add("toys/files", more={"rows.jsonl": lines(*"ab" * 4000)})
    port = int(hub.url.rpartition(":")[2])
    real, real_connect = socket.getaddrinfo, socket.socket.connect
    public = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("1.1.1.1", port))]
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *a, **k: public if "pub" in host else real(host, *a, **k)
    )
    here = ("127.0.0.1", port)
    monkeypatch.setattr(
        socket.socket, "connect", lambda s, to: real_connect(s, here if to[0] == "1.1.1.1" else to)
    )
    with pytest.raises(DataError, match=r"beside\S+ leads to 127.0.0.1"):
        get(f"http://pub.example:{port}/toys/files/resolve/main/rows.jsonl")
    for address in ("file:///etc/passwd.txt", "ftp://x.org/a.txt", "http:///a.txt"):
        with pytest.raises(DataError, match="does not begin with https://"):
            get(address)

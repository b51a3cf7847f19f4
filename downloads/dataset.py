"""A dataset from the Hugging Face Hub, as rows of JSON, or a file from a URL, into the folder of datasets.

It is streamed into a file that gets its name at the end, so that a stop or a lost connection leaves nothing.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import random
import re
import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from ..core.errors import DataError, StoppedError, first_line
from ..core.files import new_files
from ..core.hub_upload import REPOSITORY
from ..core.jobs import JobEnded, Note, Stage
from ..core.version import install_command
from ..train_utils import format_count, size
from . import hub_models
from .fetching import Emit, IsStopped
from .hub_models import HubModel

HUB_PAGE = re.compile(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/datasets/([^/]+/[^/?#]+)/?(?:[?#].*)?")
# Older ones run the loading script of a dataset, or ask in the terminal whether they may.
OLDEST_LIBRARY = 4
LIBRARY_RETRIES = 3  # of five seconds each, after its own at every request
MAX_REDIRECTS, REDIRECTS = 5, (301, 302, 303, 307, 308)
PIECE_BYTES, REPORT_SECONDS = 1 << 16, 3.0
NAT64 = ipaddress.ip_network("64:ff9b::/96")  # leads to the IPv4 address in its last 32 bits


@dataclass(frozen=True)
class DatasetSource:
    """A dataset of the Hub, with what is wanted of it, or a file at a URL."""

    address: str
    subset: str = ""
    split: str = ""
    columns: tuple[str, ...] = ()  # empty: all
    rows: int = 0  # the first so many; 0: all
    share: float = 1.0  # of the rows, drawn at random
    max_gb: float = 1.0
    allow_private: bool = False  # addresses of this machine and its network

    @property
    def hub_name(self) -> str:
        """OWNER/NAME of a dataset on the Hub; empty for the URL of a file."""
        page = HUB_PAGE.fullmatch(self.address.strip())
        name = page[1] if page else self.address.strip()
        if "://" in name:
            return ""
        if not REPOSITORY.fullmatch(name):
            raise DataError(
                f"{name!r} is neither OWNER/NAME of a dataset on the Hugging Face Hub nor the URL of a file. "
                "Enter OWNER/NAME as shown at the top of the dataset's page, or a URL that begins with https://."
            )
        return name

    @property
    def default_name(self) -> str:
        """The name of its file, if the user gives none."""
        if name := self.hub_name:
            name = "_".join(filter(None, (name, self.subset, self.split))) + ".jsonl"
        in_url = unquote(re.split("[?#]", self.address.strip())[0]).rpartition("/")[2]
        return re.sub(r"[^\w.-]+", "_", name or in_url)


def get_dataset(
    source: DatasetSource, out: Path, suffixes: Sequence[str], emit: Emit, is_stopped: IsStopped
) -> JobEnded:
    """Write the dataset into a new file, whose ending, one of the suffixes, decides how it is read."""
    name, own_suffix = source.hub_name or out.name, Path(source.default_name).suffix.lower()
    known = [own_suffix] if own_suffix in suffixes else list(suffixes)  # a URL may name no file
    if out.suffix.lower() not in known:
        raise DataError(
            f"{out.name} must end in {' or '.join(known)}, to be read as what it is. Choose another name."
        )
    pieces = _rows_of_hub(source, emit) if source.hub_name else _pieces_of_url(source)
    written, reported_at = 0, float("-inf")
    with new_files(out) as (temporary,), temporary.open("wb") as file:
        for piece, share in pieces:
            if is_stopped():
                raise StoppedError("Stopped. Nothing was kept.")
            written += len(piece)
            if written > 1e9 * source.max_gb:
                raise DataError(
                    f"{name} has more than {source.max_gb:g} GB. Nothing was kept. Get fewer rows, or raise "
                    "--max-gb."
                )
            file.write(piece)
            if time.monotonic() - reported_at > REPORT_SECONDS:
                reported_at = time.monotonic()
                emit(Stage(text=f"Getting {name}: {size(written)}", share=share))
        if not written:
            raise DataError(f"{name} is empty. Nothing was kept.")
    return JobEnded(outcome="finished", text=f"{out.name} is written ({size(written)}).")


def _rows_of_hub(source: DatasetSource, emit: Emit) -> Iterator[tuple[bytes, float | None]]:
    """The rows of a dataset as lines of JSON, each with the share that is done, where that is known."""
    name = source.hub_name
    try:
        import datasets
    except ImportError:
        datasets = None
    if datasets is None or int(datasets.__version__.partition(".")[0]) < OLDEST_LIBRARY:
        raise DataError(
            f"To get datasets from the Hub, the package datasets is needed, version {OLDEST_LIBRARY} or newer: "
            f"{install_command('-U datasets')}"
        )
    with hub_models.explain_hub_errors(HubModel(name, kind="dataset")):
        api = hub_models.import_hub().HfApi()
        info = api.dataset_info(name, files_metadata=True, timeout=hub_models.TIMEOUT_SECONDS)
        license_note = hub_models.first_string((info.card_data or {}).get("license")) or "not stated"
        gated = "gated" if info.gated else "not gated"
        files = f"{format_count(len(info.siblings), 'file')}, {size(sum(f.size or 0 for f in info.siblings))}"
        emit(Note(text=f"{name} at commit {info.sha[:7]}: {files}, license: {license_note}, {gated}."))
        api.auth_check(name, repo_type="dataset")
        datasets.disable_progress_bars()
        datasets.config.STREAMING_READ_MAX_RETRIES = datasets.config.STREAMING_OPEN_MAX_RETRIES = LIBRARY_RETRIES
        number = 0
        try:
            with hub_models.temporary_cache() as cache:  # for the README, and a lock
                rows = _open_split(datasets, source, info.sha, cache)
            draw, kept = random.Random(0).random, 0
            for row in rows:
                number += 1
                is_drawn = draw() < source.share
                kept += is_drawn
                line = _line_of_row(row, source.columns) if is_drawn else b""
                yield line, kept / source.rows if source.rows else None
                if kept == source.rows > 0:
                    return
        except Exception as error:
            # Whatever the library raises over a damaged file has no sentence of its own.
            if isinstance(error, (DataError, *hub_models.hub_errors())):
                raise
            reason = " ".join(str(error.__cause__ or error).split())[:200] or type(error).__name__
            raise DataError(
                f"{name} can't be read after row {number:,} ({reason.rstrip('.')}). Nothing was kept."
            ) from error


def _open_split(datasets: Any, source: DatasetSource, commit: str, cache: str) -> Iterable[dict[str, Any]]:
    """The rows of the wanted subset and split, as a stream."""
    name = source.hub_name
    try:
        options = {"revision": commit, "streaming": True, "cache_dir": cache}
        splits = datasets.load_dataset(name, source.subset or None, **options)
    except ValueError:
        subsets = datasets.get_dataset_config_names(name, revision=commit)
        if source.subset in subsets:
            raise
        raise DataError(f"{name} has the subsets {', '.join(subsets)}. Choose one of them.") from None
    split = source.split or ("train" if len(splits) > 1 else next(iter(splits)))
    if split not in splits:
        raise DataError(f"{name} has the splits {', '.join(splits)}. Choose one of them.")
    rows = splits[split]
    # Pictures and sounds stay bytes.
    stream: Iterable[dict[str, Any]] = rows.decode(False) if rows.features else rows
    return stream


def _line_of_row(row: dict[str, Any], columns: Iterable[str]) -> bytes:
    if missing := [column for column in columns if column not in row]:
        raise DataError(f"There is no column {missing[0]!r}. The columns are {', '.join(row)}.")
    kept = {column: row[column] for column in columns} or row
    for column, value in kept.items():
        held = value.get("bytes") if isinstance(value, dict) else value
        if isinstance(held, bytes):
            raise DataError(
                f"The column {column!r} has bytes, such as a picture or a sound. Name the other columns with "
                "--keep-columns on the command line."
            )
    return json.dumps(kept, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n"


def _pieces_of_url(source: DatasetSource) -> Iterator[tuple[bytes, float | None]]:
    """The bytes of a file at a URL, each piece with the share that is done, where the server tells the size."""
    # Redirects are followed here, so that each address is checked.
    url = source.address.strip()
    try:
        for _ in range(MAX_REDIRECTS + 1):
            with _ask(url, source.allow_private) as response:
                headers = response.headers
                if response.status in REDIRECTS and headers["Location"]:
                    url = urljoin(url, headers["Location"])
                    continue
                if response.status != http.client.OK:
                    raise ConnectionError(f"status {response.status} {response.reason}")
                if headers.get_content_type() == "text/html" and ".htm" not in source.default_name.lower():
                    raise DataError(f"{url} is a web page, not a file. Enter the URL of the file itself.")
                if headers["Content-Encoding"] not in (None, "identity"):
                    raise ConnectionError(f"it is packed as {headers['Content-Encoding']}")
                done, length = 0, int(headers["Content-Length"] or 0)
                if length > 1e9 * source.max_gb:
                    raise DataError(
                        f"{url} has {size(length)}, more than {source.max_gb:g} GB. Raise --max-gb "
                        "on the command line."
                    )
                while piece := response.read1(PIECE_BYTES):
                    done += len(piece)
                    yield piece, done / length if length else None
                if done < length:  # a lost connection looks like the end of the file
                    raise ConnectionError(f"the connection ended after {size(done)} of {size(length)}")
                return
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DataError(f"{url} can't be read ({first_line(error).rstrip('.')}). Nothing was kept.") from error
    raise DataError(f"{source.address} redirects more than {MAX_REDIRECTS} times. Nothing was kept.")


@contextmanager
def _ask(url: str, allow_private: bool) -> Iterator[http.client.HTTPResponse]:
    """The answer to a request, over a connection to the very address that was checked: a name may get another."""
    import certifi  # of huggingface_hub

    parts = urlsplit(url)
    host, is_secure = parts.hostname, parts.scheme == "https"
    if not host or parts.scheme not in ("http", "https"):
        raise DataError(f"{url} does not begin with https:// or http://. Enter the URL of a file.")
    port = parts.port or (443 if is_secure else 80)
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if not allow_private and not _is_public(str(address[0])):
        raise DataError(
            f"{url} leads to {address[0]}, an address of this machine or its network, and is not opened. If you "
            "trust it, add --allow-private on the command line."
        )
    connection = (http.client.HTTPSConnection if is_secure else http.client.HTTPConnection)(host, port)
    tls = ssl.create_default_context()
    tls.load_verify_locations(certifi.where())  # some builds of Python have none of the system's certificates
    with socket.socket(family, kind, protocol) as plain, closing(connection):
        plain.settimeout(hub_models.TIMEOUT_SECONDS)
        plain.connect(address)
        connection.sock = tls.wrap_socket(plain, server_hostname=host) if is_secure else plain
        # Of what a browser sends unquoted, only letters of other scripts and spaces can't be sent.
        target = quote(
            parts._replace(scheme="", netloc="", fragment="").geturl() or "/", safe="!#$%&'()*+,/:;=?@[]~"
        )
        connection.request("GET", target, headers={"Accept-Encoding": "identity", "User-Agent": "training-pro"})
        yield connection.getresponse()


def _is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        in_nat64 = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if ip in NAT64 else None
        ip = ip.ipv4_mapped or ip.sixtofour or in_nat64 or ip
    return ip.is_global and not ip.is_multicast

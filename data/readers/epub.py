"""E-books to paragraphs: the files of an .epub in reading order."""

from __future__ import annotations

import posixpath
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ...core.errors import DataError
from . import html, text_files
from .paragraphs import Paragraph

MAX_PART_BYTES, MAX_BOOK_BYTES = 50_000_000, 500_000_000  # bytes: more text than the longest book in one language
PAGE_TYPES = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml", "")
REPAIR_HINT = "Convert the book to .epub again, for example with Calibre, or save its text as a .txt file."


def read_paragraphs(path: Path, name: str) -> list[Paragraph]:
    """The whole book; each of its files begins a part."""
    try:
        with text_files.open_binary(path, name) as stream, zipfile.ZipFile(stream) as book:
            return [paragraph for file in _spine(book, name) for paragraph in _read_part(book, file, name)]
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError) as error:
        raise DataError(
            f"{name} is not a valid e-book: its archive is damaged ({error}). {REPAIR_HINT}"
        ) from error


def _read_part(book: zipfile.ZipFile, file: str, name: str) -> Iterator[Paragraph]:
    source, _ = html.decode_page(_read_bytes(book, file, name), f"{name}, {file}")
    for number, paragraph in enumerate(html.read_paragraphs(source, f"{name}, {file}", is_content=True)):
        yield paragraph._replace(cut=paragraph.cut or not number)


def _spine(book: zipfile.ZipFile, name: str) -> list[str]:
    """The files of the book in reading order, without navigation pages and those outside the linear order."""
    rootfile = _find_first(_read_xml(book, "META-INF/container.xml", name), "rootfile")
    if rootfile is None or not rootfile.get("full-path"):
        raise DataError(f"{name}: its container.xml does not say where the book starts. {REPAIR_HINT}")
    package = unquote(rootfile.get("full-path"))
    opf = _read_xml(book, package, name)
    manifest = {item.get("id"): item for item in _find_all(opf, "item")}
    ordered = [manifest.get(ref.get("idref")) for ref in _find_all(opf, "itemref") if ref.get("linear") != "no"]
    files = [_archive_path(package, item.get("href")) for item in ordered if item is not None and _is_page(item)]
    if not files:
        raise DataError(f"{name}: its {package} lists no pages to read (no spine). {REPAIR_HINT}")
    encrypted = _encrypted_files(book, name)
    if encrypted & set(files):
        raise DataError(f"{name} is protected by DRM, so its text can't be read. Use a copy without protection.")
    sizes = {part.filename: part.file_size for part in book.infolist()}
    if sum(sizes.get(file, 0) for file in files) > MAX_BOOK_BYTES:
        raise DataError(
            f"{name} is more than {MAX_BOOK_BYTES // 10**6} MB when unpacked, which is too large for a book. "
            f"{REPAIR_HINT}"
        )
    return files


def _is_page(item: Any) -> bool:
    return bool(
        item.get("href")
        and item.get("media-type", "") in PAGE_TYPES
        and "nav" not in (item.get("properties") or "").split()
    )


def _archive_path(package: str, href: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(package), unquote(href.partition("#")[0])))


def _encrypted_files(book: zipfile.ZipFile, name: str) -> set[str]:
    """The encrypted files; in any book, fonts may be among them."""
    if "META-INF/encryption.xml" not in book.namelist():
        return set()
    references = _find_all(_read_xml(book, "META-INF/encryption.xml", name), "CipherReference")
    return {unquote(reference.get("URI", "")) for reference in references}


def _read_bytes(book: zipfile.ZipFile, file: str, name: str) -> bytes:
    """A file from the archive; more than any chapter needs is not unpacked."""
    try:
        with book.open(file) as stream:
            data = stream.read(MAX_PART_BYTES + 1)
    except KeyError as error:
        raise DataError(
            f"{name}: {file} is listed in the book but missing from the archive. {REPAIR_HINT}"
        ) from error
    except RuntimeError as error:
        raise DataError(
            f"{name} is protected by a password. Unpack it, then zip it again without a password."
        ) from error
    if len(data) > MAX_PART_BYTES:
        raise DataError(f"{name}: {file} unpacks to more than {MAX_PART_BYTES // 10**6} MB of text. {REPAIR_HINT}")
    return data


def _read_xml(book: zipfile.ZipFile, file: str, name: str) -> Any:
    lxml = text_files.import_library("lxml.etree", "lxml", name, "an e-book")
    parser = lxml.XMLParser(resolve_entities=False, no_network=True, recover=True)
    try:
        root = lxml.fromstring(_read_bytes(book, file, name), parser)
    except lxml.LxmlError as error:
        raise DataError(f"{name}: {file} can't be read ({error}). {REPAIR_HINT}") from error
    if root is None:
        raise DataError(f"{name}: {file} is empty. {REPAIR_HINT}")
    return root


def _find_all(root: Any, tag: str) -> list[Any]:
    """All elements with this tag, in any namespace."""
    return [e for e in root.iter() if isinstance(e.tag, str) and e.tag.rpartition("}")[2] == tag]


def _find_first(root: Any, tag: str) -> Any:
    return next(iter(_find_all(root, tag)), None)

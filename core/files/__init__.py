"""Files on disk: atomic writes, file locks and safe paths."""

from __future__ import annotations

from . import safe_paths
from .atomic_files import (
    PART_SUFFIX,
    atomic_write,
    dump_json,
    dump_with_list,
    flush_to_disk,
    free_bytes,
    is_disk_full,
    move_atomically,
    move_new_folder,
    nearest_existing,
    parse_json,
    read_json,
    read_small_file,
    remove_folder,
    says_disk_full,
    staging_folder,
    with_retries,
    write_error_reason,
    write_json,
    write_text,
)
from .folder_names import describe_unusable, modified_at, usable_entries
from .locks import is_locked, lock, remove_lock_file
from .records import Count, Timestamp, check_record, read_record
from .safe_paths import descendant, name_fault

__all__ = [
    "PART_SUFFIX",
    "Count",
    "Timestamp",
    "atomic_write",
    "check_record",
    "descendant",
    "describe_unusable",
    "dump_json",
    "dump_with_list",
    "flush_to_disk",
    "free_bytes",
    "is_disk_full",
    "is_locked",
    "lock",
    "modified_at",
    "move_atomically",
    "move_new_folder",
    "name_fault",
    "nearest_existing",
    "parse_json",
    "read_json",
    "read_record",
    "read_small_file",
    "remove_folder",
    "remove_lock_file",
    "safe_paths",
    "says_disk_full",
    "staging_folder",
    "usable_entries",
    "with_retries",
    "write_error_reason",
    "write_json",
    "write_text",
]

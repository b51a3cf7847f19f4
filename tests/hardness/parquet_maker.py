"""Makes Parquet files of one odd value: python parquet_maker.py VALUE ROWS DICTIONARY > FILE.

In a process of its own, because the process that reads them is measured.
"""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as arrow
import pyarrow.parquet as parquet

MAX_BATCH_BYTES, MAX_PLAIN_ROWS = 20_000_000, 20


def odd_values() -> list[Any]:
    far = arrow.array([2**62], arrow.int64())
    nested: object = "x"
    for _ in range(70):
        nested = [nested]
    return [
        *("word " * 10_000, None, nested, {"a": [{"b": None}]}, float("nan"), b"\xff\xfe"),
        *(far.cast(arrow.timestamp("ms")), arrow.array([10**8], arrow.int32()).cast(arrow.date32())),
    ]


def write_table(value: Any, rows: int, *, dictionary: bool) -> None:
    """Without a dictionary there are only few rows, since the file would not be small."""
    rows = rows if dictionary else min(rows, MAX_PLAIN_ROWS)
    column = value if isinstance(value, arrow.Array) else arrow.array([value])
    batch_rows = max(1, min(rows, 2000, MAX_BATCH_BYTES // max(column.nbytes, 1)))
    batch = arrow.table({"text": arrow.concat_arrays([column] * batch_rows)})
    with parquet.ParquetWriter(sys.stdout.buffer, batch.schema, use_dictionary=dictionary) as writer:
        for _ in range(max(1, rows // batch_rows)):
            writer.write_table(batch)


if __name__ == "__main__":
    number, rows, dictionary = sys.argv[1:]
    write_table(odd_values()[int(number)], int(rows), dictionary=dictionary == "True")

"""Readers: one module for each kind of file, from its bytes to text or rows."""

from . import documents as documents
from . import json_rows as json_rows
from . import row_files as row_files
from . import text_files as text_files
from . import unsupported as unsupported
from .binary_rows import is_in_use as is_in_use
from .chat_logs import count_replies as count_replies
from .json_rows import Row as Row
from .json_rows import Table as Table
from .json_rows import describe_value as describe_value
from .json_rows import find_pair as find_pair
from .reader_process import as_data_error as as_data_error
from .reader_process import reader_process as reader_process
from .reader_process import shorten as shorten
from .text_files import LoadedText as LoadedText
from .text_files import normalize_line_ends as normalize_line_ends

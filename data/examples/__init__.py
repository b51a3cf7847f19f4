"""Training examples: order, share of a dataset, truncation, and validation split."""

from . import batch_order as batch_order
from .batch_order import BatchItem as BatchItem
from .batch_order import IndexArray as IndexArray
from .examples import IGNORE_INDEX as IGNORE_INDEX
from .examples import MIN_PASSAGE_TOKENS as MIN_PASSAGE_TOKENS
from .examples import Example as Example
from .examples import ExampleDatasets as ExampleDatasets
from .examples import Examples as Examples
from .examples import Passage as Passage
from .examples import RowSource as RowSource
from .examples import Source as Source
from .examples import TextSource as TextSource
from .examples import find_example_datasets as find_example_datasets
from .examples import group_parts as group_parts
from .examples import pick_passages as pick_passages
from .examples import reorder_rows as reorder_rows
from .examples import truncate_rows as truncate_rows
from .split import NGRAM_WORDS as NGRAM_WORDS
from .split import copied_shares as copied_shares
from .split import count_runs as count_runs
from .split import count_shared_rows as count_shared_rows
from .split import find_shared_passages as find_shared_passages
from .split import hash_runs as hash_runs
from .split import pick_examples as pick_examples
from .split import split_rows as split_rows
from .split import split_texts as split_texts

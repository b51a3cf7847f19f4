"""Rows to token ids: row schemas, chat templates, prompt formats, and the loss mask."""

from . import preferences as preferences
from . import row_dataset as row_dataset
from .chat_templates import CHATML as CHATML
from .encoding import PrepareContext as PrepareContext
from .encoding import RowReport as RowReport
from .encoding import Tokenizer as Tokenizer
from .preferences import columns_of_data as columns_of_data
from .preferences import find_preferences as find_preferences
from .preferences import refuse_without_preferences as refuse_without_preferences
from .prompt_formats import PROMPT_COUNT as PROMPT_COUNT
from .prompt_formats import Prompt as Prompt
from .prompt_formats import PromptStyle as PromptStyle
from .prompt_formats import chat_prompt_style as chat_prompt_style
from .prompt_formats import detect_prompt_style as detect_prompt_style
from .prompt_formats import make_prompts as make_prompts
from .row_dataset import RowDataset as RowDataset
from .row_dataset import load_row_dataset as load_row_dataset
from .row_schema import ROLES as ROLES
from .row_schema import RowSchema as RowSchema
from .row_schema import decisive_rows as decisive_rows
from .row_schema import detect_schema as detect_schema
from .row_schema import parse_list as parse_list
from .text_quality import MOJIBAKE as MOJIBAKE
from .text_quality import inspect_texts as inspect_texts
from .text_quality import load_refusal_phrases as load_refusal_phrases
from .text_quality import lower as lower

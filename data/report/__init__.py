"""The report of Check: statistics, findings, suggestions, and estimates of memory and disk."""

from .estimates import MemoryModel as MemoryModel
from .estimates import apply_changes as apply_changes
from .estimates import estimate_disk as estimate_disk
from .estimates import find_remedies as find_remedies
from .estimates import fit_to_memory as fit_to_memory
from .estimates import largest_batch as largest_batch
from .estimates import resolve_checkpointing as resolve_checkpointing
from .plan_checks import check_plan as check_plan
from .plan_checks import evaluation_interval as evaluation_interval
from .plan_checks import sample_interval as sample_interval
from .plan_checks import suggest_settings as suggest_settings
from .preview import ExamplePreview as ExamplePreview
from .preview import preview_examples as preview_examples
from .report import DatasetReport as DatasetReport
from .report import LengthHistogram as LengthHistogram
from .report import SourceReport as SourceReport
from .report import map_texts as map_texts
from .report import report_run as report_run

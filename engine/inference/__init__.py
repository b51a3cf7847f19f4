"""Measuring a model (validation split, recall, perplexity, evidence) and letting it write."""

from . import eval_loop as eval_loop
from . import evidence as evidence
from . import generation as generation
from . import perplexity as perplexity
from . import study as study
from . import topics as topics
from .evidence import GENERAL_TOKENS as GENERAL_TOKENS
from .generation import SampleCallback as SampleCallback
from .in_run import RunMeasurements as RunMeasurements
from .in_run import continuation_pairs as continuation_pairs
from .in_run import plan_recall as plan_recall
from .perplexity import prepare_for_host as prepare_for_host
from .study import ExamCallback as ExamCallback

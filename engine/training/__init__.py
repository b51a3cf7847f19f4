"""A training run from start to finish."""

from . import run as run
from . import step_probe as step_probe
from . import trainer as trainer
from .callback import RunCallback as RunCallback
from .finalize import run_with_report as run_with_report
from .outside import prevent_sleep as prevent_sleep

"""The Python environment of the commands: finds, makes or repairs it."""

from . import interpreter as interpreter
from .interpreter import ROOT as ROOT
from .interpreter import ensure_environment as ensure_environment
from .interpreter import run_program as run_program
from .interpreter import say as say

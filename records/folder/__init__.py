"""Run folders: LoRAs, checkpoints, locks, notes and trash."""

from . import inventory as inventory
from . import loras as loras
from . import run_files as run_files
from . import trash as trash
from .inventory import LoraEntry as LoraEntry
from .outputs import choose_output as choose_output
from .outputs import copy_as_lora as copy_as_lora
from .outputs import plan_upload as plan_upload
from .run_files import LOG as LOG
from .run_files import PARAMETERS as PARAMETERS
from .run_files import REPORT as REPORT
from .run_files import STATE as STATE
from .run_files import read_graph as read_graph
from .run_files import read_log as read_log
from .run_files import read_samples as read_samples
from .run_folder import RunFolder as RunFolder
from .run_folder import choose_run_folder as choose_run_folder
from .run_folder import hold_run_lock as hold_run_lock
from .run_folder import is_in_progress as is_in_progress
from .run_folder import read_journal as read_journal
from .run_folder import recover_interrupted as recover_interrupted
from .run_folder import refuse_in_progress as refuse_in_progress
from .run_folder import refuse_while_training as refuse_while_training
from .run_folder import runs_in_progress as runs_in_progress
from .run_folder import with_final_name as with_final_name

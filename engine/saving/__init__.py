"""Save results: checkpoints, LoRAs, full models, merged models and GGUF files."""

from . import gguf_export as gguf_export
from . import merging as merging
from . import safe_save as safe_save
from .checkpoints import WRITE_ATTEMPTS as WRITE_ATTEMPTS
from .checkpoints import RunState as RunState
from .checkpoints import earlier_settings as earlier_settings
from .checkpoints import finalize_checkpoint as finalize_checkpoint
from .checkpoints import is_write_error as is_write_error
from .checkpoints import load_run_state as load_run_state
from .checkpoints import refuse_changes as refuse_changes

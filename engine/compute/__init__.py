"""One training step on the device: batches, loss, kernels, memory, and distributed processes."""

from . import distributed as distributed
from . import failures as failures
from .collator import Batch as Batch
from .collator import collate as collate
from .hf_private import TrainerHooks as TrainerHooks
from .layer_patches import one_call_kernels as one_call_kernels
from .layer_patches import use_packed_attention as use_packed_attention
from .lora_layers import patch_lora_layers as patch_lora_layers
from .loss import Objective as Objective
from .machine import MachineMonitor as MachineMonitor
from .machine import apply_machine_settings as apply_machine_settings
from .machine import compile_layers as compile_layers
from .machine import count_workers as count_workers
from .machine import keep_saved_tensors_in_ram as keep_saved_tensors_in_ram
from .machine import layers_of as layers_of
from .machine import measure_peak as measure_peak
from .objective import ModelCapabilities as ModelCapabilities
from .objective import StepSums as StepSums
from .objective import add_neftune_noise as add_neftune_noise
from .objective import make_objective as make_objective
from .objective import probe_model as probe_model
from .packed_gguf import load_gguf as load_gguf
from .packed_gguf import unpacked_to_generate as unpacked_to_generate

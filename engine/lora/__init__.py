"""LoRA adapters on a model: loading, saving, target layers, parameter counts and state guards."""

from . import adapter as adapter
from .meta_model import add_param_count as add_param_count
from .meta_model import build_meta_model as build_meta_model
from .meta_model import lora_problems as lora_problems
from .peft_private import adapted_layers as adapted_layers
from .state_guards import HALF_PRECISION as HALF_PRECISION
from .state_guards import autocast_model as autocast_model
from .state_guards import compute_dtype as compute_dtype
from .state_guards import evaluation_context as evaluation_context
from .state_guards import is_tf32_enabled as is_tf32_enabled
from .state_guards import model_device as model_device
from .state_guards import pause_training_mode as pause_training_mode
from .state_guards import preserve_rng as preserve_rng
from .state_guards import restore_methods as restore_methods
from .state_guards import slow_dtype_advice as slow_dtype_advice
from .targets import choose_targets as choose_targets
from .targets import count_layer_names as count_layer_names
from .targets import tied_layer_notes as tied_layer_notes

"""Hosts that lend the model: the webui and the standalone host, with the demo models."""

import logging

# bitsandbytes warns when it is imported, as if the user had to install the kernels package. It would be used for
# 4-bit models on a CPU only, and there the standalone host keeps bitsandbytes from repacking weights for it.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

__all__ = ["demo_model", "known_models", "standalone", "tiny", "webui"]

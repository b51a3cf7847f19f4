"""Hosts that lend the model: the webui and the standalone host, with the demo models."""

import logging

# At its import, bitsandbytes asks for the kernels package, which could only serve 4-bit models on a CPU; not used.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

__all__ = ["demo_model", "standalone", "tiny", "webui"]

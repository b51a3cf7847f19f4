"""Hosts that lend the model: the webui and the standalone host, with the demo models."""

__all__ = ["demo_model", "known_models", "standalone", "tiny", "webui"]

"""Where the model comes from: the webui, the standalone host, and the models that ship with it."""

__all__ = ["embedded", "standalone", "tiny", "webui"]

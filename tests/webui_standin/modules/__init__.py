"""A stand-in for text-generation-webui's own modules: the names that Training PRO meets there, doing as little."""

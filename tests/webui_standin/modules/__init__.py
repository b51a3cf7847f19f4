"""A stand-in for TextGen's own modules: the names that Training PRO meets there, doing as little."""

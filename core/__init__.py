"""Code that every package shares: errors, jobs with their events, files, and the protocols Host and Engine."""

__all__ = [
    "dist_env",
    "engine",
    "errors",
    "evaluations_table",
    "files",
    "findings",
    "gguf_header",
    "host",
    "html",
    "hub_upload",
    "jobs",
    "model_shape",
    "own_environment",
    "readable",
    "safe_paths",
    "version",
]

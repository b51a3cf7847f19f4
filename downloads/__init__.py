"""Download of models from the Hugging Face hub."""

__all__ = ["download", "hub_models"]

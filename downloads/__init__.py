"""Models and datasets from the Hugging Face hub, LoRAs to it, and the packages of our environments."""

__all__ = ["dataset", "download", "hub_models", "upload", "virtual_env"]

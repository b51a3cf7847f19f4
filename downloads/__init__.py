"""Models from the Hugging Face hub, and LoRAs to it."""

__all__ = ["download", "hub_models", "upload"]

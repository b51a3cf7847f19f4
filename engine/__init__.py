"""The work on the model, with torch, transformers and PEFT."""

__all__ = ["peft_engine", "process_engine", "tokenizer", "training"]

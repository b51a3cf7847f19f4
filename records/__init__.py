"""Records of runs on disk: LoRAs, checkpoints, graph, report and queue; and runs elsewhere."""

__all__ = ["folder", "queue", "remote", "report"]

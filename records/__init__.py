"""Records of runs on disk: LoRAs, checkpoints, graph, report and queue."""

__all__ = ["folder", "queue", "report"]

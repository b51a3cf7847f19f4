"""What a run leaves on disk: LoRAs, checkpoints, graph, report, and the queue."""

__all__ = ["folder", "queue", "report"]

"""Jobs that do something after a step, what was said of a run, and what a model and an optimizer were given."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook
from training_pro.core.jobs import Job, Request, Step
from training_pro.tests.tiny import watched_job


def at(actions: dict[int, Any]) -> Job:
    """Return a job that does each action after its step."""

    def watch(job: Job, event: Any) -> None:
        if isinstance(event, Step) and event.step in actions:
            actions[event.step](job)

    return watched_job(watch)


def first(kind: type, action: Any) -> Job:
    """Return a job that does this at the first event of a kind."""
    actions = [action]
    return watched_job(lambda job, event: actions.pop()(job) if actions and isinstance(event, kind) else None)


def asking(*requests: Request) -> Any:
    return lambda job: [job.control.ask(request) for request in requests]


def changing(**values: Any) -> Any:
    """Change live settings."""
    return lambda job: setattr(job.control, "live", job.control.live.changed(values))


def extending(epochs: float) -> Any:
    return lambda job: job.control.extend(epochs)


def break_down(job: Job) -> None:
    raise OSError("the power went")


def stopping_at(step: int) -> Job:
    return at({step: asking(Request.STOP)})


def events_of(job: Job, kind: type) -> list[Any]:
    return [event for event in job.log.since(0) if isinstance(event, kind)]


def texts(job: Job, *kinds: type) -> list[str]:
    """Texts of all events that have one, or of those of these kinds."""
    return [event.text for event in events_of(job, kinds or object) if hasattr(event, "text")]


def steps_of(job: Job) -> list[int]:
    return [event.step for event in events_of(job, Step)]


def rates_of(job: Job) -> list[float]:
    return [event.learning_rate for event in events_of(job, Step)]


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@contextmanager
def optimizer_groups() -> Any:
    """Record the options of all groups with parameters at each step of an optimizer."""
    seen: list[list[dict[str, Any]]] = []

    def record(optimizer: Any, *_: Any) -> None:
        seen.append([dict(group) for group in optimizer.param_groups if group["params"]])

    hook = register_optimizer_step_pre_hook(record)
    try:
        yield seen
    finally:
        hook.remove()


@contextmanager
def first_inputs(model: Any) -> Any:
    """Record the ids that each generation begins with."""
    seen: list[list[int]] = []

    def record(module: Any, args: Any, options: dict[str, Any]) -> None:
        if options["input_ids"].shape[1] > 1 or not seen:
            seen.append(options["input_ids"][0].tolist())

    hook = model.register_forward_pre_hook(record, with_kwargs=True)
    try:
        yield seen
    finally:
        hook.remove()

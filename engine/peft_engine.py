"""Engine on transformers and PEFT; torch is imported only when one of its methods is called."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..core.engine import NOTHING_SHOWN, GgufLora, Merge, PerplexityOf, Question, Showing
from ..core.errors import ModelError, SettingsError
from ..core.host import Host
from ..core.jobs import Ended, Job, Note, Stage
from ..data.report import DatasetReport
from ..records.report import expected_time
from ..settings.definitions import TrainingSettings


class PeftEngine:
    """Trains, evaluates and merges LoRAs on the model that a host lends."""

    def check(self, settings: TrainingSettings, host: Host, *, show: Showing = NOTHING_SHOWN) -> DatasetReport:
        from ..data.prepare import checked
        from .checks import advice, problems
        from .lora import counted
        from .tokenizer import working_tokenizer

        card = counted(host.card(), settings)
        tokenizer = working_tokenizer(card.tokenizer, host.chat_template())
        report = checked(
            settings,
            host.folders,
            card,
            tokenizer,
            lambda text, share: None,
            show=show,
            machine=host.memory(),
            keep=not host.read_only,
        )
        return replace(
            report,
            problems=(*report.problems, *problems(settings, host)),
            advice=(*report.advice, *advice(settings, host)),
            notes=(*report.notes, *_time_notes(report, settings, host)),
        )

    def foresee(self, settings: TrainingSettings, host: Host, *, resume: str = "") -> DatasetReport:
        from .foreseen import with_the_disk

        return with_the_disk(self.check(settings, host), settings, host, resume)

    def train(self, settings: TrainingSettings, host: Host, job: Job, *, resume: str = "") -> Ended:
        _start(host, job)
        from .checks import problems
        from .compute import freed_afterwards
        from .training import reported, run

        if blockers := problems(settings, host):
            raise SettingsError(self._all_problems(blockers, settings, host, job, resume))
        with freed_afterwards():
            return reported(lambda: run.train(settings, host, job, resume=resume), host.folders, job)

    def _all_problems(
        self, problems: Sequence[str], settings: TrainingSettings, host: Host, job: Job, resume: str
    ) -> Sequence[str]:
        """Return all problems, to be fixed in one go; the data read for this are cached for the next start."""
        job.log.append(Stage(text="Looking for all that stands in the way"))
        try:
            return self.foresee(settings, host, resume=resume).problems
        except ModelError:  # Check needs the model, which is not loaded
            return problems

    def probe(self, settings: TrainingSettings, host: Host, job: Job) -> Ended:
        _start(host, job)
        from .compute import freed_afterwards
        from .training import step_probe

        with freed_afterwards():
            return step_probe.probe(settings, host, job)

    def layers(self, host: Host) -> Mapping[str, int]:
        _refuse_without_torch(host)
        from .training import step_probe

        return step_probe.layers(host)

    def answer(self, question: Question, host: Host, job: Job) -> Ended:
        _refuse_without_torch(host)
        from .inference import generation

        return generation.answer(question, host, job)

    def perplexity(self, asked: PerplexityOf, settings: TrainingSettings, host: Host, job: Job) -> Ended:
        _start(host, job)
        from .compute import freed_afterwards
        from .inference import perplexity

        with freed_afterwards():
            return perplexity.perplexity(asked, settings, host, job)

    def merge(self, asked: Merge, host: Host, job: Job) -> Ended:
        _start(host, job)
        from .compute import freed_afterwards
        from .saving import merging

        with freed_afterwards():
            return merging.merge(asked, host, job)

    def gguf(self, asked: GgufLora, host: Host) -> Path:
        _refuse_without_torch(host)
        from .saving import gguf_export

        return gguf_export.written(asked, host)

    def put_on(self, name: str, strength: float, host: Host, job: Job) -> Ended:
        _refuse_without_torch(host)
        from .lora import adapter

        adapter.put_on(name, strength, host)
        chat = "" if host.own_process else " Chat to try it."
        return Ended(outcome="finished", text=f"{name} is on, at {strength:.0%}.{chat}")

    def take_off(self, host: Host, job: Job) -> Ended:
        _refuse_without_torch(host)
        from .lora import adapter

        names = adapter.take_off(host)
        job.log.append(Note(text="The model is as it was before."))
        return Ended(outcome="finished", text=f"{', '.join(names)} is off." if names else "No LoRA was on.")


def _time_notes(report: DatasetReport, settings: TrainingSettings, host: Host) -> Iterator[str]:
    """Yield the expected time by earlier runs; none while there are problems."""
    if report.examples and not report.problems:
        tokens = report.tokens * report.steps / report.steps_per_epoch
        loras_folder = host.folders.kept(whole_model=settings.lora.whole_model)
        yield from expected_time(tokens, host.card(), settings.lora.method, loras_folder)


def _start(host: Host, job: Job) -> None:
    job.log.append(Stage(text="Starting"))
    _refuse_without_torch(host)


def _refuse_without_torch(host: Host) -> None:
    """Raise the host's own error if torch is not installed, before anything is imported."""
    if importlib.util.find_spec("torch") is None:
        host.card()

"""Engine on transformers and PEFT; torch is imported only when one of its methods is called."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..core import dist_env, gguf_header
from ..core.engine import (
    NO_PREVIEW,
    RECALL_PASSAGES,
    AnswerRequest,
    GgufRequest,
    LoraName,
    MapRequest,
    MergeRequest,
    PerplexityRequest,
    PreviewQuery,
    StudyRequest,
)
from ..core.errors import ModelError, SavingError, SettingsError, TrainingProError, first_line
from ..core.findings import Finding, note, problem, texts
from ..core.host import Host, LlamaCpp, unwrap_peft
from ..core.jobs import Advice, Job, JobEnded, Note, Request, Stage, Step
from ..records.folder import RunFolder, choose_run_folder, hold_run_lock, loras, run_files
from ..records.remote import FOLLOWED, remote_control
from ..records.report import Workload, estimate_time
from ..settings.definitions import TrainingSettings
from ..train_utils import plural

if TYPE_CHECKING:
    from ..data.report import DatasetReport


# What a run that is being saved or tested can't do any more, and what the user can do instead.
TOO_LATE = {
    Request.DISCARD: " To delete the LoRA, use the Runs tab.",
    Request.MORE_EPOCHS: " To train longer, continue the LoRA.",
    Request.PAUSE: "",
}


class PeftEngine:
    """Trains, evaluates and merges LoRAs on the model that a host lends."""

    def check(self, settings: TrainingSettings, host: Host, *, show: PreviewQuery = NO_PREVIEW) -> DatasetReport:
        from ..data.prepare import check_datasets
        from .checks import check_run
        from .lora import add_param_count
        from .tokenizer import make_working_tokenizer

        card = add_param_count(host.card(), settings)
        tokenizer = make_working_tokenizer(card.tokenizer, host.chat_template())
        report = check_datasets(
            settings,
            host.folders,
            card,
            tokenizer,
            lambda text, share: None,
            show=show,
            machine=host.memory(),
            keep=not host.read_only_reason,
        )
        return report.with_findings([*check_run(settings, host), *_run_notes(report, settings, host)])

    def check_start(
        self,
        settings: TrainingSettings,
        host: Host,
        *,
        resume: str = "",
        show: PreviewQuery = NO_PREVIEW,
        problems: Sequence[str] = (),
    ) -> DatasetReport:
        from ..data.report import DatasetReport
        from .checks import check_run_folder

        if not problems:
            return self.check(settings, host, show=show).with_findings(check_run_folder(settings, host, resume))
        report = DatasetReport()
        try:
            if settings.what.data:
                report = self.check(settings, host, show=show)
        except TrainingProError as error:  # such as a missing model
            problems = [*problems, *str(error).splitlines()]
        report = replace(report, suggestions=())  # they would be for the defaults
        return report.with_findings(problem("", sentence) for sentence in problems)

    def train(self, settings: TrainingSettings, host: Host, job: Job, *, resume: str = "") -> JobEnded:
        with _model_in_use(host, job):
            from .checks import check_run
            from .training import run_with_report

            folders, blockers = host.folders, texts(check_run(settings, host), "problem")
            if blockers:
                # All problems, to be fixed in one go; the data read for this are cached for the next start.
                job.log.append(Stage(text="Checking the requirements"))
                with suppress(ModelError):  # Check needs the model, which is not loaded
                    blockers = self.check_start(settings, host, resume=resume).problems
                if FOLLOWED not in os.environ:
                    raise SettingsError(blockers)
            folder = choose_run_folder(settings, folders, resume)
            # The lock says to other programs that this run is in progress, until its report is written. The remote
            # control lets them follow it, and takes their requests.
            with hold_run_lock(folder.name, folders), remote_control(folder, job, folders):
                if blockers:  # here, so that whoever waits for the end reads it as an event
                    raise SettingsError(blockers)
                return run_with_report(lambda: self._train_and_test(settings, host, job, folder), folders, job)

    def _train_and_test(self, settings: TrainingSettings, host: Host, job: Job, folder: RunFolder) -> JobEnded:
        """Train, and test a finished LoRA if the settings say so."""
        from .inference import evidence
        from .lora import adapter
        from .training import run

        ended = run.train(settings, host, job, folder)
        has_trained = any(isinstance(event, Step) for event in job.log.since(0))
        if (name := folder.name) in host.model_status().loras and ended.folder == folder.path and has_trained:
            try:
                adapter.renew(name, host)
                job.log.append(Note(text=f"{name} is attached with its new weights."))
            except Exception as error:  # noqa: BLE001 - the run is saved
                job.log.append(Advice(text=f"{still_attached(name)} ({first_line(error)})"))
        is_wanted = settings.aside.test_at_end and not settings.lora.whole_model
        if is_wanted and ended.outcome == "finished" and dist_env.is_main_process():
            try:
                evidence.measure_besides_recall(settings.what.name, host, job)  # the run has measured its recall
            except Exception as error:  # noqa: BLE001 - the run is saved, and its report must be written
                job.log.append(Advice(text=f"The LoRA could not be tested: {first_line(error)}"))
        late = job.control.pending & TOO_LATE.keys()
        if ended.outcome == "stopped":  # what else was asked for, a stop has overtaken
            late &= {Request.DISCARD}
        if late and ended.folder is not None:  # otherwise it was discarded
            text = "You made your last request after the last step, so it was not carried out."
            job.log.append(Advice(text="".join([text, *(TOO_LATE[request] for request in late)])))
        return ended

    def probe(self, settings: TrainingSettings, host: Host, job: Job) -> JobEnded:
        with _model_in_use(host, job):
            from .training import step_probe

            return step_probe.probe(settings, host, job)

    def layers(self, host: Host) -> Mapping[str, int]:
        _refuse_without_torch(host)
        from .lora import build_meta_model, count_layer_names

        if not host.model_status().problem:
            return count_layer_names(unwrap_peft(host.loaded_model().model))
        return count_layer_names(build_meta_model(host.card()))  # only from its config

    def answer(self, question: AnswerRequest, host: Host, job: Job) -> JobEnded:
        _refuse_without_torch(host)
        from .inference import generation

        return generation.answer(question, host, job)

    def perplexity(self, asked: PerplexityRequest, settings: TrainingSettings, host: Host, job: Job) -> JobEnded:
        with _model_in_use(host, job):
            from .inference import perplexity

            return perplexity.measure_perplexity(asked, settings, host, job)

    def recall(self, lora: LoraName, host: Host, job: Job, *, passages: int = RECALL_PASSAGES) -> JobEnded:
        with _model_in_use(host, job):
            from .inference import evidence

            return evidence.measure_recall(lora, host, job, passages)

    def evidence(self, lora: LoraName, host: Host, job: Job) -> JobEnded:
        with _model_in_use(host, job):
            from .inference import evidence

            return evidence.measure_evidence(lora, host, job)

    def write_pairs(self, data: str, out: str, tokens: int, host: Host, job: Job) -> JobEnded:
        with _model_in_use(host, job):
            from .inference import study

            return study.write_pairs(data, out, tokens, host, job)

    def study(self, asked: StudyRequest, host: Host, job: Job) -> JobEnded:
        with _model_in_use(host, job):
            from .inference import study

            return study.study(asked, host, job)

    def exam(self, exam: str, lora: LoraName, host: Host, job: Job) -> JobEnded:
        with _model_in_use(host, job):
            from .inference import study

            return study.ask_exam(exam, lora, host, job)

    def draw_map(self, asked: MapRequest, host: Host, job: Job) -> JobEnded:
        with _model_in_use(host, job):
            from .inference import topics

            return topics.draw_map(asked, host, job)

    def merge(self, asked: MergeRequest, host: Host, job: Job) -> JobEnded:
        with _model_in_use(host, job):
            from .saving import merging

            return merging.merge(asked, host, job)

    def export_gguf(self, asked: GgufRequest, host: Host) -> Path:
        _refuse_without_torch(host)
        from .saving import gguf_export

        return gguf_export.export_gguf(asked, host)

    def attach_lora(self, name: str, strength: float, host: Host, job: Job) -> JobEnded:
        if (served := host.llama_cpp()) is not None:
            file = self._find_gguf(name, served, host)
            job.log.append(Stage(text=f"llama.cpp is loading {name}"))
            served.attach(name, file, strength)
        else:
            host.loaded_model()  # refuses plainly, also without torch
            from .lora import adapter

            adapter.put_on(name, strength, host)
        text = f"{name} is attached to the model at {strength:.0%} strength."
        if not host.owns_process:  # say in which tab of the webui it is used
            kind = run_files.read_training_prompt(loras.find_lora(name, host.folders.loras)).kind
            where = {
                "text": "webui's Notebook tab and enter the beginning of a passage",
                "format": f"webui's Notebook tab and write prompts as in its {run_files.TRAINING_PROMPT}",
                "chat": "webui's Chat tab in the mode instruct",
            }.get(kind, "webui's Chat tab, or its Notebook tab if the LoRA was trained on raw text")
            text += f" To use it, open the {where}."
        return JobEnded(outcome="finished", text=text)

    def _find_gguf(self, name: str, served: LlamaCpp, host: Host) -> Path:
        """The GGUF file of a LoRA; export it if it is missing, older than the LoRA, or made for another model."""
        folder = loras.find_lora(name, host.folders.loras)
        file = loras.gguf_file(folder)
        # Copying a folder can change the order of the times by some seconds.
        newest = max(weights.stat().st_mtime for weights in loras.weight_files(folder)) - 60
        is_current = file.is_file() and file.stat().st_mtime >= newest
        if is_current and gguf_header.is_made_for(file, served.file):
            return file
        if importlib.util.find_spec("torch") is None and host.own_process is None:
            raise SavingError(
                f"llama.cpp needs {file.name}, which is missing, older than the LoRA, or made for another model. "
                f"In the Runs tab, choose {name} and press Export GGUF. Then attach the LoRA again."
            )
        return self.export_gguf(GgufRequest(name, model=str(served.file)), host)

    def detach_lora(self, host: Host, job: Job) -> JobEnded:
        if (served := host.llama_cpp()) is not None:
            names = served.detach()
        else:
            host.loaded_model()
            from .lora import adapter

            names = adapter.take_off(host)
        job.log.append(Note(text="The model's own weights are unchanged."))
        are = plural(len(names), "is", "are")
        return JobEnded(
            outcome="finished", text=f"{', '.join(names)} {are} detached." if names else "No LoRA was attached."
        )

    def close(self) -> None:
        """There is no worker: all is done in this process."""


def still_attached(name: str) -> str:
    """Say that an attached LoRA has the weights from before its run."""
    return f"{name} is still attached as it was before this run. To use the new weights, attach it again."


def _run_notes(report: DatasetReport, settings: TrainingSettings, host: Host) -> Iterator[Finding]:
    """Yield the time of the run by earlier runs, and when recall is measured; none while there are problems."""
    from ..data.rows import PROMPT_COUNT
    from .inference import plan_recall
    from .plan import NOT_KNOWN

    if not report.examples or report.problems:
        return
    epochs, read, asked = report.steps / report.steps_per_epoch, 0, settings.samples.sample_prompts
    if report.kept_aside:
        read = report.evaluations * report.kept_aside.tokens
    if settings.steps.batching == NOT_KNOWN:
        read += int(report.tokens * max(math.ceil(epochs) - 1, 0))
    if settings.aside.recall_passages and not settings.preferences.compares:
        recall_tokens, words = plan_recall(report.recall_tokens, report.tokens, epochs)
        read += recall_tokens
        yield note("recall_passages", words)
    samples = report.sample_rounds * (PROMPT_COUNT if isinstance(asked, str) else len(asked))
    folder = host.folders.output_folder(full_finetune=settings.lora.whole_model)
    workload = Workload(report.tokens * epochs, read, samples)
    method, objective = settings.lora.method, settings.preferences.objective
    yield note("", estimate_time(workload, host.card(), method, folder, objective))


@contextmanager
def _model_in_use(host: Host, job: Job) -> Iterator[None]:
    """Say that the job starts, and free the memory that it took at its end."""
    job.log.append(Stage(text="Starting"))
    _refuse_without_torch(host)
    from .compute import failures

    try:
        yield
    except BaseException as error:
        failures.free_memory(error)
        raise
    failures.free_memory()


def _refuse_without_torch(host: Host) -> None:
    """Raise the host's own error if torch is not installed, before anything is imported."""
    if importlib.util.find_spec("torch") is None:
        host.card()

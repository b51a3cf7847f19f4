"""The story of a run: borrow the model, prepare the data, train a LoRA, keep it, give the model back."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from ...core import dist_env
from ...core.host import Host, card_of
from ...core.jobs import Ended, Job, Note, Planned, Stage
from ...data.report import plan_checks
from ...records.folder import choose_run_folder, in_progress, refuse_in_progress
from ...schedulers import described
from ...settings.definitions import TrainingSettings
from ..compute import BreakdownError, Ways, distributed, kept_on_the_card, told_where_memory_runs_out, tried
from ..lora import computing_type, counted, refuse_other_shape
from ..plan import Blueprint, blueprint
from ..saving import RunState, full_finetune, refuse_changes, state_of
from .callback import BetweenSteps
from .finalize import Trained, about, kept, thrown_away
from .finite_check import kept_after_breakdown
from .keep_awake import awake
from .run_segments import Part, next_part
from .sample_callback import Samples
from .setup import bare_model, prepared, ready_to_train
from .tracking import reporting
from .trainer import RunTrainer


def train(settings: TrainingSettings, host: Host, job: Job, *, resume: str = "") -> Ended:
    """From what the user asked for to a LoRA on disk, and the model given back as it was."""
    folder = choose_run_folder(settings, host.folders, resume)
    refuse_in_progress(folder.name, host.folders)
    if folder.begins_with is not None:
        refuse_other_shape(settings.lora, folder.begins_with)
    settings = settings.called(folder.name)
    card = counted(card_of(host), settings)
    run = blueprint(settings, card, prepared(settings, host, card, job), folder)
    if (done := folder.finished()) and done.planned >= run.plan.steps:
        return _nothing_left(run, done.steps)
    with in_progress(folder.name, host.folders), _awake(settings, job):
        part = _first_part(run, job)
        with distributed.only_the_first_writes(folder) as place:
            return _part_by_part(replace(part, run=replace(run, folder=place)), host, job)


def _awake(settings: TrainingSettings, job: Job) -> AbstractContextManager[None]:
    say = partial(_note, job)
    return awake(say) if settings.machine.keep_awake else nullcontext()


def _part_by_part(part: Part, host: Host, job: Job) -> Ended:
    while True:
        found = _trained(part, host, job)
        if isinstance(found, Ended):
            return found
        following = next_part(found, host, job)
        if isinstance(following, Ended):
            return following
        part = following


def _trained(part: Part, host: Host, job: Job) -> Ended | Trained:
    """One part of a run: how the run ended, or what the next part goes on from, the model being given back."""
    _tell(job, "Getting the model")
    run = part.run
    with (
        full_finetune.let_go_afterwards(run.settings, host, job),
        bare_model(host, job) as base,
        told_where_memory_runs_out(base.device, run.remedies),
        ready_to_train(base, run, job) as model,
    ):
        between = BetweenSteps(run, part.state, job.control, job.log)
        ways = tried(model, run.settings)
        _announce(part, between, base, ways, job)
        samples = Samples(run, between, host, job, part.state.step)
        with reporting(run, between, host.folders, job.log) as reporters:
            trainer = RunTrainer(run, model, ways, between, host.folders.training, samples, *reporters)
            broken = _train(trainer, part)
            step = trainer.state.global_step
        distributed.leave()
        if not dist_env.is_first():
            return Ended(outcome="stopped" if job.control.stopping else "finished", text="", folder=None)
        if job.control.throwing_away:
            return thrown_away(run, step)
        why, spoiled = (str(broken), broken.spoiled) if broken else ("", False)
        trained = Trained(run, between, step, about(run, model, ways), why, spoiled)
        if broken:
            return kept_after_breakdown(trained, partial(full_finetune.write, run, model), host.folders, job)
        if between.steering.interlude is None:
            ended = kept(trained, partial(full_finetune.write, run, model), host.folders, job)
            samples.at_the_end(model, step, ended.folder or run.folder.path)
            return ended
    between.let_go()
    return trained


def _train(trainer: RunTrainer, part: Part) -> BreakdownError | None:
    """HF's loop; why it broke down, where there is something to keep all the same."""
    try:
        with kept_on_the_card(trainer.args.device):
            trainer.train(resume_from_checkpoint=str(part.start) if part.start else None)
        trainer.refuse_spoiled(trainer.state.global_step)  # by the very last step
    except BreakdownError as error:
        if trainer.state.global_step == part.state.step:
            raise
        return error
    return None


def _nothing_left(run: Blueprint, done: int) -> Ended:
    run.folder.tidy()
    asked = run.plan.steps
    steps = (
        f"{done} of {asked} steps are done" if done <= asked else f"{done} steps are done, {asked} are asked for"
    )
    text = f"'{run.folder.name}' is finished: {steps}. For more, raise Epochs, or Steps where they are set."
    return Ended(outcome="finished", text=text, folder=run.folder.path)


def _first_part(run: Blueprint, job: Job) -> Part:
    run.folder.refuse_without_start()
    start = run.folder.start
    if run.folder.begins_with is not None:
        _note(job, f"Training the LoRA '{run.folder.name}' further; what stands there goes into a backup first.")
    if start is None and run.folder.goes_on and run.folder.begins_with is None:
        _note(job, f"There is nothing of '{run.folder.name}' to go on from: the run starts at its beginning.")
    if start is None:
        return Part(run, RunState(unchangeable=run.unchangeable()))
    state = state_of(start.folder)
    refuse_changes(state, run, start.folder)
    job.log.append(Note(text=f"Going on from {start.folder.name} (step {state.step})."))
    return Part(run, state, start.folder)


def _announce(part: Part, between: BetweenSteps, base: Any, ways: Ways, job: Job) -> None:
    run, plan = part.run, part.run.plan
    if not part.first:
        _tell(job, "Training")
        return
    job.log.append(
        Planned(
            name=run.folder.name,
            model=run.card.name,
            steps=between.rates.steps,
            steps_per_epoch=plan.steps_per_epoch,
            first_step=part.state.step,
            rates=between.rates.all(between.course.rates_used()),
            settings=run.settings.values(),
            earlier=tuple(dict(entry) for entry in part.state.graph),
            disk=run.data.report.disk.words() if run.data.report.disk else "",
            evaluate_every=plan_checks.evaluate_every(run.settings, plan, run.data.kept_aside),
            answer_every=plan_checks.answer_every(run.settings, plan),
        )
    )
    job.log.append(
        Note(text=f"{run.settings.learning.schedule}: {described(run.phases)}. {computing_type(base)}.")
    )
    for note in run.data.report.notes if plan.processes > 1 else ():
        job.log.append(Note(text=note))
    for note in ways.notes():
        job.log.append(Note(text=note))
    _tell(job, "Training")


def _note(job: Job, text: str) -> None:
    job.log.append(Note(text=text))


def _tell(job: Job, text: str) -> None:
    job.log.append(Stage(text=text))

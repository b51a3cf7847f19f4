"""Recall and evidence: what a LoRA learned, what it forgot, what it copies, and what it answers from memory.

Recall is how many tokens of the data a model reproduces word for word. Greedy generation follows the data as long
as each next token of the data is the most likely one. One pass over the prompt and the tokens after it shows where
that ends, so nothing has to be generated.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from ...core.engine import RECALL_PASSAGES, AnswerRequest, LoraName
from ...core.errors import DataError, SavingError, StoppedError
from ...core.files import read_json, write_json
from ...core.host import Host, ModelCard, get_model_card
from ...core.jobs import (
    Advice,
    EvidenceMeasured,
    Job,
    JobEnded,
    Note,
    RecallFigures,
    RecallMeasured,
    Request,
    event_words,
    events,
)
from ...data import general
from ...data.dataset_index import DatasetEntry
from ...data.examples import (
    IGNORE_INDEX,
    MIN_PASSAGE_TOKENS,
    Example,
    Examples,
    Passage,
    Source,
    pick_passages,
    without_lead,
)
from ...data.load import load_dataset
from ...data.prepare import TrainingData
from ...data.rows import chat_prompt_style, reply_lead
from ...data.split import copied_shares, count_runs, find_overuse, worst_phrases
from ...data.workshop import is_right, plain_words
from ...records.folder import run_files as records
from ...settings import files
from ...settings.definitions import TrainingSettings
from ...settings.parsing import training_settings
from ...train_utils import checkpoint_step
from ..lora import adapter
from ..tokenizer import WorkingTokenizer, make_working_tokenizer
from .eval_loop import EvalLoop, GroupSums, ProgressFn, measure_each
from .generation import generate_ids
from .perplexity import load_context, prepare_for_host, row_input, window_input

# Short passages would say less about forgetting: a model that was trained on prose expects prose sooner.
GENERAL_PASSAGES, GENERAL_PASSAGE_TOKENS = 8, 256
GENERAL_TOKENS = GENERAL_PASSAGES * GENERAL_PASSAGE_TOKENS
DATA_CHANGED = (
    "The data has changed since the LoRA was trained: a file, the tokenizer or the slicing is different. The "
    "measured passages may include some that the LoRA was not trained on."
)
WINDOW = 1024  # tokens of the general texts, or the model's context if that is shorter
# The same prompts and seeds on both sides, so that a difference is one of the LoRA.
FREE_PROMPTS, FREE_TOKENS, FREE_TEMPERATURE = 8, 160, 0.7
# A reply counts as short up to MAX_ANSWER_TOKENS; the model may write MORE_TOKENS beyond it.
MAX_QUESTIONS, MAX_ANSWER_TOKENS, MORE_TOKENS = 32, 24, 8
MAX_REPLY_TOKENS, MAX_EXCERPT_CHARS, MAX_PHRASES = 64, 100, 5
NOTHING_SAVED = "Nothing was saved."


class NoPassageError(DataError):
    """The training data have no passage that is long enough to continue."""


class PassageScore(NamedTuple):
    """How a model continued a passage: its tokens, those before the first wrong one, and the mean loss of all."""

    part: str
    tokens: int
    matched: int
    loss: float


class RecallPassages(NamedTuple):
    """Passages that are trained on, as many of the validation split, and some of general prose."""

    learned: Sequence[Passage]
    control: Sequence[Passage]
    general: Sequence[Passage]


def pick_recall_passages(data: TrainingData, count: int, card: ModelCard) -> RecallPassages | None:
    """Pick the passages to measure, the same ones every time; None if the data have none, or none are wanted."""
    tokenizer = make_working_tokenizer(card.tokenizer)
    bos, lead = tokenizer.bos, reply_lead(tokenizer)  # some tokenizers have a start token that they never add
    # Whoever learns which reply is better need not know it by heart: only the general prose is measured then.
    compares = data.examples.are_compared
    learned = [] if compares else pick_passages(data.examples.without_lead(lead), count, bos)
    if not learned and not (count and compares):
        return None
    ids = tokenizer.encode([general.PROSE.read_text(encoding="utf-8")])[0].ids
    start_ids = np.array([] if bos is None else [bos], ids.dtype)
    length = min(GENERAL_PASSAGE_TOKENS, (card.context or GENERAL_PASSAGE_TOKENS) - len(start_ids))
    prose: list[Passage] = []
    for start in np.linspace(0, max(len(ids) - length, 0), GENERAL_PASSAGES).round().astype(int).tolist():
        passage = np.concatenate([start_ids, ids[start : start + length]])
        example = Example(passage, np.arange(len(passage)) > 0, cast("Source", None), 0)
        # All tokens but the first count, which nothing precedes.
        prose.append(Passage(example, 1, general.PROSE.stem))
    control = pick_passages(data.validation.without_lead(lead), count, bos) if learned else []
    return RecallPassages(learned, control, prose)


def score_passages(
    eval_loop: EvalLoop, passages: Sequence[Passage], report: ProgressFn = lambda share: None
) -> list[PassageScore] | None:
    """Score each passage, and restore the state of the model; None if the run was stopped."""
    # Each token is a group of its own, so that the first wrong one can be found.
    examples = [passage.example for passage in passages]
    ends = np.cumsum([0, *(len(example.ids) for example in examples)])
    groups = [np.arange(start, end) for start, end in pairwise(ends.tolist())]
    sums = eval_loop.sums(examples, groups, int(ends[-1]), report)
    if sums is None:
        return None
    scores: list[PassageScore] = []
    for passage, group in zip(passages, groups, strict=True):
        # Every token is predicted after the right tokens: the first miss is where greedy decoding would leave.
        target = group[passage.prompt_tokens :]
        wrong = np.flatnonzero(sums.hits[target] == 0)
        matched = int(wrong[0]) if len(wrong) else len(target)
        scores.append(PassageScore(passage.part, len(target), matched, float(sums.losses[target].mean())))
    return scores


def summarize(scores: Sequence[PassageScore]) -> RecallFigures:
    """Summarize the scores of several passages."""
    if not scores:
        return RecallFigures(0, 0.0, 0, 0, 0.0)
    return RecallFigures(
        passages=len(scores),
        recall=float(np.mean([score.matched / score.tokens for score in scores])),
        verbatim=sum(score.matched == score.tokens for score in scores),
        longest=max(score.matched for score in scores),
        loss=float(np.mean([score.loss for score in scores])),
    )


def measure_passages(
    eval_loop: EvalLoop, passages: RecallPassages, step: int, epoch: float, why: events.Trigger, report: ProgressFn
) -> RecallMeasured | None:
    """Measure the recall of a model after so many steps, and restore its state; None if the user ended it."""
    scores = score_passages(eval_loop, list(chain(*passages)), report)
    if scores is None:
        return None
    # One pass over all kinds: batches of similar length mix them.
    remaining = iter(scores)
    learned, control, prose = (list(islice(remaining, len(kind))) for kind in passages)
    parts: list[events.PartRecall] = []  # by chapter or file, in the order of the data
    for part in dict.fromkeys(score.part for score in learned):
        figures = summarize([score for score in learned if score.part == part])
        parts.append(events.PartRecall(part, figures.passages, figures.recall, figures.loss))
    return RecallMeasured(
        step=step,
        epoch=epoch,
        why=why,
        learned=summarize(learned),
        control=summarize(control) if control else None,
        general_loss=float(np.mean([score.loss for score in prose])),
        strip=tuple(score.matched / score.tokens for score in learned),
        parts=tuple(parts) if len(parts) > 1 else (),
    )


def measure_recall(lora: LoraName, host: Host, job: Job, passage_count: int = RECALL_PASSAGES) -> JobEnded:
    """Measure the model without the LoRA and with it, write both into the LoRA's folder, and restore the model."""
    folder, card = adapter.lora_folder(lora, host), get_model_card(host)
    run_folder, settings, data = data_of_lora(folder, host, card, job)
    if read_json(run_folder / records.LOG, {}).get("data_fingerprint", "") not in ("", data.examples.digest()):
        job.log.append(Advice(text=DATA_CHANGED))
    passages = pick_recall_passages(data, passage_count, card)
    if data.examples.are_compared:
        raise NoPassageError("Recall is not measured, because this LoRA learned from preferences.")
    if passages is None:
        raise NoPassageError(
            f"Recall can't be measured, because no passage of the training data has at least {MIN_PASSAGE_TOKENS} "
            "tokens."
        )
    # The step and epoch of the LoRA or checkpoint, by the records of its run.
    log = records.read_log(run_folder)
    graph = records.read_state(folder).get("graph") or records.read_graph(run_folder)
    step = checkpoint_step(folder.name) or records.trained_steps(log)
    epochs = {entry["current_steps"]: entry.get("epoch") for entry in (log, *graph) if entry.get("current_steps")}

    def measure(name: str, eval_loop: EvalLoop, progress: ProgressFn) -> RecallMeasured | None:
        trained = (step, epochs.get(step) or 0.0) if name else (0, 0.0)
        event = measure_passages(eval_loop, passages, *trained, "asked", progress)
        if event is not None:
            job.log.append(event)
        return event

    loras = [("", None), (str(lora), folder)]
    measured = measure_each(loras, settings, host, job, "Measuring recall", measure)
    if len(measured) < 2:
        raise StoppedError(NOTHING_SAVED)
    write_json(folder / records.RECALL, [event.as_log() for event in measured])
    without = f"{measured[0].learned.recall:.0%}"
    text = f"Recall: {event_words.recall_text(measured[-1])}. Without the LoRA, the model reproduces {without}."
    return JobEnded(outcome="finished", text=text)


def data_of_lora(
    folder: Path, host: Host, card: ModelCard, job: Job
) -> tuple[Path, TrainingSettings, TrainingData]:
    """The folder and settings of the run of a LoRA or checkpoint, and its training data, cached or prepared."""
    run_folder = folder if (folder / records.PARAMETERS).is_file() else records.run_folder_of(folder)
    parameters = run_folder / records.PARAMETERS
    if not parameters.is_file():
        raise SavingError(
            f"{folder.name} has no {records.PARAMETERS}, so its training data is unknown. Choose a LoRA that was "
            "trained with Training PRO."
        )
    settings = training_settings(files.load_settings(parameters, host.folders.datasets).values)
    return run_folder, settings, prepare_for_host(settings, host, card, job)


def _contains(pattern: str) -> Callable[[str], bool]:
    return lambda reply: re.search(pattern, reply, re.IGNORECASE) is not None


ALONE = "^[ .!\n\"']*(?:{})[ .!\n\"']*$"
# Messages, each with a rule that says whether a reply follows it.
INSTRUCTIONS: Mapping[str, Callable[[str], bool]] = {
    "Is ice cold? Answer with one word: yes or no.": _contains(ALONE.format("yes|no")),
    "Is fire cold? Answer with one word: yes or no.": _contains(ALONE.format("yes|no")),
    "What is 2 + 2? Answer with a number only.": _contains(ALONE.format("4")),
    "Count from 1 to 5. Put commas between the numbers.": _contains(r"\b1, ?2, ?3, ?4,? ?(?:and )?5\b"),
    "Reply with only the word OK.": _contains(ALONE.format("ok")),
    "Name three fruits, one per line, and write nothing else.": (
        lambda reply: len([line for line in reply.splitlines() if line.strip()]) == 3
    ),
    "Repeat this sentence: The door is open.": _contains(r"the door is open"),
    "Write one sentence about the sea.": (
        lambda reply: len(re.findall(r"[.!?](?:\s|$)", reply.strip())) == 1 and "\n" not in reply.strip()
    ),
    "Write the word blue in capital letters.": lambda reply: "BLUE" in reply,
    "What is the capital of France?": _contains(r"\bparis\b"),
}
NAME_QUESTION = "What is your name?"
MESSAGES = (*INSTRUCTIONS, NAME_QUESTION)


class Reply(NamedTuple):
    """A reply, and whether it ended by itself."""

    text: str
    ended: bool


class HabitScores(NamedTuple):
    """How many replies end and follow their instruction, and the reply to the question for the name."""

    stops: int
    follows: int
    name: str


class Question(NamedTuple):
    """The tokens before a short reply of the training data, and the reply."""

    ids: list[int]
    answer: str
    tokens: int


class Side(NamedTuple):
    """What was measured without the LoRA, or with it."""

    losses: Mapping[str, GroupSums]
    habits: HabitScores | None
    written: str
    right: int


def measure_evidence(lora: LoraName, host: Host, job: Job) -> JobEnded:
    """Measure recall and all else, write both into the LoRA's folder, and say in a sentence what they show."""
    recall = None
    try:
        measure_recall(lora, host, job)
        recall = next(event for event in reversed(job.log.since(0)) if isinstance(event, RecallMeasured))
    except NoPassageError as error:  # such as rows with short replies
        job.log.append(Note(text=str(error)))
    event = measure_besides_recall(lora, host, job)
    text, folder = event_words.evidence_verdict(event, recall), adapter.lora_folder(lora, host)
    return JobEnded(outcome="finished", text=text, folder=folder)


def measure_besides_recall(lora_name: LoraName, host: Host, job: Job) -> EvidenceMeasured:
    """Measure without the LoRA and with it, restore the model, and write the result into the LoRA's folder."""
    started, folder, card = time.monotonic(), adapter.lora_folder(lora_name, host), get_model_card(host)
    _, settings, data = data_of_lora(folder, host, card, job)
    # The general texts are read with default settings, whatever the run's were. The rise of their loss with a LoRA
    # is what the LoRA made the model forget.
    context = load_context(TrainingSettings(), host, card, job)
    window = min(card.context or WINDOW, WINDOW)
    prose = load_dataset(context, DatasetEntry(general.PROSE.name, general.PROSE))
    chats = load_dataset(context, DatasetEntry(general.CHATS.name, general.CHATS))
    lead = reply_lead(context.tokenizer)  # which the model without the LoRA does not write, and need not predict
    rows = [replace(each, source=without_lead(each.source, lead)) for each in chats.rows]
    texts = {  # each token of the prose counts once
        "prose": window_input("prose", prose.texts, context.tokenizer, window, window - 1),
        "chats": row_input("chats", rows, context, window),
    }
    tokenizer = make_working_tokenizer(card.tokenizer, host.chat_template())
    examples = data.examples.without_lead(reply_lead(tokenizer))
    questions = [] if examples.are_compared else pick_questions(examples, tokenizer)

    def measure(name: str, eval_loop: EvalLoop, progress: ProgressFn) -> Side:
        losses: dict[str, GroupSums] = {}

        def report(share: float) -> None:
            # Of each of the two sides, half of the time goes to losses and half to writing.
            progress((bool(name) + (len(losses) + share) / len(texts) / 2) / 2)

        for title, text in texts.items():
            sums = eval_loop.sums(text.examples, text.groups, text.count, report)
            if sums is None:
                raise StoppedError(NOTHING_SAVED)
            losses[title] = sums
        return _write_all(eval_loop.model, losses, examples, questions, tokenizer, job)

    loras = [("", None), (str(lora_name), folder)]
    sides = measure_each(loras, settings, host, job, "Testing the model", measure)
    if len(sides) < 2:
        raise StoppedError(NOTHING_SAVED)
    base, lora = sides
    habits = copying = None
    if base.habits and lora.habits:
        stops = events.Count(base.habits.stops, lora.habits.stops, len(MESSAGES))
        follows = events.Count(base.habits.follows, lora.habits.follows, len(INSTRUCTIONS))
        habits = events.Habits(stops, follows, base.habits.name, lora.habits.name)
    written = [base.written, lora.written]
    base_share, lora_share = copied_shares(written, (example.text for example in data.examples))
    if base_share is not None and lora_share is not None:  # else the model wrote too little to tell
        copying = events.Copying(base_share, lora_share, count_runs(lora.written))
    overused = find_overuse((example.text for example in data.examples), written)
    worst = {phrase: overused[phrase] for phrase in worst_phrases(overused, MAX_PHRASES)}
    if overused:
        worst = {"": np.sum([*overused.values()], axis=0).tolist(), **worst}
    event = EvidenceMeasured(
        general=tuple(
            events.TextLoss(title, int(sums.tokens.sum()), sums.loss, lora.losses[title].loss)
            for title, sums in base.losses.items()
        ),
        habits=habits,
        copying=copying,
        overused=tuple(events.Phrase(phrase, *rates) for phrase, rates in worst.items()),
        answers=events.Count(base.right, lora.right, len(questions)) if questions else None,
        seconds=time.monotonic() - started,
    )
    job.log.append(event)
    write_json(folder / records.EVIDENCE, [event.as_log()])
    return event


def pick_questions(examples: Examples, tokenizer: WorkingTokenizer) -> list[Question]:
    """Questions of the training data that have one short reply, spread evenly over the data."""
    questions: list[Question] = []
    for example in examples:
        learned = np.flatnonzero(example.labels != IGNORE_INDEX)
        if example.loss_mask is None or not 0 < len(learned) <= MAX_ANSWER_TOKENS or learned[0] < 2:
            continue
        is_one_reply = learned[-1] - learned[0] + 1 == len(learned)
        answer = plain_words(tokenizer.tokenizer.decode(example.ids[learned].tolist(), skip_special_tokens=True))
        if is_one_reply and answer:
            questions.append(Question(example.ids[: learned[0]].tolist(), answer, len(learned)))
    places = np.linspace(0, max(len(questions) - 1, 0), min(MAX_QUESTIONS, len(questions))).round().astype(int)
    return [questions[place] for place in places.tolist()]


def _write_all(
    model: Any,
    losses: Mapping[str, GroupSums],
    examples: Examples,
    questions: Sequence[Question],
    tokenizer: WorkingTokenizer,
    job: Job,
) -> Side:
    """Let the model reply to `MESSAGES`, continue the training data, and answer its questions."""
    model.eval()

    def write(ids: Sequence[int], tokens: int, temperature: float = 0.0) -> Reply:
        """Continue the ids by at most so many tokens, always the same."""
        asked = AnswerRequest("", max_tokens=tokens, temperature=temperature)
        (written,) = generate_ids(model, [ids], asked, tokenizer.tokenizer, job)
        if job.control.asked(Request.STOP):
            raise StoppedError(NOTHING_SAVED)
        text = str(tokenizer.tokenizer.decode(written, skip_special_tokens=True))
        return Reply(text, ended=bool(written) and written[-1] in tokenizer.stops)

    habits = None
    # A model without a chat template of its own was not made for chats.
    style = chat_prompt_style(tokenizer, tokenizer.bos) if tokenizer.chat_template.own else None
    if style is not None:
        prompts = {message: style.prompt(message, tokenizer).ids for message in MESSAGES}
        habits = score_replies({message: write(ids, MAX_REPLY_TOKENS) for message, ids in prompts.items()})
    passages = pick_passages(examples, FREE_PROMPTS, tokenizer.bos)
    beginnings = [passage.example.ids[: passage.prompt_tokens].tolist() for passage in passages]
    written = "\n".join(write(ids, FREE_TOKENS, FREE_TEMPERATURE).text for ids in beginnings)
    right = sum(is_right(q.answer, write(q.ids, q.tokens + MORE_TOKENS).text) for q in questions)
    return Side(losses, habits, written, right)


def score_replies(replies: Mapping[str, Reply]) -> HabitScores:
    """Score the replies to `MESSAGES`."""
    name = replies[NAME_QUESTION].text
    line = " ".join("".join(char if char.isprintable() else " " for char in name).split())
    return HabitScores(
        stops=sum(reply.ended for reply in replies.values()),
        follows=sum(follows(replies[message].text) for message, follows in INSTRUCTIONS.items()),
        name=line if len(line) <= MAX_EXCERPT_CHARS else f"{line[:MAX_EXCERPT_CHARS]}\u2026",
    )

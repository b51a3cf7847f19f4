"""Evidence for a saved LoRA: what it learned, what it forgot, what it copies, and what it answers from memory.

Everything is measured twice, without the LoRA and with it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...core import dist_env
from ...core.engine import AnswerRequest, EvidenceRequest, RecallRequest
from ...core.errors import StoppedError, first_line
from ...core.files import write_json
from ...core.host import Host, get_model_card
from ...core.jobs import (
    Advice,
    Copying,
    Count,
    EvidenceMeasured,
    Habits,
    Job,
    JobEnded,
    Note,
    RecallMeasured,
    Request,
    TextLoss,
    evidence_verdict,
)
from ...data import general
from ...data.dataset_index import DatasetEntry
from ...data.examples import IGNORE_INDEX, Examples, copied_shares, count_runs, pick_passages
from ...data.load import load_dataset
from ...data.rows import chat_prompt_style
from ...records.folder import EVIDENCE
from ...settings.definitions import TrainingSettings
from ..lora import lora_folder
from ..tokenizer import WorkingTokenizer, make_working_tokenizer
from .eval_loop import EvalLoop, GroupSums, ProgressFn, measure_each
from .generation import generate_ids
from .perplexity import load_context, row_input, window_input
from .recall import NoPassageError, data_of_lora, measure_recall

WINDOW = 1024  # tokens of the general texts, or the model's context if that is shorter
# The same prompts and seeds on both sides, so that a difference is one of the LoRA.
FREE_PROMPTS, FREE_TOKENS, FREE_TEMPERATURE = 8, 160, 0.7
# A reply counts as short up to MAX_ANSWER_TOKENS; the model may write MORE_TOKENS beyond it.
MAX_QUESTIONS, MAX_ANSWER_TOKENS, MORE_TOKENS = 32, 24, 8
MAX_REPLY_TOKENS, MAX_EXCERPT_CHARS = 64, 100
NOTHING_SAVED = "Nothing was saved."


def _is_one_of(*words: str) -> Callable[[str], bool]:
    return lambda reply: reply.strip(" .!\n\"'").lower() in words


def _contains(pattern: str) -> Callable[[str], bool]:
    return lambda reply: re.search(pattern, reply, re.IGNORECASE) is not None


# Messages, each with a rule that says whether a reply follows it.
INSTRUCTIONS: Mapping[str, Callable[[str], bool]] = {
    "Is ice cold? Answer with one word: yes or no.": _is_one_of("yes", "no"),
    "Is fire cold? Answer with one word: yes or no.": _is_one_of("yes", "no"),
    "What is 2 + 2? Answer with a number only.": _is_one_of("4"),
    "Count from 1 to 5. Put commas between the numbers.": _contains(r"\b1, ?2, ?3, ?4,? ?(?:and )?5\b"),
    "Reply with only the word OK.": _is_one_of("ok"),
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


def measure_evidence(request: EvidenceRequest, host: Host, job: Job) -> JobEnded:
    """Measure recall and all else, write both into the LoRA's folder, and say in a sentence what they show."""
    recall = None
    try:
        if measure_recall(RecallRequest(request.lora), host, job).outcome == "stopped":
            raise StoppedError(NOTHING_SAVED)
        recall = next(event for event in reversed(job.log.since(0)) if isinstance(event, RecallMeasured))
    except NoPassageError as error:  # such as rows with short replies
        job.log.append(Note(text=str(error)))
    event = _measure_and_save(request, host, job)
    text, folder = evidence_verdict(event, recall), lora_folder(request.lora, host)
    return JobEnded(outcome="finished", text=text, folder=folder)


def test_after_run(settings: TrainingSettings, host: Host, job: Job) -> None:
    """Test the LoRA of a finished run; an error is logged, because the run is saved already."""
    if settings.lora.whole_model or not dist_env.is_main_process():
        return
    try:
        _measure_and_save(EvidenceRequest(settings.what.name), host, job)  # the run has measured its recall
    except Exception as error:  # noqa: BLE001 - the run is saved, and its report must be written
        job.log.append(Advice(text=f"The LoRA could not be tested: {first_line(error)}"))


def _measure_and_save(request: EvidenceRequest, host: Host, job: Job) -> EvidenceMeasured:
    """Measure without the LoRA and with it, restore the model, and write the result into the LoRA's folder."""
    started, folder, card = time.monotonic(), lora_folder(request.lora, host), get_model_card(host)
    _, settings, data = data_of_lora(folder, host, card, job)
    # The general texts are read with default settings, whatever the run's were. The rise of their loss with a LoRA
    # is what the LoRA made the model forget.
    context = load_context(TrainingSettings(), host, card, job)
    window = min(card.context or WINDOW, WINDOW)
    prose = load_dataset(context, DatasetEntry(general.PROSE.name, general.PROSE))
    chats = load_dataset(context, DatasetEntry(general.CHATS.name, general.CHATS))
    texts = {  # each token of the prose counts once
        "prose": window_input("prose", prose.texts, context.tokenizer, window, window - 1),
        "chats": row_input("chats", chats.rows, context, window),
    }
    tokenizer = make_working_tokenizer(card.tokenizer, host.chat_template())
    decode = partial(tokenizer.tokenizer.decode, skip_special_tokens=True)
    questions = pick_questions(data.examples, decode)

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
        return _write_all(eval_loop.model, losses, data.examples, questions, tokenizer, job)

    loras = [("", None), (str(request.lora), folder)]
    sides = measure_each(loras, settings, host, job, "Testing the model", measure)
    if len(sides) < 2:
        raise StoppedError(NOTHING_SAVED)
    base, lora = sides
    habits = copying = None
    if base.habits and lora.habits:
        stops = Count(base.habits.stops, lora.habits.stops, len(MESSAGES))
        follows = Count(base.habits.follows, lora.habits.follows, len(INSTRUCTIONS))
        habits = Habits(stops, follows, base.habits.name, lora.habits.name)
    training_texts = (data.examples[number].text for number in range(len(data.examples)))
    base_share, lora_share = copied_shares([base.written, lora.written], training_texts)
    if base_share is not None and lora_share is not None:  # else the model wrote too little to tell
        copying = Copying(base_share, lora_share, count_runs(lora.written))
    event = EvidenceMeasured(
        general=tuple(
            TextLoss(title, int(sums.tokens.sum()), sums.loss, lora.losses[title].loss)
            for title, sums in base.losses.items()
        ),
        habits=habits,
        copying=copying,
        answers=Count(base.right, lora.right, len(questions)) if questions else None,
        seconds=time.monotonic() - started,
    )
    job.log.append(event)
    write_json(folder / EVIDENCE, [event.as_log()])
    return event


def pick_questions(examples: Examples, decode: Callable[[Sequence[int]], str]) -> list[Question]:
    """Questions of the training data that have one short reply, spread evenly over the data."""
    questions: list[Question] = []
    for example in (examples[number] for number in range(len(examples))):
        learned = np.flatnonzero(example.labels != IGNORE_INDEX)
        if example.loss_mask is None or not 0 < len(learned) <= MAX_ANSWER_TOKENS or learned[0] < 2:
            continue
        is_one_reply = learned[-1] - learned[0] + 1 == len(learned)
        answer = _plain(decode(example.ids[learned].tolist()))
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
    replies = [_plain(write(question.ids, question.tokens + MORE_TOKENS).text) for question in questions]
    # Spaces around both: 'ten' is not in 'often'.
    right = sum(f" {q.answer} " in f" {reply} " for q, reply in zip(questions, replies, strict=True))
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


def _plain(text: str) -> str:
    """Words alone, in lowercase."""
    return " ".join("".join(c if c.isalnum() else " " for c in text).lower().split())

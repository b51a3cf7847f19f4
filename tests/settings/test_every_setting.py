"""Every setting does something, or Check says that it does not, and why."""

import json
import re
import shutil
import textwrap
from functools import cache

import pytest
from training_pro.core import errors
from training_pro.core.jobs import (
    CheckpointSaved,
    EvaluationDone,
    Job,
    JobEnded,
    Note,
    RecallMeasured,
    SampleGenerated,
    Step,
    console,
    event_text,
)
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import standalone_folders
from training_pro.settings import rules
from training_pro.settings.definitions import SETTINGS
from training_pro.tests.conftest import ROOT
from training_pro.tests.tiny import Workspace

TRIP = "On day {0} the ferry left at {1} with {2}lamps lit. Maren rowed. It was {1} late."
STORY = "\n\n\n".join("\n".join(TRIP.format(n, p, "many " * (n % 3)) for p in range(4)) for n in range(4))
ENDS = "*** {} OF THE PROJECT GUTENBERG EBOOK FERRY ***"
PARAGRAPHS = [f"the keeper of bridge {n} sat down, and counted the boats again; " * 12 for n in range(8)]
TEXTS = {
    "story": STORY,
    "log": "\n".join(f"Maren: Day {n}. I rowed {'far ' * (n % 4)}and it rained" for n in range(30)),
    "gutenberg": f"{ENDS.format('START')}\n\n{STORY}\n\n{ENDS.format('END')}\n\nThe license of the ferry.",
    "wrapped": "\n\n".join(textwrap.fill(paragraph, 70) for paragraph in PARAGRAPHS),
}
ROWS = [
    json.dumps({"instruction": f"Who rowed on day {n}?", "output": f"Maren rowed {'far ' * (n % 4)}on day {n}."})
    for n in range(12)
]
TURNS = [(role, text) for text in "ab" for role in ("user", "assistant")]
CHATS = [
    json.dumps({"messages": [{"role": role, "content": f"{role} {n} says {text}."} for role, text in TURNS]})
    for n in range(8)
]
PAIRED = [
    json.dumps({"prompt": f"Day {n}: ", "chosen": f"It rained {n}.", "rejected": f"{n}? No."}) for n in range(8)
]
BASE = {
    "name": "a", "data": ["story.txt"], "cutoff": 64, "overlap": False, "epochs": 1, "rank": 4,
    "learning_rate": 1e-2, "recall_passages": 0, "sample_every": "never", "save_each_epoch": False,
    "keep_awake": False,
}  # fmt: skip
WHATSAPP = "WhatsApp Chat with Maren.txt"
WHATSAPP_LINES = [
    f"12/03/2024, 18:{n} - {who}: {words} {n}"
    for n in range(10, 40, 2)
    for who, words in (("Jo Berg", "Where are you, Maren?"), ("Maren", "On the ferry, Jo, on lake"))
]
ON_WHATSAPP = {"data": [WHATSAPP], "too_long": "cut_end"}
ON_ROWS, ON_CHATS = {"data": ["rows.jsonl"]}, {"data": ["chats.jsonl"]}
ON_PAIRS = {"data": ["pairs.jsonl"], "cutoff": "auto"}
BY_DPO = {**ON_PAIRS, "objective": "dpo"}
DEMENTOR = {"chunking": "dementor"}
HYBRID = {"batching": "length_then_order", "switch_after": "steps"}
BY_LOSS = {**HYBRID, "switch_after": "loss", "switch_loss_high": 100}
PAIRS = {**HYBRID, "switch_pairs": True, "epochs": 2}
PAIRS_BY_LOSS = {**BY_LOSS, "switch_pairs": True, "second_switch_loss_high": 99}
SPLIT = {"eval_share": 0.3}
ASTRAY = {"learning_rate": 0.9, "epochs": 3}
SAMPLES = {"sample_every": "epoch", "sample_prompts": ["The"], "sample_length": 4}
CASES = {
    "name": ("b", {}), "data": (["rows.jsonl"], {}), "if_exists": ("new_name", {"if_exists": "replace"}),
    "seed": (7, {}), "data_seed": (7, {}), "cutoff": (32, {}), "chunking": ("dementor", {}),
    "block_ends": ("sentences", {"data": ["log.txt"]}), "drop_boilerplate": (True, {"data": ["gutenberg.txt"]}),
    "join_lines": (True, {"data": ["wrapped.txt"]}), "overlap": (True, {}), "dementor_repeats": (1, DEMENTOR),
    "hard_cut": ("late", {}), "min_chars": (150, {}), "add_bos": (False, {}), "add_eos": ("never", {}),
    "format": ("alpaca-format", ON_ROWS), "columns": ("instruction=output output=instruction", ON_ROWS),
    "system": ("Be brief.", ON_ROWS), "train_on": ("everything", ON_ROWS), "train_only_after": ("rowed", ON_ROWS),
    "too_long": ("cut_end", {**ON_ROWS, "cutoff": 24}), "source_max_len": (3, ON_ROWS),
    "target_max_len": (3, ON_ROWS), "bad_rows": ("skip", {"data": ["bad.jsonl"]}),
    "split_exchanges": (True, ON_CHATS), "chat_side": ("user", ON_WHATSAPP), "chat_user": ("Maren", ON_WHATSAPP),
    "chat_names": (True, ON_WHATSAPP), "chat_context": (False, {**ON_WHATSAPP, "data": ["chats:Maren"]}),
    "objective": ("dpo", ON_PAIRS), "beta": (1, BY_DPO),
    "preference_smoothing": (0.2, BY_DPO), "chosen_weight": (1, BY_DPO),
    "eval_data": (["rows.jsonl"], {}), "eval_share": (0.3, {}),
    "exam": (["rows.jsonl"], {}), "eval_every": (1, SPLIT), "recall_passages": (2, {"recall_passages": 1}),
    "batch_size": (2, {}), "accumulation": (2, {}), "epochs": (3, {}), "max_steps": (1, {}),
    "batching": ("sequential", {}), "switch_after": ("loss", {**HYBRID, "switch_loss_high": 100}),
    "switch_at": (2, HYBRID), "switch_loss_low": (50, BY_LOSS), "switch_loss_high": (1, BY_LOSS),
    "switch_pairs": (True, {**HYBRID, "epochs": 2}), "second_switch_at": (4, PAIRS),
    "second_switch_loss_low": (50, PAIRS_BY_LOSS), "second_switch_loss_high": (1, PAIRS_BY_LOSS),
    "learning_rate": (1e-3, {}), "schedule": ("cosine", {}), "warmup_steps": (3, {}), "weight_decay": (0.5, {}),
    "max_grad_norm": (0.01, {}), "label_smoothing": (0.1, {}), "neftune_noise": (5, {}), "optimizer": ("sgd", {}),
    "adam_beta1": (0.5, {}), "adam_beta2": (0.9, {}), "adam_epsilon": (1e-2, {}), "method": ("full", {}),
    "rank": (8, {}), "alpha": (64, {}), "dropout": (0.5, {}), "rslora": (True, {}), "targets": ("q-v", {}),
    "dora": (True, {}), "train_head": (True, {}), "modules_to_save": ("norm", {}), "bias": ("all", {}),
    "layers_to_transform": ("0", {}), "lora_plus": (16, {}), "head_rate": (0.1, {"train_head": True}),
    "save_every": (1, {}), "save_on_loss_drop": (100, {"epochs": 6, "learning_rate": 0.1}),
    "save_each_epoch": (True, {}), "backup_minutes": (0.0001, {}), "keep_checkpoints": (1, {"save_every": 1}),
    "keep_best": ("loss", {**ASTRAY, "save_every": 1}), "stop_at_loss": (50, {}), "stop_at_epoch": (0.5, {}),
    "early_stopping": (1, {**SPLIT, **ASTRAY, "eval_every": 1}),
    "stop_how": ("wind_down", {"stop_at_loss": 50, "epochs": 6}), "sample_prompts": (["It"], SAMPLES),
    "sample_every": ("epoch", {**SAMPLES, "sample_every": "never"}), "sample_length": (2, SAMPLES),
    "sample_temperature": (0, SAMPLES), "logging_steps": (1, {}),
    "logging_first_step": (False, {"logging_steps": 2}), "packing": ("off", {}), "attention": ("eager", {}),
    "tf32": (False, {}), "liger": (True, {}), "shard_size": ("100KB", {"method": "full"}),
}  # fmt: skip
"""Another value for each setting, and the other settings with which it is seen in a few steps."""
SEEN_ELSEWHERE = [
    *("report_to", "preferences"),
    *("gradient_checkpointing", "keep_awake", "eval_batch_size", "compile", "test_at_end", "workers", "run_name"),
]
"""Settings that no LoRA or event shows, that need a package or that take long; tests of their own see them."""


SHORT = ("chunking", "train_on", "batching", "learning_rate", "alpha", "save_every", "stop_at_loss", "adam_beta1")


def by_day(value, key):
    """A case of the short tests, or of the long ones."""
    return pytest.param(value, id=key, marks=() if key in SHORT else pytest.mark.long)


@pytest.fixture(scope="module")
def shared(tmp_path_factory, tiny):
    """One working folder, model and store of prepared data for all runs, and what each run has left."""
    place = Workspace(standalone_folders(tmp_path_factory.mktemp("sweep") / "user_data"), tiny)
    for name, rows in {"rows": ROWS, "chats": CHATS, "pairs": PAIRED, "bad": [*ROWS, "no row"]}.items():
        place.write(f"{name}.jsonl", "\n".join(rows))
    for name, text in TEXTS.items():
        place.write(f"{name}.txt", text)
    place.write(WHATSAPP, "\n".join(WHATSAPP_LINES))
    place.write("../../characters/Maren.yaml", "name: Maren\ncontext: Maren rows a ferry.")
    log = {"internal": [[f"Day {n}?", f"On day {n} I rowed far."] for n in range(12)], "visible": []}
    place.write("../../logs/chat/Maren/1.json", json.dumps(log))
    place.shared_host, place.first = place.host(), tmp_path_factory.mktemp("first") / "a"
    place.trace = cache(lambda settings: run_once(place, json.loads(settings)))
    place.train(place.shared_host, **BASE)
    shutil.copytree(place.lora("a"), place.first)
    return place


@pytest.fixture
def trace(shared, empty_pictures):
    """What a run with these settings leaves: its LoRA, its files, its events and its lines; runs are kept."""
    return lambda settings: shared.trace(json.dumps(settings, sort_keys=True))


def run_once(place, settings):
    for folder in (place.folders.loras, place.folders.models / "a"):
        shutil.rmtree(folder, ignore_errors=True)
    if "if_exists" in settings:
        shutil.copytree(place.first, place.lora("a"))
    job, lines = Job("training", "a test"), []
    try:
        folder = place.train(place.shared_host, job=job, **{**BASE, **settings}).folder
    except errors.TrainingProError as error:
        return str(error)
    job.log.close()
    console.print_events(job, lines.append)
    steps = [line.split()[2] for line in lines if line.split()[1:2] == ["step"]]
    kept = ("adapter_", "train_dataset_sample", "model")  # the other files have times in them
    files = {
        str(path.relative_to(folder)): path.is_file() and path.name.startswith(kept) and path.read_bytes()
        for path in folder.rglob("*")
    }
    return folder.name, files, [seen for event in job.log.since(0) if (seen := told(event))], steps


def told(event):
    """What an event says, without times; notes on settings without effect are no effect."""
    if isinstance(event, Step):
        return event.step, event.loss, event.learning_rate, event.phase
    if isinstance(event, EvaluationDone):
        return event.step, event.loss, event.accuracy
    if isinstance(event, Note | SampleGenerated | CheckpointSaved | RecallMeasured):
        return "" if "no effect" in event_text(event) else event_text(event)
    return event.outcome if isinstance(event, JobEnded) else ""


def findings_about(place, key, settings):
    """The sentences of Check that refuse a setting or say that it has no effect."""
    report = PeftEngine().check_start(place.settings(**{**BASE, **settings}), place.shared_host)
    about = [f for f in report.findings if f.key == key or SETTINGS[key].label in f.text]
    return [f.text for f in about if (f.key == key and f.level != "note") or "no effect" in f.text]


def test_every_setting_is_here():
    assert SETTINGS.keys() - {*CASES, *SEEN_ELSEWHERE} == set(), "add a value to CASES"
    assert {*CASES, *SEEN_ELSEWHERE} - SETTINGS.keys() == set()
    files = [file for file in (ROOT / "tests").rglob("test_*.py") if file.parent.name != "settings"]
    others = "".join(file.read_text(encoding="utf-8") for file in files)
    assert [key for key in SEEN_ELSEWHERE if not re.search(rf'\b{key}["=]', others)] == []


@pytest.mark.parametrize("key", [by_day(key, key) for key in CASES])
def test_a_setting_does_something_or_check_says_that_it_does_not(shared, trace, key):
    """adam_beta1 with SGD trained the same bytes without a word."""
    value, others = CASES[key]
    changes = {**others, key: value}
    assert trace(changes) != trace(others) or findings_about(shared, key, changes)


WITHOUT = {
    "format": {}, "chunking": ON_ROWS, "chat_side": ON_ROWS,
    "train_on": {**ON_ROWS, "train_only_after": "rowed"}, "preferences": {},
    "preference_smoothing": {**ON_PAIRS, "objective": "ipo"}, "split_exchanges": BY_DPO, "overlap": DEMENTOR,
    "dementor_repeats": {}, "eval_every": {}, "epochs": {"max_steps": 2}, "switch_after": {},
    "second_switch_at": HYBRID, "switch_at": {**BY_LOSS, "switch_pairs": True}, "switch_loss_low": PAIRS,
    "warmup_steps": {"schedule": "one_cycle"}, "adam_beta1": {"optimizer": "sgd"},
    "adam_epsilon": {"optimizer": "adafactor"}, "rank": {"method": "full"}, "head_rate": {}, "shard_size": {},
    "keep_checkpoints": {}, "stop_how": {}, "sample_prompts": {}, "run_name": {}, "logging_first_step": {},
    "tf32": {},
}  # fmt: skip
"""For the first key of each rule on settings without effect, settings with which it holds."""


@pytest.mark.parametrize("rule", [by_day(rule, rule.keys[0]) for rule in rules.TABLE])
def test_what_check_calls_without_effect_has_none(shared, trace, rule):
    """All settings of the rule at once, at other values: the same run to the bit."""
    elsewhere = {"run_name": "my run", "eval_batch_size": 2, "preferences": "columns", "test_at_end": True}
    others = WITHOUT[rule.keys[0]]
    asked = {key: CASES[key][0] if key in CASES else elsewhere[key] for key in rule.keys}
    assert trace({**others, **asked}) == trace(others)
    for key, value in asked.items():
        if value != (SETTINGS[key].default if rule.neutral is None else rule.neutral):
            found = findings_about(shared, key, {**others, **asked})
            (named,) = [text for text in found if "no effect because" in text]
            assert SETTINGS[key].label in named

"""Declarations of all settings. The form, the settings file, the flags, the checks and the reference use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

from ..schedulers import SCHEDULES, schedule_problem
from .columns import columns_problem
from .name_rules import name_problem, shard_size_problem
from .setting import Setting, boolean, choice, integer, names, number, text, texts

FULL_FINETUNE = "full"


# The docstrings of the section classes are the section titles in the reference and in --help.


@dataclass(frozen=True)
class RunSettings:
    """What is trained, on which data."""

    name: str = text(
        "",
        "Name",
        "The name of the LoRA: a folder of this name appears among your LoRAs.",
        check=name_problem,
    )
    data: tuple[str, ...] = names(
        "Data",
        "What to learn from, out of training/datasets: texts (.txt, .md, .html, .epub, .pdf, .docx, .odt, "
        ".srt, .vtt, or folders of them, read in natural order, each file beginning anew) and rows of chats or "
        "questions and answers (.json, .jsonl, .csv, .tsv, .db, .sqlite, .parquet). With a per cent behind it so "
        "much of one is used, spread evenly: chats.jsonl:50; notes.md:200 twice.",
    )
    if_exists: str = choice(
        "If the name exists",
        "What to do when a LoRA of this name is there already.",
        {
            "ask": "ask me",
            "continue": "go on with the unfinished run",
            "replace": "replace it (a backup is kept)",
            "new_name": "use a new name",
        },
    )
    seed: int = integer(
        42,
        "Seed",
        "The same seed, data and settings give the same LoRA on the CPU, bit for bit.",
        minimum=0,
        maximum=2**32 - 1,
        fixed=True,
    )


@dataclass(frozen=True)
class TextSettings:
    """How a text is cut into blocks."""

    cutoff: int | str = integer(
        "auto",
        "Maximum context length (Cutoff)",
        "The longest example, in tokens. Longer ones let the model see more at once and take more memory. "
        "auto is 256 for raw text, and for rows the longest of them, at most 2048.",
        minimum=16,
        maximum=131072,
        words=("auto",),
    )
    chunking: str = choice(
        "How to cut",
        "Blocks of whole sentences, one after the other; or DEMENTOR: a window that starts at every sentence, "
        "so that each sentence is seen many times, for learning a text by heart in one or two epochs.",
        {"blocks": "blocks of whole sentences", "dementor": "DEMENTOR: a window at every sentence"},
    )
    block_ends: str = choice(
        "Blocks end at",
        "Sentences, or lines where a text is made of those: chat logs, scripts, verse. auto takes lines where "
        "many of a part's lines end without a full stop, or begin with who speaks, and are not wrapped prose; "
        "Check says which. A line that is longer than the cutoff is divided at its sentences.",
        {"auto": "whichever the text is made of", "sentences": "sentences", "lines": "lines"},
    )
    overlap: bool = boolean(
        True,
        "Overlap blocks",
        "Between two blocks, one more that starts in the middle of the first, so that no sentence is always at "
        "an edge. Never across a hard cut. DEMENTOR overlaps by itself.",
    )
    dementor_repeats: int = integer(
        0,
        "DEMENTOR repeats",
        "How often each sentence should be seen in an epoch; 0 starts a window at every sentence.",
        minimum=0,
        maximum=1000,
    )
    hard_cut: str = text(
        "\\n\\n\\n",
        "Hard cut",
        "Where one flow of ideas ends and no block may reach across: by default two empty lines. \\n is a line "
        "end, \\t a tab; empty cuts nothing.",
    )
    min_chars: int = integer(
        0,
        "Leave out blocks up to (characters)",
        "Blocks of at most this many characters are left out, and counted.",
        minimum=0,
        maximum=100000,
    )
    add_bos: bool = boolean(
        True,
        "Start token (BOS)",
        "Begin each block with the start token, where the model's tokenizer itself puts one.",
    )
    add_eos: str = choice(
        "End token (EOS)",
        "Where the model learns to stop. After every block it would learn to stop in the middle of a text.",
        {"hard_cut": "at each hard cut", "every_block": "after every block", "never": "never"},
    )


@dataclass(frozen=True)
class RowSettings:
    """How rows of chats or columns are read, and what is learned of them."""

    format: str = choice(
        "Prompt format",
        "How a row becomes a text. auto looks at the columns: chats and pairs of questions and answers go through "
        "the model's own chat template. chat asks for that template, text for rows as they are; a format file "
        "spells the prompt out (your own lie in training/formats).",
        {
            "auto": "by the columns",
            "chat": "the chat template",
            "text": "rows as they are",
            "alpaca-format": "Alpaca",
            "alpaca-chatbot-format": "Alpaca as a dialogue",
            "vicuna-format": "Vicuna",
            "ChatML-format": "ChatML",
            "llama2-chat-format": "Llama 2 chat",
            "llama3-format": "Llama 3",
            "mistral-format": "Mistral",
            "plain-format": "plain: question, answer",
        },
        free=True,
        one="another name",
    )
    columns: str = text(
        "",
        "Columns",
        "For tables whose columns have other names: instruction=Frage output=Antwort (a name with spaces in "
        "double quotes, a column without a name by its number). For databases: table=NAME, or a SELECT.",
        check=columns_problem,
    )
    system: str = text(
        "",
        "System message",
        "Goes before rows that have no system message of their own.",
    )
    train_on: str = choice(
        "Learn from",
        "The model reads all of a row and learns from this part of it. auto: the replies where rows have replies, "
        'otherwise everything. A message with "train": false or "weight": 0 is never learned.',
        {
            "auto": "replies, where there are some",
            "everything": "everything",
            "replies": "replies",
            "last_reply": "the last reply only",
        },
    )
    train_only_after: str = text(
        "",
        "Learn only after",
        "In every row, learn only what comes after the first place where this text stands (for example "
        "### Response:). Wins over Learn from. Rows without it are left out.",
    )
    too_long: str = choice(
        "Rows too long",
        "What to do with rows longer than the cutoff. Leaving out more than 5 % of them stops a run, unless any "
        "number may go.",
        {
            "drop": "leave out, a few",
            "drop_any": "leave out, any number",
            "cut_end": "cut the end",
            "cut_start": "cut the start",
            "split": "split",
        },
    )
    bad_rows: str = choice(
        "Rows that cannot be read",
        "Stop and list them, or skip them (up to a tenth of the rows).",
        {"stop": "stop and list them", "skip": "skip them"},
    )


@dataclass(frozen=True)
class EvaluationSettings:
    """What is kept aside, to see how well is learned what was never shown."""

    eval_data: tuple[str, ...] = names(
        "Test data",
        "Data sets that are not learned from: the loss on them is measured before the first step, while the run "
        "goes on and at its end.",
    )
    eval_share: float = number(
        0.0,
        "Keep a share aside",
        "A share of the data that is not learned from, but measured: 0.05 is a twentieth. Whole chapters and rows "
        "are taken, by the seed. 0 keeps nothing aside.",
        minimum=0,
        maximum=0.99,
    )
    eval_every: int = integer(
        0,
        "Evaluate every (steps)",
        "How often the part kept aside is gone through; 0 is at the end of each epoch.",
        minimum=0,
        maximum=10**8,
    )


@dataclass(frozen=True)
class StepSettings:
    """How much is learned at once, and how often."""

    batch_size: int = integer(
        4,
        "True Batch Size",
        "How many examples the graphics card works on at once. More is smoother and takes more memory.",
        minimum=1,
        maximum=1024,
        fixed=True,
    )
    accumulation: int = integer(
        1,
        "Gradient Accumulation",
        "How many batches are added up before the weights change: a larger batch without more memory, "
        "a step taking that much longer.",
        minimum=1,
        maximum=1024,
    )
    epochs: float = number(
        2.0,
        "Epochs",
        "How often the whole data is gone through; fractions are possible.",
        minimum=0.01,
        maximum=1000,
    )
    max_steps: int = integer(
        0,
        "Steps, instead of epochs",
        "So many steps, however many epochs these are; 0 goes by epochs.",
        minimum=0,
        maximum=10**8,
    )
    batching: str = choice(
        "Order",
        "Which examples are learned from together. by_length: those of like length, so that little is padded; "
        "whole batches are shuffled, and the longest comes first. sequential: as they stand in the data.",
        {
            "shuffled": "shuffled",
            "by_length": "by length",
            "sequential": "as in the data",
            "length_then_order": "by length, later as in the data",
        },
        fixed=True,
    )


@dataclass(frozen=True)
class SwitchSettings:
    """When the order 'by length, later as in the data' changes over."""

    switch_after: str = choice(
        "Change over after",
        "What decides that examples come as in the data from now on. By loss it is the first step with the "
        "smoothed loss at or under the upper bound.",
        {"epochs": "epochs", "steps": "steps", "loss": "the loss"},
        fixed=True,
    )
    switch_at: int = integer(
        1, "Change over at", "After so many epochs or steps.", minimum=0, maximum=10**8, fixed=True
    )
    switch_loss_low: float = number(
        2.0,
        "Change over at loss, lower bound",
        "A run that begins under it is told that its first phase is short.",
        minimum=0,
        maximum=100,
        fixed=True,
    )
    switch_loss_high: float = number(
        2.5,
        "Change over at loss, upper bound",
        "The loss at which the change comes.",
        minimum=0,
        maximum=100,
        fixed=True,
    )
    switch_pairs: bool = boolean(
        False,
        "Pairs in between",
        "A middle phase in which two neighbours stand in one batch and the second sees the first: two rows that "
        "follow each other, or two blocks of which the second begins where the first ends, so that none reads "
        "the same text twice. It ends at the second change, and wants an even batch size.",
        fixed=True,
    )
    second_switch_at: int = integer(
        2, "Second change at", "After so many epochs or steps, pairs end.", minimum=0, maximum=10**8, fixed=True
    )
    second_switch_loss_low: float = number(
        1.5, "Second change at loss, lower bound", "As for the first change.", minimum=0, maximum=100, fixed=True
    )
    second_switch_loss_high: float = number(
        2.0,
        "Second change at loss, upper bound",
        "The loss at which pairs end.",
        minimum=0,
        maximum=100,
        fixed=True,
    )


@dataclass(frozen=True)
class LearningSettings:
    """How fast is learned, and how the rate changes over the run."""

    learning_rate: float = number(
        2e-4,
        "Learning Rate",
        "How far each step goes. 2e-4 is right for most LoRAs; small models bear more (1e-3).",
        minimum=1e-9,
        maximum=1.0,
    )
    schedule: str = choice(
        "LR Scheduler",
        "How the learning rate changes over the run: one of these, or points of your own, straight lines between "
        "them. 0:0 0.05:1 0.5:1 1:0 rises over a twentieth of the run, holds to its half and falls to 0; 2e:1 is "
        "the end of epoch 2.",
        {s.name: f"{s.name}: {s.words}" for s in SCHEDULES.values()},
        free=True,
        one="points such as 0:0 0.1:1 1:0",
        check=schedule_problem,
    )
    warmup_steps: float = number(
        0.05,
        "Warm-up",
        "Steps in which the rate rises from 0. Below 1 it is a share of the run (then at most 100 steps and "
        "one epoch).",
        minimum=0,
        maximum=100000,
    )
    weight_decay: float = number(
        0.0, "Weight decay", "How strongly weights are pulled towards 0.", minimum=0, maximum=1
    )
    max_grad_norm: float = number(
        1.0,
        "Clip gradients at",
        "Longer gradients are shortened to this length; 0 never.",
        minimum=0,
        maximum=1000,
    )
    label_smoothing: float = number(
        0.0,
        "Label smoothing",
        "How much of each target is spread over all other tokens: keeps the model from being too sure of itself.",
        minimum=0,
        maximum=0.5,
    )
    neftune_noise: float = number(
        0.0,
        "NEFTune noise",
        "Noise on what the model reads, which can make answers livelier: 5 is usual, 0 is none.",
        minimum=0,
        maximum=100,
    )
    optimizer: str = choice(
        "Optimizer",
        "Who turns gradients into steps. 8-bit and paged ones take less memory and want an NVIDIA card and "
        "bitsandbytes. Any other name that transformers knows may be given.",
        {
            "adamw_torch": "AdamW",
            "adamw_torch_fused": "AdamW, fused (faster)",
            "adamw_8bit": "AdamW, 8-bit (less memory)",
            "paged_adamw_8bit": "AdamW, paged, 8-bit (least memory)",
            "adafactor": "Adafactor (little memory)",
            "lion_8bit": "Lion, 8-bit",
            "sgd": "SGD",
        },
        free=True,
        one="another name",
        fixed=True,
    )
    adam_beta1: float = number(0.9, "Adam beta 1", "The memory of the mean gradient.", minimum=0, maximum=0.9999)
    adam_beta2: float = number(
        0.999, "Adam beta 2", "The memory of the squared gradient.", minimum=0, maximum=0.999999
    )
    adam_epsilon: float = number(1e-8, "Adam epsilon", "Keeps a division by 0 away.", minimum=1e-12, maximum=1e-2)


@dataclass(frozen=True)
class LoraSettings:
    """The LoRA itself."""

    method: str = choice(
        "Method",
        "A LoRA beside the model, or all of the model: that takes many times the memory, is not possible inside "
        "the webui, and makes a model of its own under models.",
        {"lora": "a LoRA", FULL_FINETUNE: "the whole model"},
    )
    rank: int = integer(
        32,
        "LoRA Rank",
        "How much the LoRA can hold: 8 for a manner of speaking, 32 for a style, 128 and more for much new text.",
        minimum=1,
        maximum=4096,
        fixed=True,
    )
    alpha: float = number(
        32.0,
        "LoRA Alpha",
        "Alpha / rank is the strength of the LoRA; 1 is usual.",
        minimum=0.01,
        maximum=16384,
        fixed=True,
    )
    dropout: float = number(
        0.0,
        "Dropout",
        "The share of the LoRA that is switched off at random in each step.",
        minimum=0,
        maximum=0.9,
    )
    rslora: bool = boolean(
        False,
        "rsLoRA",
        "Strength alpha / root of rank, which keeps high ranks from learning too little.",
        fixed=True,
    )
    targets: str | tuple[str, ...] = choice(
        "Which layers",
        "Which layers of the model the LoRA sits on. All is the usual choice; q-v is the classic and small one. "
        "Names of the model's own layers may be given as well.",
        {
            "all-linear": "all (recommended)",
            "q-v": "q-v (classic)",
            "q-k-v": "q-k-v",
            "q-k-v-o": "q-k-v-o (all of the attention)",
            "k-v-down": "k-v-down (where facts are said to sit)",
        },
        free=True,
        fixed=True,
    )
    dora: bool = boolean(
        False,
        "DoRA",
        "Learns length and direction of each weight apart: often a little better at low ranks, and slower. "
        "Not on 8-bit weights.",
        fixed=True,
    )
    train_head: bool = boolean(
        False,
        "Train Head",
        "Train the model's embeddings and output layer as a whole, beside the LoRA: for a new language or many "
        "new words. Takes much memory and disk; an 8-bit optimizer helps.",
        fixed=True,
    )
    lora_plus: float = number(
        1.0,
        "LoRA+",
        "How many times faster than the first half of each layer's pair (A) its second half (B) learns: 16 is "
        "usual, with about a quarter of the learning rate; 1 is none of it.",
        minimum=0.01,
        maximum=1000,
        fixed=True,
    )
    head_rate: float = number(
        1.0,
        "Train Head, rate",
        "Which share of the learning rate embeddings and output layer are trained with: 0.1 is gentle to the "
        "words that the model knows; 1 is that of the LoRA.",
        minimum=0.001,
        maximum=100,
        fixed=True,
    )

    @property
    def strength(self) -> float:
        """The factor on the output of the LoRA: `scaling` in PEFT."""
        return self.alpha / (self.rank**0.5 if self.rslora else self.rank)

    @property
    def whole_model(self) -> bool:
        """Whether the whole model is trained instead of a LoRA."""
        return self.method == FULL_FINETUNE


@dataclass(frozen=True)
class SavingSettings:
    """What is kept while the run goes on."""

    save_every: int = integer(
        0,
        "Checkpoint every (steps)",
        "A full checkpoint every so many steps; 0 = never.",
        minimum=0,
        maximum=10**8,
        live=True,
    )
    save_on_loss_drop: float = number(
        0.0,
        "Checkpoint as the loss falls under",
        "Under this, a full checkpoint whenever the smoothed loss has fallen by a tenth and holds for three "
        "steps; 0 = never.",
        minimum=0,
        maximum=100,
        live=True,
    )
    save_each_epoch: bool = boolean(
        True, "Checkpoint at each epoch", "A full checkpoint at the end of each epoch, and of the run.", live=True
    )
    backup_minutes: float = number(
        20.0,
        "Backup every (minutes)",
        "So often a full copy goes into the folder backup, to go on from after a crash. The last two stay, and "
        "are removed when the run ends well; 0 = never.",
        minimum=0,
        maximum=10**5,
        live=True,
    )
    keep_checkpoints: int = integer(
        3,
        "Full checkpoints kept",
        "Older ones are slimmed to the LoRA itself, which can be loaded and compared, but not gone on from. Those "
        "saved by hand and the best are left alone.",
        minimum=1,
        maximum=10**6,
        live=True,
    )
    keep_best: str = choice(
        "Keep the best",
        "At the end the LoRA is the best one instead of the last, which stays as a checkpoint. Told by the part "
        "kept aside, else by the smoothed loss; accuracy needs a part kept aside, and where it is equal the lower "
        "loss decides.",
        {"no": "no, the last", "loss": "by its loss", "accuracy": "by its accuracy"},
        live=True,
    )


@dataclass(frozen=True)
class StoppingSettings:
    """When a run ends before its last step."""

    stop_at_loss: float = number(
        0.0,
        "Stop at loss",
        "End the run when the smoothed loss is at or under this; 0 = off.",
        minimum=0,
        maximum=100,
        live=True,
    )
    stop_at_epoch: float = number(
        0.0, "Stop at epoch", "End the run after so many epochs; 0 = off.", minimum=0, maximum=1000, live=True
    )
    early_stopping: int = integer(
        0,
        "Early stopping",
        "End the run after so many evaluations in a row that brought nothing better; 0 = off. Needs a part kept "
        "aside.",
        minimum=0,
        maximum=1000,
        live=True,
    )
    stop_how: str = choice(
        "How to stop",
        "What a rule that ends the run does: end it at once, or let the learning rate fall to 0 in a few more "
        "steps, which is kinder to what was learned.",
        {"at_once": "at once", "wind_down": "wind down"},
        live=True,
    )


@dataclass(frozen=True)
class SampleSettings:
    """What the model is asked while it learns."""

    sample_prompts: str | tuple[str, ...] = texts(
        "auto",
        "Prompts",
        "What the model is asked during the run, with the LoRA and without: auto is three beginnings out of the "
        "data; or your own, one a line (\\n is a line end). Rows are asked as they are trained, a text is gone on "
        "with. The answers stand in samples.jsonl and report.html.",
    )
    sample_every: int | str = integer(
        "epoch",
        "Answer them every",
        "After each epoch, or every so many steps; and before the first step and at the end as well. never asks "
        "only when you do.",
        minimum=1,
        maximum=10**8,
        words=("epoch", "never"),
    )
    sample_length: int = integer(
        100,
        "Answers, tokens",
        "How long an answer may become; it ends earlier where the model ends it, or where its context is full.",
        minimum=1,
        maximum=10_000,
    )
    sample_temperature: float = number(
        0.7,
        "Temperature",
        "How freely it answers: 0 always takes the likeliest token, more is more surprising. Each answer begins "
        "with the run's seed, so that those of a run can be compared.",
        minimum=0,
        maximum=5,
    )


@dataclass(frozen=True)
class ReportingSettings:
    """Where else a run is recorded."""

    report_to: str = choice(
        "Report to",
        "Beside our own records: TensorBoard (into the LoRA's folder), Weights & Biases (offline, into the LoRA's "
        "folder; the variable WANDB_MODE decides otherwise) or trackio (into logs/trackio). They have to be "
        "installed.",
        {"none": "nowhere else", "tensorboard": "TensorBoard", "wandb": "Weights & Biases", "trackio": "trackio"},
    )


@dataclass(frozen=True)
class MachineSettings:
    """What is traded between memory and speed."""

    gradient_checkpointing: str = choice(
        "Gradient checkpointing",
        "Saves much memory and costs 20 to 30 % speed: works out again what it does not keep. auto: on where "
        "the run would not fit on the graphics card without it.",
        {"auto": "auto", "on": "on", "off": "off"},
    )
    packing: str = choice(
        "Packing",
        "The examples of a batch stand in one row without padding, which is faster the more their lengths "
        "differ; batch size, steps and losses stay the same. auto: wherever a test at the start of the run "
        "shows that the model keeps them apart.",
        {"auto": "auto", "on": "on", "off": "off"},
        fixed=True,
    )
    keep_awake: bool = boolean(
        True,
        "Keep the machine awake",
        "The machine does not fall asleep by itself while a run goes on. A laptop's closed lid is another matter.",
    )
    attention: str = choice(
        "Attention",
        "How the model's attention is worked out. auto leaves it as the model was loaded; flash_attention_2 is "
        "the fastest for long texts, and wants an NVIDIA card and the package flash-attn.",
        {"auto": "auto", "sdpa": "sdpa", "eager": "eager", "flash_attention_2": "flash attention 2"},
    )
    tf32: bool = boolean(
        True,
        "TF32",
        "On NVIDIA cards, float32 products are rounded a little and much faster. Only float32 models notice.",
    )
    liger: bool = boolean(
        False,
        "Liger kernels",
        "Faster kernels: they want an NVIDIA card and the package liger-kernel.",
    )
    compile: bool = boolean(
        False,
        "Compile",
        "Compile the model's layers before the run: some minutes at the start, faster steps. Where it fails the "
        "run goes on without it, and says so.",
    )
    workers: int = integer(
        0,
        "Workers",
        "Processes that make batches ready. Batches here are made in a moment, so 0 is nearly always right; "
        "inside the webui there can be none.",
        minimum=0,
        maximum=64,
    )
    shard_size: str = text(
        "5GB",
        "Shard size",
        "Of a whole model: how large its files may become.",
        check=shard_size_problem,
    )


@dataclass(frozen=True)
class TrainingSettings:
    """All settings of a run, by section."""

    what: RunSettings = field(default_factory=RunSettings)
    text: TextSettings = field(default_factory=TextSettings)
    rows: RowSettings = field(default_factory=RowSettings)
    aside: EvaluationSettings = field(default_factory=EvaluationSettings)
    steps: StepSettings = field(default_factory=StepSettings)
    switching: SwitchSettings = field(default_factory=SwitchSettings)
    learning: LearningSettings = field(default_factory=LearningSettings)
    lora: LoraSettings = field(default_factory=LoraSettings)
    saving: SavingSettings = field(default_factory=SavingSettings)
    stopping: StoppingSettings = field(default_factory=StoppingSettings)
    samples: SampleSettings = field(default_factory=SampleSettings)
    records: ReportingSettings = field(default_factory=ReportingSettings)
    machine: MachineSettings = field(default_factory=MachineSettings)

    def with_name(self, name: str) -> TrainingSettings:
        """Return a copy with this name for the LoRA."""
        return replace(self, what=replace(self.what, name=name))

    def values(self) -> dict[str, Any]:
        """Return flat keys and plain values, as in a settings file."""
        sections = (getattr(self, f.name) for f in fields(self))
        flat = {f.name: getattr(s, f.name) for s in sections for f in fields(s)}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in flat.items()}


SECTIONS: Mapping[str, type[Any]] = {f.name: cast(type[Any], f.default_factory) for f in fields(TrainingSettings)}
SETTINGS: Mapping[str, Setting] = {
    f.name: Setting(key=f.name, section=name, default=f.default, **f.metadata)
    for name, section in SECTIONS.items()
    for f in fields(section)
}


def section_keys(*sections: str) -> tuple[str, ...]:
    """Return the keys of the settings in these sections."""
    return tuple(key for key, setting in SETTINGS.items() if setting.section in sections)

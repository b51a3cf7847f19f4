"""Declarations of all settings. The form, the settings file, the flags, the checks and the reference use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

from ..schedulers import SCHEDULES, schedule_problem
from .columns import columns_problem
from .name_rules import (
    layer_numbers,
    layers_problem,
    name_problem,
    reporters_problem,
    shard_size_problem,
    split_names,
)
from .setting import Setting, boolean, choice, integer, names, number, text, texts

FULL_FINETUNE = "full"
RANDOM_SEED, MAX_SEED = -1, 2**32 - 1


# The docstrings of the section classes are the section titles in the reference and in --help.


@dataclass(frozen=True)
class RunSettings:
    """What is trained, and on which data."""

    name: str = text(
        "",
        "Name",
        "Name of the LoRA. A folder with this name appears among your LoRAs.",
        check=name_problem,
    )
    data: tuple[str, ...] = names(
        "Dataset",
        "Files and folders in training/datasets to train on: text (.txt, .md, .html, .epub, .pdf, .docx, .odt, "
        ".srt, .vtt, or a folder of them, read in natural order) and rows (.json, .jsonl, .csv, .tsv, .db, "
        ".sqlite, .parquet). Add a percentage to use a share of a dataset: chats.jsonl:50 uses half of it, "
        "notes.md:200 uses it twice.",
    )
    if_exists: str = choice(
        "If the name exists",
        "What to do if a LoRA with this name already exists.",
        {
            "ask": "Ask",
            "continue": "Resume the unfinished run",
            "replace": "Replace it (keeps a backup)",
            "new_name": "Use a new name",
        },
    )
    seed: int = integer(
        42,
        "Seed",
        "Random seed. On a CPU, the same seed, data and settings give exactly the same LoRA. -1 draws a new one "
        "for each run and saves it with the run.",
        bounds=(RANDOM_SEED, MAX_SEED),
        fixed=True,
    )
    data_seed: int | str = integer(
        "auto",
        "Data seed",
        "Seed of the validation split, the shares of datasets and the order of the examples. auto uses Seed; -1 "
        "draws a new one for each run.",
        bounds=(RANDOM_SEED, MAX_SEED),
        words=("auto",),
        fixed=True,
    )

    @property
    def weights_seed(self) -> int:
        """The seed of new weights, dropout, noise and samples; 0 in previews of a run that draws its own."""
        return max(0, self.seed)

    @property
    def order_seed(self) -> int:
        """The seed of the validation split, of shares and of the order; 0 in previews of a run that draws it."""
        return self.weights_seed if isinstance(self.data_seed, str) else max(0, self.data_seed)


@dataclass(frozen=True)
class TextSettings:
    """How raw text is sliced into blocks."""

    cutoff: int | str = integer(
        "auto",
        "Maximum context length (Cutoff)",
        "Maximum number of tokens in one example. A larger cutoff lets the model learn from more context and "
        "uses more VRAM. auto is 256 for raw text; for rows it is the longest row, at most 2048.",
        bounds=(16, 131072),
        words=("auto",),
    )
    chunking: str = choice(
        "Chunking",
        "How raw text is sliced: into blocks of whole sentences, or with DEMENTOR, where a window starts at "
        "every sentence. DEMENTOR shows each sentence many times, to memorize a text in one or two epochs.",
        {"blocks": "Blocks of whole sentences", "dementor": "DEMENTOR: a window at every sentence"},
    )
    block_ends: str = choice(
        "Blocks end at",
        "auto ends blocks at sentences, or at lines if the lines of a section are entries of their own, as in "
        "chat logs, scripts and verse. Check shows what it chose. A line longer than the cutoff is split between "
        "sentences.",
        {"auto": "Auto", "sentences": "Sentences", "lines": "Lines"},
    )
    drop_boilerplate: bool = boolean(
        False,
        "Drop boilerplate",
        "Drop what is not the book: the publisher's notices of Project Gutenberg and Standard Ebooks, tables of "
        "contents, page headings, page numbers, marks of illustrations, and the menus, headers and footers of web "
        "pages. Check shows what it found.",
    )
    overlap: bool = boolean(
        True,
        "Overlap blocks",
        "Add a block between two blocks, from the middle of one to the middle of the next, so that no sentence "
        "is always at an edge. Overlap blocks never cross a hard cut. DEMENTOR does not need them.",
    )
    dementor_repeats: int = integer(
        0,
        "DEMENTOR repeats",
        "How many times each sentence is seen in an epoch. 0 starts a window at every sentence.",
        bounds=(0, 1000),
    )
    hard_cut: str = text(
        "\\n\\n\\n",
        "Hard cut",
        "Text that separates sections; no block crosses it. The default is two empty lines. Write \\n for a line "
        "break and \\t for a tab. Leave it empty for no hard cuts.",
    )
    min_chars: int = integer(
        0,
        "Ignore small blocks (characters)",
        "Drop blocks with this many characters or fewer. Check shows how many.",
        bounds=(0, 100000),
    )
    add_bos: bool = boolean(
        True,
        "Add BOS token",
        "Start each block with the beginning-of-sequence token, if the model's tokenizer normally adds one.",
    )
    add_eos: str = choice(
        "Add EOS token",
        "Where to add the end-of-sequence token. After every block, it teaches the model to stop in the middle "
        "of a text.",
        {"hard_cut": "At each hard cut", "every_block": "After every block", "never": "Never"},
    )


@dataclass(frozen=True)
class RowSettings:
    """How rows, such as chats, become examples, and which part of them is trained on."""

    format: str = choice(
        "Data format",
        "How a row becomes text. auto uses the model's chat template for chats and for "
        "question-answer columns. A format file lets you lay out the prompt as you like; put your "
        "own in training/formats.",
        {
            "auto": "Auto, by columns",
            "chat": "Chat template",
            "text": "Text rows as they are",
            "alpaca-format": "Alpaca",
            "alpaca-chatbot-format": "Alpaca as a dialogue",
            "vicuna-format": "Vicuna",
            "ChatML-format": "ChatML",
            "llama2-chat-format": "Llama 2 chat",
            "llama3-format": "Llama 3",
            "mistral-format": "Mistral",
            "plain-format": "Plain: question, answer",
        },
        free=True,
        one="another name",
    )
    columns: str = text(
        "",
        "Column names",
        "What your dataset calls the columns that are expected here, for example instruction=Frage "
        "output=Antwort. Put a name with spaces in double quotes; give a column without a name by its number. For "
        "a database: table=NAME, or a SELECT.",
        check=columns_problem,
    )
    system: str = text(
        "",
        "System message",
        "Added to rows that have no system message of their own.",
    )
    train_on: str = choice(
        "Train on",
        "The part of a row that counts toward the loss; the model reads the rest as context. auto: the replies "
        'if rows have replies, otherwise everything. A message with "train": false or "weight": 0 is never '
        "trained on.",
        {
            "auto": "Auto",
            "everything": "Everything",
            "replies": "All replies",
            "last_reply": "Last reply only",
        },
    )
    train_only_after: str = text(
        "",
        "Train only after",
        "Train only on what follows the first occurrence of this text in a row, for example ### Response:. It "
        "overrides Train on. Rows without this text are dropped.",
    )
    too_long: str = choice(
        "Rows over the cutoff",
        'What to do with rows longer than the cutoff. "Drop a few" stops the run if more than 5% of the rows '
        "would be dropped.",
        {
            "drop": "Drop a few",
            "drop_any": "Drop any number",
            "cut_end": "Truncate the end",
            "cut_start": "Truncate the start",
            "split": "Split",
        },
    )
    source_max_len: int = integer(
        0,
        "Maximum prompt length",
        "Truncate the end of prompts with more tokens. What the format writes before the reply stays. Applies to "
        "rows with one reply, before the cutoff. 0 is off.",
        bounds=(0, 131072),
    )
    target_max_len: int = integer(
        0,
        "Maximum reply length",
        "Truncate the end of replies with more tokens, with the end token. Applies to rows with one reply, before "
        "the cutoff. 0 is off.",
        bounds=(0, 131072),
    )
    bad_rows: str = choice(
        "Invalid rows",
        "What to do with rows that can't be read. At most a tenth of the rows can be skipped.",
        {"stop": "Stop and list them", "skip": "Skip them"},
    )
    split_exchanges: bool = boolean(
        False,
        "Split chats into exchanges",
        "Make each user message and its reply an example of its own, with the system message. The pair phase of "
        "hybrid batching then shows the model two exchanges of one chat together.",
    )


@dataclass(frozen=True)
class EvaluationSettings:
    """Validation data, which is measured and never trained on."""

    eval_data: tuple[str, ...] = names(
        "Evaluation dataset",
        "Datasets that are not trained on. Their loss is measured before the first step, during the run and at "
        "the end.",
    )
    eval_share: float = number(
        0.0,
        "Validation split",
        "Share of the dataset to validate on instead of training on it: 0.05 is 5%. Whole sections and rows are "
        "taken, chosen by the data seed. 0 is off.",
        bounds=(0, 0.99),
    )
    eval_every: float = integer(
        0,
        "Evaluate every (steps)",
        "How often to measure the validation loss. 0 is at the end of each epoch, 0.1 every tenth of the run.",
        bounds=(0, 10**8),
        share=True,
    )
    eval_batch_size: int | str = integer(
        "auto",
        "Evaluation batch size",
        "Number of validation examples that the GPU processes at once. auto is the True Batch Size. An evaluation "
        "needs less VRAM than a step, so a larger number often fits and is faster.",
        bounds=(1, 1024),
        words=("auto",),
    )
    recall_passages: int = integer(
        16,
        "Recall passages",
        "How many passages of the training data the model is asked to continue, to measure what it knows by "
        "heart: before the first step, after each epoch and at the end. 0 turns this off.",
        bounds=(0, 10_000),
    )
    test_at_end: bool = boolean(
        False,
        "Test the LoRA at the end",
        "After the run, measure what the LoRA learned, what it forgot and what it copies, as the button Test LoRA "
        "does in the Runs tab.",
    )


@dataclass(frozen=True)
class StepSettings:
    """How many examples a step takes, and how many steps a run takes."""

    batch_size: int = integer(
        4,
        "True Batch Size",
        "Number of examples that the GPU processes at once (micro batch size). More examples make the loss "
        "smoother and use more VRAM.",
        bounds=(1, 1024),
        fixed=True,
    )
    accumulation: int = integer(
        1,
        "Gradient Accumulation",
        "Number of batches in one step: more time, not more VRAM. The loss is averaged over all tokens of the "
        "step, so the gradients are those of one larger batch, up to rounding.",
        bounds=(1, 1024),
    )
    epochs: float = number(
        2.0, "Epochs", "Number of passes over the training data. Fractions are allowed.", bounds=(0.01, 1000)
    )
    max_steps: int = integer(
        0,
        "Max steps",
        "Train this many steps instead of a number of epochs. Set it to 0 to train by epochs.",
        bounds=(0, 10**8),
    )
    batching: str = choice(
        "Batch order",
        "Which examples share a batch. By length: examples of similar length, which need little padding, with "
        "the longest batches first. Sequential: the order of the dataset. Hybrid: batches by length until the "
        "switch, sequential after it.",
        {
            "shuffled": "Shuffled",
            "by_length": "By length",
            "sequential": "Sequential",
            "length_then_order": "Hybrid: by length, then sequential",
        },
        fixed=True,
    )


@dataclass(frozen=True)
class SwitchSettings:
    """When hybrid batching switches from one order to the next."""

    switch_after: str = choice(
        "Switch after",
        "When hybrid batching switches to sequential order. Loss: at the first step with a smoothed loss at or "
        "below the upper bound.",
        {"epochs": "Epochs", "steps": "Steps", "loss": "Loss"},
        fixed=True,
    )
    switch_at: int = integer(
        1, "Switch at", "Number of epochs or steps before the switch.", bounds=(0, 10**8), fixed=True
    )
    switch_loss_low: float = number(
        2.0,
        "Switch at loss, lower bound",
        "If the loss starts below this, a note says that the first phase is short.",
        bounds=(0, 100),
        fixed=True,
    )
    switch_loss_high: float = number(
        2.5,
        "Switch at loss, upper bound",
        "The order switches when the smoothed loss is at or below this.",
        bounds=(0, 100),
        fixed=True,
    )
    switch_pairs: bool = boolean(
        False,
        "Pair phase",
        "Add a phase in the middle that puts two neighbors in one batch, and the second can see the first: two "
        "rows in a row, or two adjacent blocks without overlap. Needs an even batch size.",
        fixed=True,
    )
    second_switch_at: int = integer(
        2,
        "Second switch at",
        "Number of epochs or steps before the pair phase ends.",
        bounds=(0, 10**8),
        fixed=True,
    )
    second_switch_loss_low: float = number(
        1.5,
        "Second switch at loss, lower bound",
        "The same note as for the first switch, for the pair phase.",
        bounds=(0, 100),
        fixed=True,
    )
    second_switch_loss_high: float = number(
        2.0,
        "Second switch at loss, upper bound",
        "The pair phase ends when the smoothed loss is at or below this.",
        bounds=(0, 100),
        fixed=True,
    )


@dataclass(frozen=True)
class LearningSettings:
    """Learning rate, schedule and optimizer."""

    learning_rate: float = number(
        2e-4,
        "Learning Rate",
        "Size of each update. 2e-4 suits most LoRAs; small models can take 1e-3.",
        bounds=(1e-9, 1.0),
    )
    schedule: str = choice(
        "LR Scheduler",
        "How the learning rate changes during the run. Choose a schedule, or enter points joined by straight "
        "lines: 0:0 0.05:1 0.5:1 1:0 rises over the first 5% of the run, holds until the middle and falls to 0. "
        "2e:1 stands for the end of epoch 2.",
        {s.name: f"{s.name}: {s.words}" for s in SCHEDULES.values()},
        free=True,
        one="points such as 0:0 0.1:1 1:0",
        check=schedule_problem,
    )
    warmup_steps: float = number(
        0.05,
        "Warmup",
        "Number of steps in which the learning rate rises from 0. Below 1 it is a share of the run (at most 100 "
        "steps and one epoch).",
        bounds=(0, 100000),
    )
    weight_decay: float = number(0.0, "Weight decay", "How strongly weights are pulled toward 0.", bounds=(0, 1))
    max_grad_norm: float = number(
        1.0, "Max gradient norm", "Scale down gradients that are longer than this. 0 is off.", bounds=(0, 1000)
    )
    label_smoothing: float = number(
        0.0,
        "Label smoothing",
        "Share of each target that is spread over all other tokens, so that the model does not become "
        "overconfident.",
        bounds=(0, 0.5),
    )
    neftune_noise: float = number(
        0.0,
        "NEFTune noise",
        "Noise (alpha) on the input embeddings, which can make replies better. 5 is common; 0 is off.",
        bounds=(0, 100),
    )
    optimizer: str = choice(
        "Optimizer",
        "The 8-bit and paged optimizers use less VRAM and need an NVIDIA GPU and bitsandbytes. You can enter "
        "any other optimizer that transformers knows.",
        {
            "adamw_torch": "AdamW",
            "adamw_torch_fused": "AdamW, fused (faster)",
            "adamw_8bit": "AdamW, 8-bit (less VRAM)",
            "paged_adamw_8bit": "AdamW, paged, 8-bit (least VRAM)",
            "adafactor": "Adafactor (little memory)",
            "lion_8bit": "Lion, 8-bit",
            "sgd": "SGD",
        },
        free=True,
        one="another name",
        fixed=True,
    )
    adam_beta1: float = number(0.9, "Adam beta 1", "Decay rate of the average gradient.", bounds=(0, 0.9999))
    adam_beta2: float = number(
        0.999, "Adam beta 2", "Decay rate of the average squared gradient.", bounds=(0, 0.999999)
    )
    adam_epsilon: float = number(
        1e-8, "Adam epsilon", "Small constant that prevents division by zero.", bounds=(1e-12, 1e-2)
    )


@dataclass(frozen=True)
class LoraSettings:
    """The LoRA."""

    method: str = choice(
        "Method",
        "Train a LoRA, or all weights of the model. Full fine-tuning needs many times the memory, is not "
        "possible inside the webui, and saves a new model under models.",
        {"lora": "LoRA", FULL_FINETUNE: "Full fine-tuning"},
    )
    rank: int = integer(
        32,
        "LoRA Rank",
        "Size of the LoRA: 8 for a tone of voice, 32 for a style, 128 or more for a lot of new text. At most the "
        "model's hidden size.",
        bounds=(1, 32768),
        fixed=True,
    )
    alpha: float = number(
        32.0,
        "LoRA Alpha",
        "The LoRA is scaled by alpha / rank; a scale of 1 is common.",
        bounds=(0.01, 131072),
        fixed=True,
    )
    dropout: float = number(
        0.0, "LoRA Dropout", "Share of the LoRA that is switched off at random in each step.", bounds=(0, 0.9)
    )
    rslora: bool = boolean(
        False,
        "rsLoRA",
        "Scale the LoRA by alpha / sqrt(rank) instead, so that high ranks do not learn too little.",
        fixed=True,
    )
    targets: str | tuple[str, ...] = choice(
        "Target modules",
        "The layers that get a LoRA. All linear layers is the usual choice; q-v is the small, original one. You "
        "can also enter names of the model's own layers. embed_tokens and lm_head, the embeddings and the output "
        "layer, matter if your data have a syntax of their own.",
        {
            "all-linear": "All linear layers (recommended)",
            "q-v": "q-v (original LoRA)",
            "q-k-v": "q-k-v",
            "q-k-v-o": "q-k-v-o (all attention layers)",
            "k-v-down": "k-v-down (where facts are said to be stored)",
        },
        free=True,
        fixed=True,
    )
    dora: bool = boolean(
        False,
        "DoRA",
        "Train the magnitude and the direction of each weight separately. Often slightly better at low ranks, "
        "and slower. Does not work with 8-bit weights.",
        fixed=True,
    )
    train_head: bool = boolean(
        False,
        "Train Head",
        "Also train the embeddings and the output layer in full, for a new language or many new words. Needs "
        "much memory and disk space; an 8-bit optimizer helps.",
        fixed=True,
    )
    modules_to_save: str | tuple[str, ...] = choice(
        "Modules to save",
        "Modules that are trained in full and saved with the LoRA, such as norm. Enter names of the model's own "
        "modules.",
        {"none": "None"},
        free=True,
        fixed=True,
    )
    bias: str = choice(
        "Bias",
        "Also train biases of the model, where it has any: all of them, or those of the layers with a LoRA. Most "
        "newer models have none.",
        {"none": "None", "all": "All biases", "lora_only": "Those of the layers with a LoRA"},
        fixed=True,
    )
    layers_to_transform: str = text(
        "",
        "Layers to transform",
        "Numbers of the decoder layers that get a LoRA, counted from 0, such as 0-7,12. Empty means all.",
        check=layers_problem,
        fixed=True,
    )
    lora_plus: float = number(
        1.0,
        "LoRA+",
        "Learning rate of LoRA B divided by that of LoRA A. 16 is common, with a quarter of the learning rate. "
        "1 is off.",
        bounds=(0.01, 1000),
        fixed=True,
    )
    head_rate: float = number(
        1.0,
        "Train Head rate",
        "Learning rate of the embeddings and the output layer, and of Modules to save, as a share of the learning "
        "rate of the LoRA. A small share such as 0.1 changes known words less.",
        bounds=(0.001, 100),
        fixed=True,
    )

    @property
    def strength(self) -> float:
        """The factor on the output of the LoRA: `scaling` in PEFT."""
        return self.alpha / (self.rank**0.5 if self.rslora else self.rank)

    @property
    def saved_modules(self) -> tuple[str, ...]:
        """The names in `modules_to_save`."""
        return () if isinstance(self.modules_to_save, str) else self.modules_to_save

    @property
    def layers(self) -> frozenset[int]:
        """The numbers in `layers_to_transform`; empty for all layers."""
        return layer_numbers(self.layers_to_transform)

    @property
    def whole_model(self) -> bool:
        """Whether the whole model is trained instead of a LoRA."""
        return self.method == FULL_FINETUNE


@dataclass(frozen=True)
class SavingSettings:
    """Checkpoints and backups."""

    save_every: float = integer(
        0,
        "Save every (steps)",
        "Save a full checkpoint every this many steps. 0 is off, 0.1 is every tenth of the run.",
        bounds=(0, 10**8),
        share=True,
        live=True,
    )
    save_on_loss_drop: float = number(
        0.0,
        "Save when the loss falls below",
        "Below this loss, save a full checkpoint each time the smoothed loss has fallen by another 10% and "
        "stayed there for three steps. 0 is off.",
        bounds=(0, 100),
        live=True,
    )
    save_each_epoch: bool = boolean(
        True, "Save at each epoch", "Save a full checkpoint at the end of each epoch and of the run.", live=True
    )
    backup_minutes: float = number(
        20.0,
        "Backup every (minutes)",
        "Save a full copy into the folder backup, to resume from after a crash. The last two are kept, and "
        "deleted when the run ends well. 0 is off.",
        bounds=(0, 10**5),
        live=True,
    )
    keep_checkpoints: int = integer(
        3,
        "Full checkpoints to keep",
        "Older checkpoints are reduced to the LoRA: you can load and compare them, but not resume from them. "
        "Checkpoints that you saved by hand and the best one stay as they are.",
        bounds=(1, 10**6),
        live=True,
    )
    keep_best: str = choice(
        "Keep the best",
        "At the end, save the best LoRA instead of the last one, which stays as a checkpoint. The best is the "
        "one with the best validation result; without a validation split, the lowest smoothed loss. Accuracy "
        "needs a validation split.",
        {"no": "No, keep the last", "loss": "By loss", "accuracy": "By accuracy"},
        live=True,
    )


@dataclass(frozen=True)
class StoppingSettings:
    """When a run ends before its last step."""

    stop_at_loss: float = number(
        0.0,
        "Stop at loss",
        "End the run when the smoothed loss is at or below this. 0 is off.",
        bounds=(0, 100),
        live=True,
    )
    stop_at_epoch: float = number(
        0.0, "Stop at epoch", "End the run after this many epochs. 0 is off.", bounds=(0, 1000), live=True
    )
    early_stopping: int = integer(
        0,
        "Early stopping",
        "End the run after this many evaluations in a row without improvement. Needs a validation split. 0 is "
        "off.",
        bounds=(0, 1000),
        live=True,
    )
    stop_how: str = choice(
        "How to stop",
        "What a stop rule does: end the run at once, or let the learning rate fall to 0 over a few more steps "
        "first.",
        {"at_once": "At once", "wind_down": "Wind down"},
        live=True,
    )


@dataclass(frozen=True)
class SampleSettings:
    """Text that the model generates during a run."""

    sample_prompts: str | tuple[str, ...] = texts(
        "auto",
        "Sample prompts",
        "Prompts to generate from during the run, with and without the LoRA. auto takes three from your "
        "dataset. Or enter your own, one per line (\\n is a line break): as messages if you train on rows, as "
        "the start of a text if you train on raw text. The samples are saved in samples.jsonl and report.html.",
    )
    sample_every: int | str = integer(
        "epoch",
        "Sample every",
        "Generate samples after each epoch or every this many steps, and also before the first step and at the "
        "end. never generates them only when you ask.",
        bounds=(1, 10**8),
        words=("epoch", "never"),
    )
    sample_length: int = integer(
        100,
        "Sample length (tokens)",
        "Maximum length of a sample. It ends earlier if the model ends it or the context is full.",
        bounds=(1, 10_000),
    )
    sample_temperature: float = number(
        0.7,
        "Temperature",
        "0 always takes the most likely token; higher values vary more. Each sample starts from the seed of the "
        "run, so that the samples of a run can be compared.",
        bounds=(0, 5),
    )


@dataclass(frozen=True)
class ReportingSettings:
    """Where else a run is logged."""

    report_to: str = choice(
        "Report to",
        "Also log the run to one or more of the services that transformers supports. Their packages must be "
        "installed. Files go into the LoRA's folder; those from trackio and MLflow go into the logs folder. "
        "Weights & Biases and SwanLab stay offline unless WANDB_MODE or SWANLAB_MODE says otherwise.",
        {
            "none": "None",
            "tensorboard": "TensorBoard",
            "wandb": "Weights & Biases",
            "trackio": "trackio",
            "mlflow": "MLflow",
            "azure_ml": "Azure ML",
            "clearml": "ClearML",
            "codecarbon": "CodeCarbon (energy use)",
            "comet_ml": "Comet",
            "dagshub": "DagsHub",
            "dvclive": "DVCLive",
            "flyte": "Flyte",
            "kubeflow": "Kubeflow",
            "neptune": "Neptune",
            "swanlab": "SwanLab",
            "all": "All that are installed",
        },
        free=True,
        one="several names",
        check=reporters_problem,
    )
    run_name: str = text(
        "",
        "Run name",
        "Name of the run in the reporters. If empty, the name of the LoRA is used. TensorBoard shows the folder "
        "instead.",
    )
    logging_steps: float | str = integer(
        "auto",
        "Log every (steps)",
        "How often the console and the reporters get a step; the reporters get the mean loss since the last one. "
        "auto: the console every two seconds, the reporters every step. The curve always has every step.",
        bounds=(1, 10**8),
        words=("auto",),
        share=True,
    )
    logging_first_step: bool = boolean(
        True, "Log the first step", "Also log the first step if Log every skips it. The last one is always logged."
    )

    @property
    def reporters(self) -> tuple[str, ...]:
        """The names of the reporters; "all" stands for all that are installed."""
        return tuple(name for name in split_names(self.report_to) if name != "none")


@dataclass(frozen=True)
class MachineSettings:
    """Memory and speed."""

    gradient_checkpointing: str = choice(
        "Gradient checkpointing",
        "Saves much VRAM by computing activations again, and makes training 20% to 30% slower. auto turns it on "
        "if the run would not fit on the GPU without it.",
        {"auto": "auto", "on": "on", "off": "off"},
    )
    packing: str = choice(
        "Packing",
        "Put the examples of a batch in one row without padding. The more their lengths differ, the more time "
        "this saves. Batch size, steps and losses stay the same. auto uses it if a test at the start shows that "
        "the model keeps the examples apart.",
        {"auto": "auto", "on": "on", "off": "off"},
        fixed=True,
    )
    keep_awake: bool = boolean(
        True,
        "Keep the computer awake",
        "Prevent the computer from going to sleep during a run. Closing a laptop can still put it to sleep.",
    )
    attention: str = choice(
        "Attention",
        "Attention implementation. auto keeps the one that the model was loaded with. flash_attention_2 is the "
        "fastest for long texts and needs an NVIDIA GPU and the package flash-attn.",
        {"auto": "auto", "sdpa": "sdpa", "eager": "eager", "flash_attention_2": "flash attention 2"},
    )
    tf32: bool = boolean(
        True,
        "TF32",
        "On NVIDIA GPUs, multiply float32 numbers much faster with slightly less precision. Only affects "
        "float32 models.",
    )
    liger: bool = boolean(
        False,
        "Liger kernels",
        "Faster kernels. They need an NVIDIA GPU and the package liger-kernel.",
    )
    compile: bool = boolean(
        False,
        "Compile",
        "Compile the model's layers before the run: takes minutes at the start and makes steps faster. If it "
        "fails, the run continues without it and says so.",
    )
    workers: int = integer(
        0,
        "Workers",
        "Processes that prepare batches. Preparing takes little time here, so 0 is almost always right. Not "
        "available inside the webui.",
        bounds=(0, 64),
    )
    shard_size: str = text(
        "5GB",
        "Shard size",
        "Maximum size of each file of a full model, from full fine-tuning or a merge.",
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

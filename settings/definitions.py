"""Declarations of all settings. The form, the settings file, the flags, the checks and the reference use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

from ..schedulers import SCHEDULES, Phase, ScheduleSteps, get_schedule, schedule_problem
from ..train_utils import StepPlan
from .columns import columns_problem
from .name_rules import layers_problem, name_problem, shard_size_problem
from .setting import Setting, boolean, choice, integer, names, number, text, texts

FULL_FINETUNE = "full"
RANDOM_SEED, MAX_SEED = -1, 2**32 - 1


# The docstrings of the section classes are the section titles in the reference and in --help.


# A `fixed` setting is one whose change would make a resumed run another run.
@dataclass(frozen=True)
class RunSettings:
    """What to train, and on which data."""

    name: str = text(
        "",
        "Name",
        "Name of the LoRA. The run creates a folder with this name in your LoRA folder.",
        check=name_problem,
    )
    data: tuple[str, ...] = names(
        "Dataset",
        "The files and folders to train on, from training/datasets. For raw text, use .txt, .md, .html, .epub, "
        ".pdf, .docx, .odt, .srt, .vtt, or a folder of such files, which is read in natural order (2.txt before "
        "10.txt). For chats and tables, with one example in each row, use .json, .jsonl, .csv, .tsv, .db, "
        ".sqlite, .sql, or .parquet. To use only part of a dataset or to repeat it, enter a percentage below this "
        "field. On the command line, write it after the name: chats.jsonl:50 uses half of that file, and "
        "notes.md:200 uses that file twice.",
    )
    if_exists: str = choice(
        "If the name exists",
        "If a LoRA with this name already exists, you can continue its training, replace it, or use a new name. "
        "With Ask, Training PRO asks you when you press Start.",
        {
            "ask": "Ask",
            "continue": "Continue its training",
            "replace": "Replace it (a backup is kept)",
            "new_name": "Use a new name",
        },
    )
    seed: int = integer(
        42,
        "Seed",
        "Random seed. On a CPU, the same seed, data, and settings give exactly the same LoRA. -1 picks a new "
        "seed for each run and saves it with the run.",
        bounds=(RANDOM_SEED, MAX_SEED),
        fixed=True,
    )
    data_seed: int | str = integer(
        "auto",
        "Data seed",
        "Seed for the validation split, for choosing examples from datasets that you use only in part, and for "
        'the order of the examples. With auto, it is the same as "Seed". -1 picks a new seed for each run.',
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
        "Maximum number of tokens in one example. A larger cutoff lets the model learn from more context but "
        "uses more VRAM. With auto, it is 256 tokens for raw text. For chats and tables, auto uses the length of "
        "the longest row, up to 2048 tokens.",
        bounds=(16, 131072),
        words=("auto",),
    )
    chunking: str = choice(
        "Chunking",
        "How raw text is sliced: into separate blocks of whole sentences, or into the overlapping windows of "
        "DEMENTOR. By default, a window starts at every sentence, so the model sees each sentence many times in "
        "one epoch.",
        {
            "blocks": "Blocks of whole sentences",
            "dementor": "DEMENTOR: overlapping windows of whole sentences",
        },
    )
    block_ends: str = choice(
        "Blocks end at",
        "Where blocks end. With auto, they end after a sentence, or after a line if each line of a section "
        "stands on its own, as in chat logs, scripts, and verse. Check shows the result of auto. A line longer "
        "than the cutoff is split between sentences.",
        {"auto": "Auto", "sentences": "Sentences", "lines": "Lines"},
    )
    drop_boilerplate: bool = boolean(
        False,
        "Drop boilerplate",
        "Drop everything that does not belong to the text itself: notices from Project Gutenberg and Standard "
        "Ebooks, tables of contents, page headings, page numbers, [Illustration] markers, and the menus, headers, "
        "and footers of web pages. Check lists the boilerplate that it finds.",
    )
    join_lines: bool = boolean(
        False,
        "Join wrapped lines",
        "Join the lines of each paragraph in texts whose lines are wrapped, such as books from Project Gutenberg. "
        "Otherwise, the model also learns where the lines break. Verse, lists, scripts and chat logs keep their "
        "lines. Check suggests this setting if a text is wrapped.",
    )
    overlap: bool = boolean(
        True,
        "Overlap blocks",
        "Add a block between every two neighboring blocks, from the middle of one to the middle of the next. "
        "A sentence at the edge of one block is then in the middle of another. Overlap blocks never cross a hard "
        "cut. DEMENTOR does not need them.",
    )
    dementor_repeats: int = integer(
        0,
        "DEMENTOR repeats",
        "About how many times the model sees each sentence in an epoch. 0 means as many times as possible: a "
        "window starts at every sentence.",
        bounds=(0, 1000),
    )
    hard_cut: str = text(
        "\\n\\n\\n",
        "Hard cut",
        "Text that separates sections. No block crosses it. The default is three line breaks in a row (two empty "
        "lines). Write \\n for a line break and \\t for a tab. Leave this empty to use no hard cuts.",
    )
    min_chars: int = integer(
        0,
        "Ignore small blocks (characters)",
        "Drop blocks with this many characters or fewer. Check shows how many blocks this drops.",
        bounds=(0, 100000),
    )
    add_bos: bool = boolean(
        True,
        "Add BOS token",
        "Start each block with the beginning-of-sequence token, if the model's tokenizer normally adds one.",
    )
    add_eos: str = choice(
        "Add EOS token",
        'Where to add the end-of-sequence token. "After every block" teaches the model to stop in the middle of '
        "a text.",
        {"hard_cut": "At each hard cut", "every_block": "After every block", "never": "Never"},
    )


@dataclass(frozen=True)
class RowSettings:
    """How rows, such as chats, become examples, and which part of them counts toward the loss."""

    format: str = choice(
        "Data format",
        "How rows are turned into text. With auto, chats and columns with questions and answers use the model's "
        "chat template. For another prompt format, choose a format file, or put your own in training/formats.",
        {
            "auto": "Auto, based on the columns",
            "chat": "Chat template",
            "text": "Text column, unchanged",
            "alpaca-format": "Alpaca",
            "alpaca-chatbot-format": "Alpaca as a chat (User and Assistant)",
            "vicuna-format": "Vicuna",
            "ChatML-format": "ChatML",
            "llama2-chat-format": "Llama 2 chat",
            "llama3-format": "Llama 3",
            "mistral-format": "Mistral",
            "plain-format": "Plain: question, answer",
        },
        free=True,
        one="the name of a format file",
    )
    columns: str = text(
        "",
        "Column names",
        "The names that your dataset uses for the expected columns, for example instruction=question "
        "output=answer. Put names with spaces in double quotes. If a column has no name, use its number. For a "
        "database, enter table=NAME or a SELECT statement.",
        check=columns_problem,
    )
    system: str = text(
        "",
        "System message",
        "System message for rows that do not have one.",
        long=True,
    )
    train_on: str = choice(
        "Train on",
        "The part of each row that counts toward the loss. The model sees the rest as context. With auto, only "
        "the replies count if the rows have any, and everything counts otherwise. A message with "
        '"train": false or "weight": 0 is never trained on.',
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
        "Train only on the part of a row after the first occurrence of this text, for example ### Response:. "
        'This overrides "Train on" and the "train" of messages. Rows that do not contain this text are dropped.',
        long=True,
    )
    too_long: str = choice(
        "Rows over the cutoff",
        'What to do with rows that are longer than the cutoff. "Drop a few" stops the run if more than 5% of the '
        'rows would be dropped. "Split" divides a chat before user messages and repeats its system message.',
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
        "If a prompt has more tokens than this, the tokens at its end are dropped. The text between the prompt "
        "and the reply, which the prompt format adds, is never dropped. This applies to rows with one reply, "
        "before the cutoff is applied. 0 turns this off.",
        bounds=(0, 131072),
    )
    target_max_len: int = integer(
        0,
        "Maximum reply length",
        "If a reply has more tokens than this, the tokens at its end are dropped, including its end token. This "
        "applies to rows with one reply, before the cutoff is applied. 0 turns this off.",
        bounds=(0, 131072),
    )
    bad_rows: str = choice(
        "Invalid rows",
        "What to do with rows that can't be read. If more than a tenth of all rows can't be read, the run stops "
        "anyway.",
        {"stop": "Stop and list them", "skip": "Skip them"},
    )
    split_exchanges: bool = boolean(
        False,
        "Split chats into exchanges",
        "Turn each user message and its reply into a separate example. The system message is part of each "
        "example. The pair phase of hybrid batching then shows the model two exchanges from the same chat "
        "together.",
    )
    chat_side: str = choice(
        "Chat side",
        "Whose messages the model learns to write, in chats from TextGen, SillyTavern, and messengers.",
        {"character": "The character, or the other people", "user": "Mine"},
    )
    chat_user: str = text(
        "",
        "My name in chats",
        "Your name in exports of messengers, which do not say which messages are yours. If the chat is named "
        "after the other person, leave this empty. In chats with a character, it replaces {{user}}.",
    )
    chat_context: bool = boolean(
        True,
        "Use the character's context",
        "Start your TextGen chats with the context of the character as the system message. If "
        "this is off, the LoRA learns the character without its context.",
    )
    chat_names: bool = boolean(
        False,
        "Replace names",
        "In exports of messengers, replace the name of each person with Person 1, Person 2, and so on, also "
        "inside messages. Names of people who wrote nothing stay.",
    )


# The values of "auto": the betas that the papers and TRL use, and the term that is part of ORPO.
AUTO_BETA = {"dpo": 0.1, "ipo": 0.1, "kto": 0.1, "orpo": 0.1, "simpo": 2.0}
AUTO_CHOSEN_WEIGHT = {"orpo": 1.0}
REFERENCE_OBJECTIVES = ("dpo", "ipo", "kto")  # compare the model with itself without the LoRA


@dataclass(frozen=True)
class PreferenceSettings:
    """The objective: next tokens, or preferences between replies."""

    objective: str = choice(
        "Objective",
        "What the model learns. Next token is the usual training. The others learn from preferences: DPO, IPO, "
        "ORPO, and SimPO from rows with a chosen and a rejected reply to the same prompt, and KTO also from "
        "replies labeled true or false. DPO, IPO, and KTO compare the model with itself without the LoRA. ORPO "
        "and SimPO don't, which takes less time. Use a learning rate of about 0.00002.",
        {"next_token": "Next token", "dpo": "DPO", "ipo": "IPO", "kto": "KTO", "orpo": "ORPO", "simpo": "SimPO"},
        fixed=True,
    )
    preferences: str = choice(
        "Source of preferences",
        "Where the preferences come from. With auto, they come from the columns of your rows (chosen and "
        "rejected, or completion and label), and in chats from the versions of each reply that you did not keep.",
        {"auto": "Auto", "columns": "Columns of the rows"},
        fixed=True,
    )
    beta: float | str = number(
        "auto",
        "Beta",
        "How strongly the objective acts. With DPO, IPO, and KTO, a higher beta keeps the model closer to what it "
        "was without the LoRA. With ORPO, it is the weight of the comparison, and with SimPO the scale of the "
        "difference between the replies. With auto, it is 0.1, and 2 with SimPO.",
        bounds=(0.001, 100),
        words=("auto",),
        fixed=True,
    )
    preference_smoothing: float = number(
        0.0,
        "Preference smoothing",
        "Share of the pairs whose replies may be swapped by mistake. 0.1 makes DPO and SimPO less certain of each "
        "pair. 0 turns this off.",
        bounds=(0, 0.49),
        fixed=True,
    )
    chosen_weight: float | str = number(
        "auto",
        "Weight of the chosen reply",
        "Weight of the next-token loss on the chosen replies, which is added to the objective. It keeps the model "
        "from making the chosen replies less likely, too. With auto, it is 1 with ORPO and 0 with the others.",
        bounds=(0, 100),
        words=("auto",),
        fixed=True,
    )

    @property
    def compares(self) -> bool:
        """Whether the run learns from preferences."""
        return self.objective != "next_token"

    @property
    def from_versions(self) -> bool:
        """Whether the versions of replies in chats are read as preferences."""
        return self.compares and self.preferences == "auto"

    @property
    def needs_reference(self) -> bool:
        return self.objective in REFERENCE_OBJECTIVES

    @property
    def effective_beta(self) -> float:
        return AUTO_BETA.get(self.objective, 0.0) if isinstance(self.beta, str) else self.beta

    @property
    def effective_chosen_weight(self) -> float:
        auto = AUTO_CHOSEN_WEIGHT.get(self.objective, 0.0)
        return auto if isinstance(self.chosen_weight, str) else self.chosen_weight


@dataclass(frozen=True)
class EvaluationSettings:
    """Validation data, which is used only to evaluate the model."""

    eval_data: tuple[str, ...] = names(
        "Evaluation dataset",
        "Datasets that are used only for evaluation, not for training. The run measures the loss on them before "
        "the first step, during training, and at the end.",
    )
    eval_share: float = number(
        0.0,
        "Validation split",
        "Share of the dataset to use for validation instead of training. For example, 0.05 is 5%. The run "
        "selects whole sections and rows at random, based on the data seed. Of a text with fewer than ten "
        "sections, it is at least about a tenth. 0 turns this off.",
        bounds=(0, 0.99),
    )
    eval_every: float = integer(
        0,
        "Evaluate every (steps)",
        "How often to measure the validation loss, in steps. 0 measures it at the end of each epoch, and 0.1 "
        "after every tenth of the run.",
        bounds=(0, 10**8),
        share=True,
    )
    eval_batch_size: int | str = integer(
        "auto",
        "Evaluation batch size",
        "Number of validation examples that the GPU processes at the same time. With auto, it is the True Batch "
        "Size. Evaluation needs less VRAM than training, so a larger batch often fits and is faster.",
        bounds=(1, 1024),
        words=("auto",),
    )
    recall_passages: int = integer(
        16,
        "Recall passages",
        "Number of passages from the training data that the model is asked to continue, to measure how much it "
        "has memorized. This happens before the first step, after epochs if that takes little of their time, and "
        "at the end. 0 turns this off.",
        bounds=(0, 10_000),
    )
    exam: tuple[str, ...] = names(
        "Exam",
        "Datasets of questions with short answers. The run asks them without any help and counts the right "
        "answers by chapter: before the first step, after epochs if that takes little of their time, and at the "
        "end. The training data must not have these questions. The Data tab writes an exam about a text.",
    )
    test_at_end: bool = boolean(
        False,
        "Test the LoRA at the end",
        "After the run, measure what the model learned, what it forgot, and how much it copies from the training "
        "data. The Test LoRA button in the Runs tab also measures recall on more passages.",
    )


@dataclass(frozen=True)
class StepSettings:
    """How many examples each step uses, and how many steps a run has."""

    batch_size: int = integer(
        4,
        "True Batch Size",
        "Number of examples that the GPU processes at the same time (micro batch size). A larger batch makes the "
        "loss smoother but uses more VRAM.",
        bounds=(1, 1024),
        fixed=True,
    )
    accumulation: int = integer(
        1,
        "Gradient Accumulation",
        "Number of batches in one step. More batches take more time but not more VRAM. The loss is averaged over "
        "all tokens of the step, so the gradients are the same as for one larger batch, apart from rounding.",
        bounds=(1, 1024),
    )
    epochs: float = number(
        2.0, "Epochs", "Number of passes over the training data. Fractions are allowed.", bounds=(0.01, 1000)
    )
    max_steps: int = integer(
        0,
        "Max steps",
        "Number of steps to train for, instead of a number of epochs. Set this to 0 to train by epochs.",
        bounds=(0, 10**8),
    )
    batching: str = choice(
        "Batch order",
        'Which examples share a batch. "By length" groups examples of similar length, which need little padding, '
        'and starts with the longest ones. "Sequential" keeps the order of the dataset. "Hybrid" groups examples '
        "by length until the switch, and keeps the order of the dataset after it. To learn a text by heart, "
        '"What is not known yet" spends each pass after the first on the examples of which the model predicts '
        "less than 90% of the tokens, which it measures before the pass.",
        {
            "shuffled": "Shuffled",
            "by_length": "By length",
            "sequential": "Sequential",
            "length_then_order": "Hybrid: by length, then sequential",
            "not_known": "What is not known yet",
        },
        fixed=True,
    )

    def plan(self, examples: int, processes: int = 1) -> StepPlan:
        return StepPlan(examples, self.batch_size, self.accumulation, self.epochs, self.max_steps, processes)


@dataclass(frozen=True)
class SwitchSettings:
    """When hybrid batching switches from one order to the next."""

    switch_after: str = choice(
        "Switch after",
        "What makes hybrid batching switch to sequential order: a number of epochs or steps, or the loss. With "
        '"Loss", it switches at the first step whose smoothed loss is at or below the upper bound.',
        {"epochs": "Epochs", "steps": "Steps", "loss": "Loss"},
    )
    switch_at: int = integer(
        1,
        "Switch at",
        "Number of epochs or steps before the batch order switches.",
        bounds=(0, 10**8),
    )
    switch_loss_low: float = number(
        2.0,
        "Loss at which to switch: lower bound",
        "This value doesn't cause a switch. If the loss is at or below it when the order switches, a note says "
        "that the first phase was short because the loss fell quickly.",
        bounds=(0, 100),
    )
    switch_loss_high: float = number(
        2.5,
        "Loss at which to switch: upper bound",
        "The batch order switches when the smoothed loss is at or below this value.",
        bounds=(0, 100),
    )
    switch_pairs: bool = boolean(
        False,
        "Pair phase",
        "Add a middle phase that joins pairs of neighboring examples into one sample, so that the model reads "
        "the first example when it predicts the second. A pair is two consecutive rows, or two adjacent blocks "
        "that do not overlap, and counts as two examples of the batch. This needs an even batch size.",
    )
    second_switch_at: int = integer(
        2,
        "Second switch at",
        "Number of epochs or steps from the start of the run to the end of the pair phase.",
        bounds=(0, 10**8),
    )
    second_switch_loss_low: float = number(
        1.5,
        "Loss at which to switch again: lower bound",
        "This value doesn't cause a switch. If the loss is at or below it when the pair phase ends, a note says "
        "that the pair phase was short because the loss fell quickly.",
        bounds=(0, 100),
    )
    second_switch_loss_high: float = number(
        2.0,
        "Loss at which to switch again: upper bound",
        "The pair phase ends when the smoothed loss is at or below this value.",
        bounds=(0, 100),
    )


@dataclass(frozen=True)
class LearningSettings:
    """Learning rate, schedule, and optimizer."""

    learning_rate: float = number(
        2e-4,
        "Learning Rate",
        "Size of each weight update. 0.0002 is common. At a higher rate, the model usually memorizes more "
        "and forgets more.",
        bounds=(1e-9, 0.9999),
    )
    schedule: str = choice(
        "LR Scheduler",
        "How the learning rate changes during the run. Choose a schedule, or enter points (position:factor) "
        "that are connected by straight lines. For example, 0:0 0.05:1 0.5:1 1:0 rises over the first 5% of the "
        "run, stays constant until the middle, and falls to 0 at the end. A position can also be an epoch: "
        "2e is the end of epoch 2, as in 2e:1.",
        {s.name: f"{s.name}: {s.words}" for s in SCHEDULES.values()},
        free=True,
        one="points (position:factor) such as 0:0 0.1:1 1:0",
        check=schedule_problem,
    )
    warmup_steps: float = number(
        0.05,
        "Warmup",
        "Number of steps over which the learning rate rises from 0. A value below 1 is a share of the run, "
        "but at most 100 steps and at most one epoch.",
        bounds=(0, 100000),
    )
    weight_decay: float = number(0.0, "Weight decay", "How strongly weights are pulled toward 0.", bounds=(0, 1))
    max_grad_norm: float = number(
        1.0,
        "Max gradient norm",
        "Scale down the gradients if their norm exceeds this value. 0 turns this off.",
        bounds=(0, 1000),
    )
    label_smoothing: float = number(
        0.0,
        "Label smoothing",
        "Share of each target token's probability that is spread over all other tokens, so that the model does "
        "not become overconfident.",
        bounds=(0, 0.5),
    )
    neftune_noise: float = number(
        0.0,
        "NEFTune noise",
        "Amount of noise (alpha) to add to the input embeddings. Noise can improve replies. 5 is common, and 0 "
        "turns this off.",
        bounds=(0, 100),
    )
    optimizer: str = choice(
        "Optimizer",
        "The 8-bit and paged optimizers use less memory but need the bitsandbytes package, and the paged ones "
        "also need a GPU. You can also enter the name of any other optimizer that transformers supports.",
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
        one="the name of another optimizer",
        fixed=True,
    )
    adam_beta1: float = number(
        0.9, "Adam beta 1", "Decay rate of the running average of the gradients.", bounds=(0, 0.9999)
    )
    adam_beta2: float = number(
        0.999, "Adam beta 2", "Decay rate of the running average of the squared gradients.", bounds=(0, 0.999999)
    )
    adam_epsilon: float = number(
        1e-8, "Adam epsilon", "Small constant that prevents division by zero.", bounds=(1e-12, 1e-2)
    )

    def phases(self, plan: StepPlan) -> list[Phase]:
        """The phases of the schedule for the steps of a run."""
        steps = ScheduleSteps(plan.steps, plan.steps_per_epoch, plan.warmup(self.warmup_steps))
        return get_schedule(self.schedule).phases(steps)


@dataclass(frozen=True)
class LoraSettings:
    """The LoRA."""

    method: str = choice(
        "Method",
        "Train a LoRA, or all weights of the model. Full fine-tuning needs many times as much memory as a LoRA, "
        "and it saves a new model in the models folder. It is not available for a model that the webui itself "
        "has loaded.",
        {"lora": "LoRA", FULL_FINETUNE: "Full fine-tuning"},
    )
    rank: int = integer(
        32,
        "LoRA Rank",
        "Size of the LoRA. 8 to 128 is common. A LoRA with a higher rank can hold more, but uses more memory. The "
        "rank can't exceed the model's hidden size (the width of its layers).",
        bounds=(1, 32768),
        fixed=True,
    )
    alpha: float | str = number(
        "auto",
        "LoRA Alpha",
        "The effect of the LoRA is multiplied by alpha / rank. With auto, alpha is equal to the rank.",
        bounds=(0.01, 131072),
        words=("auto",),
        fixed=True,
    )
    dropout: float = number(
        0.0,
        "LoRA Dropout",
        "Share of the LoRA's inputs that are set to 0 at random in each step.",
        bounds=(0, 0.9),
    )
    rslora: bool = boolean(
        False,
        "rsLoRA",
        "Scale the LoRA by alpha / sqrt(rank) instead of alpha / rank, so that a LoRA with a high rank does not "
        "learn too little.",
        fixed=True,
    )
    targets: str | tuple[str, ...] = choice(
        "Target modules",
        'The layers that get a LoRA. "All linear layers" is the usual choice, and "q-v" is the smaller selection '
        "from the original LoRA paper. You can also enter the names of layers in your model. Include "
        "embed_tokens (the embeddings) and lm_head (the output layer) if your data uses a syntax that is new to "
        "the model.",
        {
            "all-linear": "All linear layers (usual)",
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
        "Train the magnitude and the direction of each weight separately. This is slower. The DoRA paper reports "
        "better results at low ranks. DoRA does not work with 8-bit weights.",
        fixed=True,
    )
    train_head: bool = boolean(
        False,
        "Train Head",
        "Train the embeddings and the output layer in full, in addition to the LoRA. Use this for a new language "
        "or for many new words. It needs a lot of memory and disk space. An 8-bit optimizer uses less memory.",
        fixed=True,
    )
    modules_to_save: str | tuple[str, ...] = choice(
        "Modules to save",
        "Modules, such as norm, to train in full and save with the LoRA. Enter the names of modules in your "
        "model.",
        {"none": "None"},
        free=True,
        fixed=True,
    )
    bias: str = choice(
        "Bias",
        "Which biases of the model to train, if it has any: all of them, or only those of the layers with a "
        "LoRA. Most newer models have no biases.",
        {"none": "None", "all": "All biases", "lora_only": "Only those of the layers with a LoRA"},
        fixed=True,
    )
    layers_to_transform: str = text(
        "",
        "Layers to transform",
        "Indices of the decoder layers that get a LoRA, such as 0-7,12. The first layer is 0. Leave this empty "
        "to use all layers.",
        check=layers_problem,
        fixed=True,
    )
    lora_plus: float = number(
        1.0,
        "LoRA+",
        "Ratio of the learning rate of the LoRA's B matrices to that of its A matrices. A common value is "
        "16, with a quarter of the usual learning rate. 1 turns this off.",
        bounds=(0.01, 1000),
        fixed=True,
    )
    head_rate: float = number(
        1.0,
        "Train Head rate",
        'Learning rate of the embeddings, the output layer, and the modules in "Modules to save", relative to '
        "the learning rate of the LoRA. A small value such as 0.1 changes the embeddings of existing tokens less.",
        bounds=(0.001, 100),
        fixed=True,
    )

    @property
    def strength(self) -> float:
        """The factor on the output of the LoRA: `scaling` in PEFT."""
        return self.effective_alpha / (self.rank**0.5 if self.rslora else self.rank)

    @property
    def effective_alpha(self) -> float:
        """Alpha as a number: with auto, the rank."""
        return float(self.rank) if isinstance(self.alpha, str) else self.alpha

    def alpha_for(self, rank: int) -> dict[str, float]:
        """What to change for another rank: a number as alpha keeps its ratio to the rank, and auto follows it."""
        return {} if isinstance(self.alpha, str) else {"alpha": self.alpha * rank / self.rank}

    @property
    def saved_modules(self) -> tuple[str, ...]:
        """The names in `modules_to_save`."""
        return () if isinstance(self.modules_to_save, str) else self.modules_to_save

    @property
    def layers(self) -> frozenset[int]:
        """The numbers in `layers_to_transform`, such as 0-7,12; empty for all layers."""
        bounds = [part.split("-") for part in self.layers_to_transform.replace(" ", "").split(",") if part]
        return frozenset(number for part in bounds for number in range(int(part[0]), int(part[-1]) + 1))

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
        "How often to save a full checkpoint, in steps. 0.1 saves one after every tenth of the run. 0 turns this "
        "off.",
        bounds=(0, 10**8),
        share=True,
    )
    save_on_loss_drop: float = number(
        0.0,
        "Save when the loss falls below",
        "Starting from this loss, save a full checkpoint each time the smoothed loss falls by another 10% and "
        "stays there for three steps. 0 turns this off.",
        bounds=(0, 100),
    )
    save_each_epoch: bool = boolean(
        True,
        "Save after each epoch",
        "Save a full checkpoint at the end of each epoch and at the end of the run.",
    )
    backup_minutes: float = number(
        20.0,
        "Backup every (minutes)",
        "How often to save a full checkpoint in the backup folder, so that you can resume after a crash. The "
        "last two backups are kept during the run and deleted when it finishes successfully. 0 turns this off.",
        bounds=(0, 10**5),
    )
    keep_checkpoints: int = integer(
        3,
        "Full checkpoints to keep",
        "Number of full checkpoints to keep. Older ones keep only the LoRA: you can load and compare them, "
        "but you can't resume from them. The best checkpoint and those that you saved yourself always stay "
        "complete.",
        bounds=(1, 10**6),
    )
    keep_best: str = choice(
        "Keep the best",
        "At the end, save the best LoRA. The last one is kept as a checkpoint. The best LoRA is the one with "
        'the best validation result or, without a validation split, the lowest smoothed loss. "By '
        'accuracy" needs a validation split.',
        {"no": "No", "loss": "By loss", "accuracy": "By accuracy"},
    )


@dataclass(frozen=True)
class StoppingSettings:
    """When a run ends before its last step."""

    stop_at_loss: float = number(
        0.0,
        "Stop at loss",
        "End the run when the smoothed loss is at or below this value. 0 turns this off.",
        bounds=(0, 100),
    )
    stop_at_epoch: float = number(
        0.0, "Stop at epoch", "End the run after this many epochs. 0 turns this off.", bounds=(0, 1000)
    )
    early_stopping: int = integer(
        0,
        "Early stopping",
        "End the run after this many consecutive evaluations without improvement. This needs a validation split. "
        "0 turns this off.",
        bounds=(0, 1000),
    )
    stop_how: str = choice(
        "How to stop",
        "How the stopping rules end the run: immediately, or after the learning rate has fallen to 0 over a few "
        "more steps.",
        {"at_once": "Immediately", "wind_down": "Wind down"},
    )


@dataclass(frozen=True)
class SampleSettings:
    """Text that the model generates during a run."""

    sample_prompts: str | tuple[str, ...] = texts(
        "auto",
        "Sample prompts",
        "Prompts for the samples that the model generates during the run, with and without the LoRA. With auto, "
        "three prompts are taken from your dataset. You can also enter your own, one per line, with \\n for a "
        "line break. A prompt is used as a message if you train on rows, and as the start of a text if you train "
        "on raw text. The samples are saved in samples.jsonl and report.html.",
        words=("auto",),
    )
    sample_every: int | str = integer(
        "epoch",
        "Sample every",
        "When the run generates samples: after every epoch, or at a fixed interval of steps. It also generates "
        "them before the first step and when the run finishes. With never, it generates them only when you ask "
        "for them.",
        bounds=(1, 10**8),
        words=("epoch", "never"),
    )
    sample_length: int = integer(
        100,
        "Sample length (tokens)",
        "Maximum length of a sample. A sample is shorter if the model ends it earlier or if the context is full.",
        bounds=(1, 10_000),
    )
    sample_temperature: float = number(
        0.7,
        "Temperature",
        "Randomness of the samples. 0 always picks the most likely token, and higher values give more varied "
        "text. All samples use the seed of the run, so you can compare those from different steps.",
        bounds=(0, 5),
    )


@dataclass(frozen=True)
class ReportingSettings:
    """Logging to other tools, such as TensorBoard."""

    report_to: str = choice(
        "Report to",
        "Log the run to a tool for tracking runs, whose package must be installed. TensorBoard and Weights & "
        "Biases write their files to the LoRA's folder, and trackio to the logs folder. Weights & Biases stays "
        "offline unless you set WANDB_MODE.",
        {
            "none": "None",
            "tensorboard": "TensorBoard",
            "wandb": "Weights & Biases",
            "trackio": "trackio",
        },
    )
    run_name: str = text(
        "",
        "Run name",
        "Name of the run in reporting tools such as Weights & Biases. If this is empty, they show the name of "
        "the LoRA. TensorBoard always shows the folder name.",
    )
    logging_steps: float | str = integer(
        "auto",
        "Log every (steps)",
        "How often to log a step to the console and the reporting tools. The reporting tools get the mean loss "
        "since the last logged step. With auto, the console shows a progress bar, or a step every ten seconds if "
        "it is no terminal, and the reporting tools get every step. The loss curve always shows every step.",
        bounds=(1, 10**8),
        words=("auto",),
        share=True,
    )
    logging_first_step: bool = boolean(
        True,
        "Log the first step",
        'Log the first step even if "Log every" would skip it. The last step is always logged.',
    )


@dataclass(frozen=True)
class MachineSettings:
    """Memory and speed."""

    gradient_checkpointing: str = choice(
        "Gradient checkpointing",
        "Save a lot of VRAM by recomputing activations, which makes training 20% to 30% slower. half recomputes "
        "every second layer, which saves half and costs half. offload also keeps the input of each layer in RAM, "
        "for long texts. With auto, half or on is used only if the run would not fit on the GPU otherwise.",
        {"auto": "auto", "on": "on", "half": "half", "offload": "on, with RAM", "off": "off"},
    )
    packing: str = choice(
        "Packing",
        "Join the examples of a batch into one sequence without padding (padding-free batching). The more their "
        "lengths differ, the more time this saves. Batch size, steps, and losses stay the same. With auto, "
        "packing is used if a test at the start shows that the model keeps the examples separate. Eager "
        "attention, as in Gemma 2, is not packed: it takes memory for every pair of tokens.",
        {"auto": "auto", "on": "on", "off": "off"},
        fixed=True,
    )
    keep_awake: bool = boolean(
        True,
        "Keep the computer awake",
        "Prevent the computer from going to sleep during a run. If you close the lid of a laptop, it can still "
        "go to sleep.",
    )
    attention: str = choice(
        "Attention",
        'Attention implementation. With auto, the model keeps the one that it was loaded with. "flash attention '
        '2" is the fastest for long texts and needs an NVIDIA GPU and the flash-attn package.',
        {"auto": "auto", "sdpa": "sdpa", "eager": "eager", "flash_attention_2": "flash attention 2"},
    )
    tf32: bool = boolean(
        True,
        "TF32",
        "On NVIDIA GPUs, multiply float32 numbers much faster with slightly less precision. This affects only "
        "float32 models.",
    )
    liger: bool = boolean(
        False,
        "Liger kernels",
        "Require the kernels of the liger-kernel package. Where it is installed, they are used on an NVIDIA GPU "
        "anyway, if the model's results stay the same.",
    )
    compile: bool = boolean(
        False,
        "Compile",
        "Compile the model's layers, which takes up to several minutes, if a test at the start shows that the run "
        "saves more time than that. If compiling fails, the run shows a note and continues without it.",
    )
    workers: int = integer(
        0,
        "Workers",
        "Number of processes that prepare batches. Batches take little time to prepare, so 0 is almost always "
        "right. This setting is not available for a model that the webui "
        "itself has loaded.",
        bounds=(0, 64),
    )
    shard_size: str = text(
        "5GB",
        "Shard size",
        "Maximum size of each file when a full model is saved after full fine-tuning or a merge.",
        check=shard_size_problem,
    )


@dataclass(frozen=True)
class TrainingSettings:
    """All settings of a run, by section."""

    what: RunSettings = field(default_factory=RunSettings)
    text: TextSettings = field(default_factory=TextSettings)
    rows: RowSettings = field(default_factory=RowSettings)
    preferences: PreferenceSettings = field(default_factory=PreferenceSettings)
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

    @property
    def dataset_names(self) -> tuple[str, ...]:
        """The datasets that the run reads, each once."""
        return tuple(dict.fromkeys((*self.what.data, *self.aside.eval_data, *self.aside.exam)))

    @property
    def has_pairs(self) -> bool:
        """Whether a phase joins neighboring examples, so that a batch must be even."""
        return self.switching.switch_pairs and self.steps.batching == "length_then_order"

    def with_name(self, name: str) -> TrainingSettings:
        """Return a copy with this name for the LoRA."""
        return replace(self, what=replace(self.what, name=name))

    def values(self) -> dict[str, Any]:
        """Return flat keys and plain values, as in a settings file."""
        sections = (getattr(self, f.name) for f in fields(self))
        flat = {f.name: getattr(s, f.name) for s in sections for f in fields(s)}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in flat.items()}


SECTIONS: Mapping[str, type[Any]] = {f.name: cast(type[Any], f.default_factory) for f in fields(TrainingSettings)}
# Rules for saving and stopping may change during a run; the phases of hybrid batching not even in a resumed one.
OF_SECTION = {"saving": {"live": True}, "stopping": {"live": True}, "switching": {"fixed": True}}
SETTINGS: Mapping[str, Setting] = {
    f.name: Setting(key=f.name, section=name, default=f.default, **{**f.metadata, **OF_SECTION.get(name, {})})
    for name, section in SECTIONS.items()
    for f in fields(section)
}


def section_keys(*sections: str) -> tuple[str, ...]:
    """Return the keys of the settings in these sections."""
    return tuple(key for key, setting in SETTINGS.items() if setting.section in sections)

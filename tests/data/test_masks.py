"""The learned tokens of rows: three families of templates, formats, flags, and markers in the text."""

import random
from functools import cache

import pytest
from training_pro.core.errors import DataError
from training_pro.data.rows import prompt_formats
from training_pro.engine.tokenizer import make_working_tokenizer
from training_pro.tests import real_tokenizers
from training_pro.tests.rowing import (
    CHATML_TOKENS,
    FAMILIES,
    THINKING,
    chat,
    family,
    learned_parts,
    learned_text,
    prepare_rows,
    token_strings,
    with_template,
)

STOPS = {"ChatML": "<|im_end|>", "Llama-3": "<|eot_id|>", "Mistral": "</s>"}
CONVERSATION = ("What is the capital of France?", "Paris, of course.", "And of Italy?", "Rome. It is old.")
PLAIN = {"instruction": "Name a colour.", "output": "Blue, like the sea."}


@cache
def without_template(kind):
    """Made once: the largest of these tokenizers takes a second."""
    return with_template(real_tokenizers.TOKENIZERS[kind](), None)


@cache
def mistrals_own():
    return make_working_tokenizer(real_tokenizers.mistral_backend())


def first_example(tmp_path, name, rows, **values):
    data = prepare_rows(tmp_path, family(name), {"rows.jsonl": rows}, **values)
    assert data.report.problems == ()
    return data.examples[0]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_reply_with_its_stop_and_nothing_else(tmp_path, name):
    stop = STOPS[name]
    example = first_example(tmp_path, name, [chat(*CONVERSATION)])
    assert learned_text(family(name), example) == f"{CONVERSATION[1]}{stop}|{CONVERSATION[3]}{stop}"


@pytest.mark.parametrize("name", FAMILIES)
def test_the_last_reply_only(tmp_path, name):
    example = first_example(tmp_path, name, [chat(*CONVERSATION)], train_on="last_reply")
    assert learned_text(family(name), example) == f"{CONVERSATION[3]}{STOPS[name]}"


@pytest.mark.parametrize("name", FAMILIES)
def test_everything(tmp_path, name):
    tokenizer = family(name)
    example = first_example(tmp_path, name, [chat(*CONVERSATION)], train_on="everything")
    assert example.loss_mask.all()
    assert example.labels.tolist() == [-100, *example.ids[1:].tolist()]
    assert tokenizer.decode(example.ids.tolist()) == example.text


@pytest.mark.parametrize("name", FAMILIES)
def test_messages_with_flags_for_what_is_learned(tmp_path, name):
    row = chat(*CONVERSATION)
    row["messages"][1]["train"] = False
    row["messages"][2]["weight"] = 1
    example = first_example(tmp_path, name, [row])
    text = learned_text(family(name), example)
    assert CONVERSATION[1] not in text
    assert CONVERSATION[2].split()[-1] in text
    assert text.endswith(f"{CONVERSATION[3]}{STOPS[name]}")


def test_a_message_of_weight_0_is_not_learned_with_everything(tmp_path):
    row = chat(*CONVERSATION)
    row["messages"][1]["weight"] = 0
    example = first_example(tmp_path, "ChatML", [row], train_on="everything")
    text = learned_text(family("ChatML"), example)
    assert CONVERSATION[1] not in text and CONVERSATION[0] in text and CONVERSATION[3] in text


EXACT = {  # learned tokens are in parentheses
    "ChatML": "<|im_start|> u s er Ċ H i <|im_end|> Ċ <|im_start|> as si st an t Ċ (No) (.) (<|im_end|>) Ċ",
    "Llama-3": "<s> <|start_header_id|> user <|end_header_id|> ĊĊ Hi <|eot_id|> <|start_header_id|> ass istant "
    "<|end_header_id|> ĊĊ (No) (.) (<|eot_id|>)",
    "Mistral": "<s> [ INST ] ▁Hi ▁[ / INST ] (▁No) (.) (</s>)",
}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_exact_tokens(tmp_path, name):
    """After '[/INST]', Mistral answers ' No.': the space is part of its first token."""
    example = first_example(tmp_path, name, [chat("Hi", "No.")])
    tokens = zip(token_strings(family(name), example.ids), example.labels.tolist(), strict=True)
    assert " ".join(token if label == -100 else f"({token})" for token, label in tokens) == EXACT[name]


REPLIES = ["Paris, of course: 1 < 2.", "Rome.\nIt is old – “really”."]
SHAPES = {
    "messages": chat("Hi", REPLIES[0], "And?", REPLIES[1]),
    "conversations": {
        "conversations": [
            {"from": "human", "value": "Hi"},
            {"from": "gpt", "value": REPLIES[0]},
            {"from": "human", "value": "And?"},
            {"from": "gpt", "value": REPLIES[1]},
        ]
    },
    "alpaca": {"instruction": "Name it.", "input": "a capital", "output": REPLIES[1]},
    "alpaca without an input": {"instruction": "Name it.", "input": "", "output": REPLIES[1]},
    "prompt and response": {"prompt": "Hi", "response": REPLIES[1]},
    "input and output": {"input": "Hi", "output": REPLIES[1]},
    "question and answer": {"question": "Hi?", "answer": REPLIES[1]},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [*FAMILIES, "Mistral's own"])
def test_the_learned_text_is_exactly_the_replies(tmp_path, name, shape):
    """With some tokenizers the first token of a reply includes the space before it; decoding may remove it."""
    tokenizer = family(name) if name in FAMILIES else mistrals_own()
    (example,) = prepare_rows(tmp_path, tokenizer, {"rows.jsonl": [SHAPES[shape]]}).examples
    stop = STOPS.get(name, "</s>")
    replies = REPLIES if "messages" in SHAPES[shape] or "conversations" in SHAPES[shape] else REPLIES[1:]
    assert [part.removeprefix(" ") for part in learned_parts(tokenizer, example)] == [r + stop for r in replies]
    assert all(
        label in (-100, own) for label, own in zip(example.labels.tolist(), example.ids.tolist(), strict=True)
    )


SPELLED_STOPS = {"ChatML-format": "<|im_end|>", "llama3-format": "<|eot_id|>"}  # before the tokenizer's EOS


@pytest.mark.parametrize("tokens", ["small byte-level", "Metaspace with byte fallback", "byte-level"])
@pytest.mark.parametrize("format", sorted(path.stem for path in prompt_formats.SHIPPED_FORMATS.glob("*.json")))
def test_the_learned_text_of_a_format_is_exactly_the_reply(tmp_path, format, tokens):
    tokenizer = without_template(tokens)
    rows = [
        {"instruction": "Name it.", "output": REPLIES[1]},
        {"instruction": "Name it.", "input": "a b", "output": "No."},
    ]
    data = prepare_rows(tmp_path, tokenizer, {"rows.json": rows}, format=format)
    eos = tokenizer.decode([tokenizer.eos])
    learned_texts = [learned_text(tokenizer, example) for example in data.examples]
    without_eos = [text.removesuffix(eos) for text in learned_texts]
    stop = SPELLED_STOPS.get(format, "")
    assert [text.lstrip(" ") for text in without_eos] == [REPLIES[1] + stop, "No." + stop]
    assert all(text.endswith(eos) and text.count(eos) == 1 for text in learned_texts)
    for example in data.examples:
        first = int((example.labels != -100).argmax())
        assert (example.labels[first:] == example.ids[first:]).all() and (example.labels[:first] == -100).all()


def test_contents_that_also_occur_in_the_template(tmp_path):
    """Places come from the template, not from a search for the contents, which the headers contain too."""
    example = first_example(tmp_path, "ChatML", [chat("user", "assistant", "assistant", "user\n")])
    assert learned_text(family("ChatML"), example) == "assistant<|im_end|>|user\n<|im_end|>"


def test_a_template_that_looks_at_the_contents(tmp_path):
    tokenizer = with_template(real_tokenizers.small_byte_level(), THINKING, CHATML_TOKENS, "<|im_end|>")
    row = chat("One?", "<think>short</think>Yes.", "Two?", "<think>long</think>No.")
    data = prepare_rows(tmp_path, tokenizer, {"rows.jsonl": [row]}, train_on="last_reply")
    text = learned_text(tokenizer, data.examples[0])
    assert text == "<think>long</think>\n\nNo.<|im_end|>"


def test_replies_that_the_template_shortens(tmp_path):
    tokenizer = with_template(real_tokenizers.small_byte_level(), THINKING, CHATML_TOKENS, "<|im_end|>")
    row = chat("One?", "<think>short</think>Yes.", "Two?", "<think>long</think>No.")
    data = prepare_rows(tmp_path, tokenizer, {"rows.jsonl": [row]})
    assert learned_text(tokenizer, data.examples[0]) == "Yes.<|im_end|>|<think>long</think>\n\nNo.<|im_end|>"


def test_a_system_message_where_the_template_takes_none(tmp_path):
    data = prepare_rows(tmp_path, family("Mistral"), {"rows.jsonl": [chat("Hi", "No.", system="Be brief.")]})
    assert "[INST] Be brief.\n\nHi [/INST] No.</s>" in data.examples[0].text
    (source,) = data.report.sources
    assert "in 1 row the system message is added to the start of the first user message" in source.notes[1]


def test_a_system_message_is_added_where_there_is_none(tmp_path):
    rows = [chat("Hi", "No."), chat("Hi", "No.", system="Own.")]
    data = prepare_rows(tmp_path, family("ChatML"), {"rows.jsonl": rows}, system="Given.")
    assert data.examples[0].text.startswith("<|im_start|>system\nGiven.<|im_end|>\n<|im_start|>user\nHi")
    assert data.examples[1].text.startswith("<|im_start|>system\nOwn.<|im_end|>\n<|im_start|>user\nHi")


@pytest.mark.parametrize(
    ("format", "text", "reply"),
    [
        ("alpaca-format", None, "Blue, like the sea."),
        ("alpaca-chatbot-format", "User: Name a colour.\nAssistant: Blue, like the sea.", " Blue, like the sea."),
        ("vicuna-format", "USER: Name a colour.\nASSISTANT: Blue, like the sea.", " Blue, like the sea."),
        ("plain-format", "Name a colour.\nBlue, like the sea.", "Blue, like the sea."),
        ("mistral-format", "[INST] Name a colour. [/INST] Blue, like the sea.", " Blue, like the sea."),
        ("llama2-chat-format", "[INST] Name a colour. [/INST] Blue, like the sea.", " Blue, like the sea."),
        ("Q: %instruction% A: %output%", "Q: Name a colour. A: Blue, like the sea.", " Blue, like the sea."),
    ],
)
def test_formats(tmp_path, format, text, reply):
    tokenizer = without_template("small byte-level")
    data = prepare_rows(tmp_path, tokenizer, {"rows.json": [PLAIN]}, format=format)
    (example,) = data.examples
    assert text is None or example.text == f"{text}<|end|>"
    assert learned_text(tokenizer, example) == f"{reply}<|end|>"


@pytest.mark.parametrize("format", ["mistral-format", "llama2-chat-format"])
def test_bos_and_eos_once_where_the_format_spells_them_out(tmp_path, format):
    tokenizer = without_template("Metaspace with byte fallback")
    (example,) = prepare_rows(tmp_path, tokenizer, {"rows.json": [PLAIN]}, format=format).examples
    assert token_strings(tokenizer, example.ids).count("</s>") == 1
    assert token_strings(tokenizer, example.ids)[-1] == "</s>"


@pytest.mark.parametrize("spelled", [True, False])
def test_bos_once_where_the_tokenizer_adds_one(tmp_path, spelled):
    from training_pro.hosts import tiny

    tokenizer = with_template(tiny._make_tokenizer(tiny.TRAINING_TEXT, adds_bos=True), None)
    format = "<|begin|>" * spelled + "%instruction% %output%" + "<|im_end|>" * spelled
    (example,) = prepare_rows(tmp_path, tokenizer, {"rows.json": [PLAIN]}, format=format).examples
    tokens = token_strings(tokenizer, example.ids)
    assert (tokens[0], tokens.count("<|begin|>")) == ("<|begin|>", 1)
    assert (tokens[-1], tokens.count("<|im_end|>")) == ("<|im_end|>", 1)


def test_without_bos_and_eos_where_they_are_not_wanted(tmp_path):
    from training_pro.hosts import tiny

    tokenizer = with_template(tiny._make_tokenizer(tiny.TRAINING_TEXT, adds_bos=True), None)
    values = {"format": "plain-format", "add_bos": False, "add_eos": "never"}
    (example,) = prepare_rows(tmp_path, tokenizer, {"rows.json": [PLAIN]}, **values).examples
    assert not {"<|begin|>", "<|im_end|>"} & set(token_strings(tokenizer, example.ids))


def test_prompt_and_completion_are_joined_unchanged(tmp_path):
    rows = [{"prompt": "The sea is", "completion": " blue."}]
    (example,) = prepare_rows(tmp_path, family("ChatML"), {"rows.jsonl": rows}).examples
    assert example.text == "The sea is blue.<|im_end|>"
    assert learned_text(family("ChatML"), example) == " blue.<|im_end|>"


def test_texts_are_learned_whole(tmp_path):
    (example,) = prepare_rows(tmp_path, family("ChatML"), {"rows.json": [{"text": "The sea is blue."}]}).examples
    assert example.text == "The sea is blue.<|im_end|>"
    assert example.labels.tolist() == [-100, *example.ids[1:].tolist()]


@pytest.mark.parametrize("kind", ["byte-level", "small byte-level", "Metaspace with byte fallback", "normalizing"])
def test_only_after_a_text_in_a_thousand_rows(tmp_path, kind):
    """Every label is -100 or its own id, and the learned text is the text after the marker."""
    rng = random.Random(5)
    letters = "ab cd é 日本 .:!\n 12"
    marker = "### Answer:"

    def random_string(max_length):
        return "".join(rng.choice(letters) for _ in range(rng.randrange(1, max_length)))

    rows = [{"text": f"Q{random_string(30)}{marker}{random_string(40)}A"} for _ in range(1000)]
    tokenizer = without_template(kind)
    data = prepare_rows(tmp_path, tokenizer, {"rows.jsonl": rows}, train_only_after=marker)
    assert len(data.examples) == 1000
    for row, example in zip(rows, data.examples, strict=True):
        marker_end = row["text"].index(marker) + len(marker)
        (piece,) = tokenizer.encode([row["text"]])
        expected = [int(i) for i, start in zip(piece.ids, piece.starts, strict=True) if start >= marker_end]
        labels = example.labels.tolist()
        assert all(label in (-100, own) for label, own in zip(labels, example.ids.tolist(), strict=True))
        eos = [tokenizer.eos] if tokenizer.eos is not None else []
        assert [label for label in labels if label != -100] == expected + eos
        first = min((int(s) for s in piece.starts if s >= marker_end), default=len(row["text"]))
        if kind != "normalizing":
            assert tokenizer.decode(expected).strip() == row["text"][first:].strip()


def test_rows_without_the_text_are_left_out_and_counted(tmp_path):
    rows = [{"text": "a ### b"}, {"text": "a b"}, {"text": "a ### c"}]
    data = prepare_rows(tmp_path, family("ChatML"), {"rows.json": rows}, train_only_after="###")
    assert [example.place for example in data.examples] == ["row 1", "row 3"]
    assert data.report.sources[0].rows.without_marker == 1


def test_a_run_that_would_learn_nothing_is_refused(tmp_path):
    with pytest.raises(DataError, match="No row contains '§'"):
        prepare_rows(tmp_path, family("ChatML"), {"rows.json": [{"text": "a b"}]}, train_only_after="§")
    row = chat("Hi", "No.")
    row["messages"][1]["train"] = False
    with pytest.raises(DataError, match="there is nothing left to train on"):
        prepare_rows(tmp_path / "b", family("ChatML"), {"rows.json": [row]})

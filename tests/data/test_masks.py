"""What is learned of a row, to the token: three families of templates, formats, flags, and markers in the text."""

import random

import pytest
from training_pro.core.errors import DataError
from training_pro.data.rows import prompt_formats
from training_pro.engine.tokenizer.tokenizer import working_tokenizer
from training_pro.tests import real_tokenizers
from training_pro.tests.rowing import (
    CHATML_TOKENS,
    FAMILIES,
    THINKING,
    chat,
    family,
    learned,
    learned_parts,
    made,
    pieces,
    with_template,
)

STOPS = {"ChatML": "<|im_end|>", "Llama-3": "<|eot_id|>", "Mistral": "</s>"}
TALK = ("What is the capital of France?", "Paris, of course.", "And of Italy?", "Rome. It is old.")
PLAIN = {"instruction": "Name a colour.", "output": "Blue, like the sea."}


def example(tmp_path, name, rows, **values):
    data = made(tmp_path, family(name), {"rows.jsonl": rows}, **values)
    assert data.report.problems == ()
    return data.examples[0]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_reply_with_its_stop_and_nothing_else(tmp_path, name):
    stop = STOPS[name]
    found = example(tmp_path, name, [chat(*TALK)])
    assert learned(family(name), found) == f"{TALK[1]}{stop}|{TALK[3]}{stop}"


@pytest.mark.parametrize("name", FAMILIES)
def test_the_last_reply_only(tmp_path, name):
    found = example(tmp_path, name, [chat(*TALK)], train_on="last_reply")
    assert learned(family(name), found) == f"{TALK[3]}{STOPS[name]}"


@pytest.mark.parametrize("name", FAMILIES)
def test_everything(tmp_path, name):
    tokenizer = family(name)
    found = example(tmp_path, name, [chat(*TALK)], train_on="everything")
    assert found.trained.all()
    assert found.labels.tolist() == [-100, *found.ids[1:].tolist()]
    assert tokenizer.decode(found.ids.tolist()) == found.text


@pytest.mark.parametrize("name", FAMILIES)
def test_messages_that_say_themselves_whether_they_are_learned(tmp_path, name):
    row = chat(*TALK)
    row["messages"][1]["train"] = False
    row["messages"][2]["weight"] = 1
    found = example(tmp_path, name, [row])
    text = learned(family(name), found)
    assert TALK[1] not in text
    assert TALK[2].split()[-1] in text
    assert text.endswith(f"{TALK[3]}{STOPS[name]}")


def test_a_silent_message_is_not_learned_where_everything_is(tmp_path):
    row = chat(*TALK)
    row["messages"][1]["weight"] = 0
    found = example(tmp_path, "ChatML", [row], train_on="everything")
    text = learned(family("ChatML"), found)
    assert TALK[1] not in text and TALK[0] in text and TALK[3] in text


EXACT = {  # what is learned stands in parentheses
    "ChatML": "<|im_start|> u s er Ċ H i <|im_end|> Ċ <|im_start|> as si st an t Ċ (No) (.) (<|im_end|>) Ċ",
    "Llama-3": "<s> <|start_header_id|> user <|end_header_id|> ĊĊ Hi <|eot_id|> <|start_header_id|> ass istant "
    "<|end_header_id|> ĊĊ (No) (.) (<|eot_id|>)",
    "Mistral": "<s> [ INST ] ▁Hi ▁[ / INST ] (▁No) (.) (</s>)",
}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_exact_tokens(tmp_path, name):
    """Asked with '[/INST]', Mistral answers ' No.': the space is its own, within its first token."""
    found = example(tmp_path, name, [chat("Hi", "No.")])
    tokens = zip(pieces(family(name), found.ids), found.labels.tolist(), strict=True)
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
def test_what_is_learned_is_the_replies_letter_for_letter(tmp_path, name, shape):
    """A space that leads to a reply is in its first token with some tokenizers; decoding takes it off or not."""
    tokenizer = family(name) if name in FAMILIES else working_tokenizer(real_tokenizers.mistral_s_own())
    (found,) = made(tmp_path, tokenizer, {"rows.jsonl": [SHAPES[shape]]}).examples
    stop = STOPS.get(name, "</s>")
    replies = REPLIES if "messages" in SHAPES[shape] or "conversations" in SHAPES[shape] else REPLIES[1:]
    assert [part.removeprefix(" ") for part in learned_parts(tokenizer, found)] == [r + stop for r in replies]
    assert all(label in (-100, own) for label, own in zip(found.labels.tolist(), found.ids.tolist(), strict=True))


SPELLED_STOPS = {"ChatML-format": "<|im_end|>", "llama3-format": "<|eot_id|>"}  # before the tokenizer's own


@pytest.mark.parametrize("tokens", ["small byte-level", "Metaspace with byte fallback", "byte-level"])
@pytest.mark.parametrize("format", sorted(path.stem for path in prompt_formats.SHIPPED.glob("*.json")))
def test_what_is_learned_of_a_spelled_format_letter_for_letter(tmp_path, format, tokens):
    tokenizer = with_template(real_tokenizers.KINDS[tokens](), None)
    rows = [
        {"instruction": "Name it.", "output": REPLIES[1]},
        {"instruction": "Name it.", "input": "a b", "output": "No."},
    ]
    data = made(tmp_path, tokenizer, {"rows.json": rows}, format=format)
    eos = tokenizer.decode([tokenizer.eos])
    found = [learned(tokenizer, one) for one in data.examples]
    ends = [one.removesuffix(eos) for one in found]
    stop = SPELLED_STOPS.get(format, "")
    assert [one.lstrip(" ") for one in ends] == [REPLIES[1] + stop, "No." + stop]
    assert all(one.endswith(eos) and one.count(eos) == 1 for one in found)
    for one in data.examples:
        first = int((one.labels != -100).argmax())
        assert (one.labels[first:] == one.ids[first:]).all() and (one.labels[:first] == -100).all()


def test_contents_that_the_template_s_own_words_hold(tmp_path):
    """Places come from the template, not from looking for the contents, which stand in the heads too."""
    found = example(tmp_path, "ChatML", [chat("user", "assistant", "assistant", "user\n")])
    assert learned(family("ChatML"), found) == "assistant<|im_end|>|user\n<|im_end|>"


def test_a_template_that_looks_at_the_contents(tmp_path):
    tokenizer = with_template(real_tokenizers.small_byte_level(), THINKING, CHATML_TOKENS, "<|im_end|>")
    row = chat("One?", "<think>short</think>Yes.", "Two?", "<think>long</think>No.")
    data = made(tmp_path, tokenizer, {"rows.jsonl": [row]}, train_on="last_reply")
    text = learned(tokenizer, data.examples[0])
    assert text == "<think>long</think>\n\nNo.<|im_end|>"


def test_replies_that_such_a_template_shortens(tmp_path):
    tokenizer = with_template(real_tokenizers.small_byte_level(), THINKING, CHATML_TOKENS, "<|im_end|>")
    row = chat("One?", "<think>short</think>Yes.", "Two?", "<think>long</think>No.")
    data = made(tmp_path, tokenizer, {"rows.jsonl": [row]})
    assert learned(tokenizer, data.examples[0]) == "Yes.<|im_end|>|<think>long</think>\n\nNo.<|im_end|>"


def test_a_system_message_where_the_template_takes_none(tmp_path):
    data = made(tmp_path, family("Mistral"), {"rows.jsonl": [chat("Hi", "No.", system="Be brief.")]})
    assert "[INST] Be brief.\n\nHi [/INST] No.</s>" in data.examples[0].text
    (source,) = data.report.sources
    assert "in 1 row it stands before the first question" in source.notes[1]


def test_a_system_message_is_added_where_there_is_none(tmp_path):
    rows = [chat("Hi", "No."), chat("Hi", "No.", system="Own.")]
    data = made(tmp_path, family("ChatML"), {"rows.jsonl": rows}, system="Given.")
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
    tokenizer = with_template(real_tokenizers.small_byte_level(), None)
    data = made(tmp_path, tokenizer, {"rows.json": [PLAIN]}, format=format)
    (found,) = data.examples
    assert text is None or found.text == f"{text}<|end|>"
    assert learned(tokenizer, found) == f"{reply}<|end|>"


@pytest.mark.parametrize("format", ["mistral-format", "llama2-chat-format"])
def test_bos_and_eos_once_where_the_template_spells_them_out(tmp_path, format):
    tokenizer = with_template(real_tokenizers.metaspace(), None)
    (found,) = made(tmp_path, tokenizer, {"rows.json": [PLAIN]}, format=format).examples
    assert pieces(tokenizer, found.ids).count("</s>") == 1
    assert pieces(tokenizer, found.ids)[-1] == "</s>"


@pytest.mark.parametrize("spelled", [True, False])
def test_bos_once_where_the_tokenizer_puts_one(tmp_path, spelled):
    from training_pro.hosts import tiny

    tokenizer = with_template(tiny._tokenizer(tiny.SAMPLE, adds_bos=True), None)
    format = "<|begin|>" * spelled + "%instruction% %output%" + "<|im_end|>" * spelled
    (found,) = made(tmp_path, tokenizer, {"rows.json": [PLAIN]}, format=format).examples
    tokens = pieces(tokenizer, found.ids)
    assert (tokens[0], tokens.count("<|begin|>")) == ("<|begin|>", 1)
    assert (tokens[-1], tokens.count("<|im_end|>")) == ("<|im_end|>", 1)


def test_without_bos_and_eos_where_they_are_not_wanted(tmp_path):
    from training_pro.hosts import tiny

    tokenizer = with_template(tiny._tokenizer(tiny.SAMPLE, adds_bos=True), None)
    values = {"format": "plain-format", "add_bos": False, "add_eos": "never"}
    (found,) = made(tmp_path, tokenizer, {"rows.json": [PLAIN]}, **values).examples
    assert not {"<|begin|>", "<|im_end|>"} & set(pieces(tokenizer, found.ids))


def test_prompt_and_completion_stand_as_they_are(tmp_path):
    rows = [{"prompt": "The sea is", "completion": " blue."}]
    (found,) = made(tmp_path, family("ChatML"), {"rows.jsonl": rows}).examples
    assert found.text == "The sea is blue.<|im_end|>"
    assert learned(family("ChatML"), found) == " blue.<|im_end|>"


def test_texts_are_learned_whole(tmp_path):
    (found,) = made(tmp_path, family("ChatML"), {"rows.json": [{"text": "The sea is blue."}]}).examples
    assert found.text == "The sea is blue.<|im_end|>"
    assert found.labels.tolist() == [-100, *found.ids[1:].tolist()]


@pytest.mark.parametrize("kind", ["byte-level", "small byte-level", "Metaspace with byte fallback", "normalizing"])
def test_only_after_a_text_in_a_thousand_rows(tmp_path, kind):
    """Every label is -100 or its own id, and what is learned is the text behind the marker."""
    rng = random.Random(5)
    letters = "ab cd é 日本 .:!\n 12"
    marker = "### Answer:"

    def some(most):
        return "".join(rng.choice(letters) for _ in range(rng.randrange(1, most)))

    rows = [{"text": f"Q{some(30)}{marker}{some(40)}A"} for _ in range(1000)]
    tokenizer = with_template(real_tokenizers.KINDS[kind](), None)
    data = made(tmp_path, tokenizer, {"rows.jsonl": rows}, train_only_after=marker)
    assert len(data.examples) == 1000
    for row, found in zip(rows, data.examples, strict=True):
        border = row["text"].index(marker) + len(marker)
        (piece,) = tokenizer.encode([row["text"]])
        wanted = [int(i) for i, start in zip(piece.ids, piece.starts, strict=True) if start >= border]
        labels = found.labels.tolist()
        assert all(label in (-100, own) for label, own in zip(labels, found.ids.tolist(), strict=True))
        eos = [tokenizer.eos] if tokenizer.eos is not None else []
        assert [label for label in labels if label != -100] == wanted + eos
        first = min((int(s) for s in piece.starts if s >= border), default=len(row["text"]))
        if kind != "normalizing":
            assert tokenizer.decode(wanted).strip() == row["text"][first:].strip()


def test_rows_without_the_text_are_left_out_and_counted(tmp_path):
    rows = [{"text": "a ### b"}, {"text": "a b"}, {"text": "a ### c"}]
    data = made(tmp_path, family("ChatML"), {"rows.json": rows}, train_only_after="###")
    assert [e.place for e in data.examples] == ["row 1", "row 3"]
    assert data.report.sources[0].rows.without_marker == 1


def test_where_nothing_would_be_learned_the_run_is_refused(tmp_path):
    with pytest.raises(DataError, match="No row holds '§'"):
        made(tmp_path, family("ChatML"), {"rows.json": [{"text": "a b"}]}, train_only_after="§")
    row = chat("Hi", "No.")
    row["messages"][1]["train"] = False
    with pytest.raises(DataError, match="nothing is left to learn from"):
        made(tmp_path / "b", family("ChatML"), {"rows.json": [row]})

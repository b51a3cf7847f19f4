"""The learned tokens of rows: three families of templates, formats, flags, and markers in the text."""

from __future__ import annotations

import random
from functools import cache

import pytest
from training_pro.core.errors import DataError
from training_pro.engine.tokenizer import make_working_tokenizer
from training_pro.tests import real_tokenizers
from training_pro.tests.conftest import ROOT
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


def first_example(root, tokenizer, row, **values):
    data = prepare_rows(root, tokenizer, {"rows.json": [row]}, **values)
    assert data.report.problems == ()
    return data.examples[0]


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_learned_of_a_chat(tmp_path, name):
    _, first, question, last = CONVERSATION
    tokenizer, stop = family(name), STOPS[name]

    def learned(train_on="auto", **flags):
        row = chat(*CONVERSATION)
        for message, flag in flags.items():
            row["messages"][int(message[-1])] |= flag
        return first_example(tmp_path / f"{train_on} {len(flags)}", tokenizer, row, train_on=train_on)

    assert learned_text(tokenizer, learned()) == f"{first}{stop}|{last}{stop}"
    assert learned_text(tokenizer, learned("last_reply")) == f"{last}{stop}"
    everything = learned("everything")
    assert everything.loss_mask.all()
    assert everything.labels.tolist() == [-100, *everything.ids[1:].tolist()]
    assert tokenizer.decode(everything.ids.tolist()) == everything.text
    text = learned_text(tokenizer, learned(m1={"train": False}, m2={"weight": 1}))
    assert first not in text and question.split()[-1] in text and text.endswith(f"{last}{stop}")
    text = learned_text(tokenizer, learned("everything", m1={"weight": 0}))
    assert first not in text and question in text and last in text


EXACT = {  # learned tokens are in parentheses
    "ChatML": "<|im_start|> u s er Ċ H i <|im_end|> Ċ <|im_start|> as si st an t Ċ (No) (.) (<|im_end|>) Ċ",
    "Llama-3": "<s> <|start_header_id|> user <|end_header_id|> ĊĊ Hi <|eot_id|> <|start_header_id|> ass istant "
    "<|end_header_id|> ĊĊ (No) (.) (<|eot_id|>)",
    "Mistral": "<s> [ INST ] ▁Hi ▁[ / INST ] (▁No) (.) (</s>)",
}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_exact_tokens(tmp_path, name):
    """After '[/INST]', Mistral answers ' No.': the space is part of its first token."""
    example = first_example(tmp_path, family(name), chat("Hi", "No."))
    tokens = zip(token_strings(family(name), example.ids), example.labels.tolist(), strict=True)
    assert " ".join(token if label == -100 else f"({token})" for token, label in tokens) == EXACT[name]


REPLIES = ["Paris, of course: 1 < 2.", "Rome.\nIt is old – “really”."]
SHAPES = {
    "messages": chat("Hi", REPLIES[0], "And?", REPLIES[1]),
    "alpaca": {"instruction": "Name it.", "input": "a capital", "output": REPLIES[1]},
    "prompt and response": {"prompt": "Hi", "response": REPLIES[1]},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [*FAMILIES, "Mistral's own"])
def test_the_learned_text_is_exactly_the_replies(tmp_path, name, shape):
    """With some tokenizers the first token of a reply includes the space before it; decoding may remove it."""
    tokenizer = family(name) if name in FAMILIES else mistrals_own()
    example = first_example(tmp_path, tokenizer, SHAPES[shape])
    replies = [f"{reply}{STOPS.get(name, '</s>')}" for reply in REPLIES]
    parts = [part.removeprefix(" ") for part in learned_parts(tokenizer, example)]
    assert parts == (replies if shape == "messages" else replies[1:])


SPELLED_STOPS = {"ChatML-format": "<|im_end|>", "llama3-format": "<|eot_id|>"}  # before the tokenizer's EOS


@pytest.mark.parametrize("tokens", ["small byte-level", "Metaspace with byte fallback"])
@pytest.mark.parametrize("format", sorted(path.stem for path in (ROOT / "formats").glob("*.json")))
def test_the_learned_text_of_a_format_is_exactly_the_reply(tmp_path, format, tokens):
    tokenizer = without_template(tokens)
    rows = [
        {"instruction": "Name it.", "output": REPLIES[1]},
        {"instruction": "Name it.", "input": "a b", "output": "No."},
    ]
    data = prepare_rows(tmp_path, tokenizer, {"rows.json": rows}, format=format)
    end = SPELLED_STOPS.get(format, "") + tokenizer.decode([tokenizer.eos])
    learned = [learned_text(tokenizer, example).lstrip(" ") for example in data.examples]
    assert learned == [REPLIES[1] + end, f"No.{end}"]
    for example in data.examples:
        first = int((example.labels != -100).argmax())
        assert (example.labels[first:] == example.ids[first:]).all() and (example.labels[:first] == -100).all()


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("alpaca-chatbot-format", "User: Name a colour.\nAssistant: Blue, like the sea."),
        ("vicuna-format", "USER: Name a colour.\nASSISTANT: Blue, like the sea."),
        ("plain-format", "Name a colour.\nBlue, like the sea."),
        ("mistral-format", "[INST] Name a colour. [/INST] Blue, like the sea."),
        ("Q: %instruction% A: %output%", "Q: Name a colour. A: Blue, like the sea."),
    ],
)
def test_the_text_of_a_format(tmp_path, format, text):
    example = first_example(tmp_path, without_template("small byte-level"), PLAIN, format=format)
    assert example.text == f"{text}<|end|>"


def test_bos_and_eos_stand_once_where_they_are_wanted(tmp_path, place):
    metaspace = without_template("Metaspace with byte fallback")
    for format in ("mistral-format", "llama2-chat-format"):  # these spell them out
        tokens = token_strings(metaspace, first_example(tmp_path / format, metaspace, PLAIN, format=format).ids)
        assert tokens.count("</s>") == 1 and tokens[-1] == "</s>"
    adds_bos = with_template(place.host().card().tokenizer, None)
    for number, format in enumerate(("%instruction% %output%", "<|begin|>%instruction% %output%<|im_end|>")):
        example = first_example(tmp_path / str(number), adds_bos, PLAIN, format=format)
        tokens = token_strings(adds_bos, example.ids)
        assert (tokens[0], tokens.count("<|begin|>")) == ("<|begin|>", 1)
        assert (tokens[-1], tokens.count("<|im_end|>")) == ("<|im_end|>", 1)
    values = {"format": "plain-format", "add_bos": False, "add_eos": "never"}
    example = first_example(tmp_path / "neither", adds_bos, PLAIN, **values)
    assert not {"<|begin|>", "<|im_end|>"} & set(token_strings(adds_bos, example.ids))


def test_contents_that_also_occur_in_the_template_and_replies_that_it_shortens(tmp_path):
    row = chat("user", "assistant", "assistant", "user\n")
    example = first_example(tmp_path / "a", family("ChatML"), row)
    assert learned_text(family("ChatML"), example) == "assistant<|im_end|>|user\n<|im_end|>"
    tokenizer = with_template(real_tokenizers.small_byte_level(), THINKING, CHATML_TOKENS, "<|im_end|>")
    row, last = (
        chat("One?", "<think>short</think>Yes.", "Two?", "<think>long</think>No."),
        "<think>long</think>\n\n",
    )
    for train_on, learned in (
        ("auto", f"Yes.<|im_end|>|{last}No.<|im_end|>"),
        ("last_reply", f"{last}No.<|im_end|>"),
    ):
        example = first_example(tmp_path / train_on, tokenizer, row, train_on=train_on)
        assert learned_text(tokenizer, example) == learned


def test_a_system_message_where_the_template_takes_none(tmp_path):
    data = prepare_rows(tmp_path, family("Mistral"), {"rows.jsonl": [chat("Hi", "No.", system="Be brief.")]})
    assert "[INST] Be brief.\n\nHi [/INST] No.</s>" in data.examples[0].text
    assert "in 1 row the system message is added to the start of" in data.report.sources[0].notes[1]


def test_completions_and_texts(tmp_path):
    tokenizer = family("ChatML")
    example = first_example(tmp_path / "a", tokenizer, {"prompt": "The sea is", "completion": " blue."})
    assert example.text == "The sea is blue.<|im_end|>" and learned_text(tokenizer, example) == " blue.<|im_end|>"
    example = first_example(tmp_path / "b", tokenizer, {"text": "The sea is blue."})
    assert example.labels.tolist() == [-100, *example.ids[1:].tolist()]


@pytest.mark.parametrize("kind", ["small byte-level", "Metaspace with byte fallback", "normalizing"])
def test_only_after_a_text_in_many_rows(tmp_path, kind):
    """Every label is -100 or its own id, and the learned text is the text after the marker."""
    rng, marker, tokenizer = random.Random(5), "### Answer:", without_template(kind)

    def random_string(max_length):
        return "".join(rng.choices("ab cd é 日本 .:!\n 12", k=rng.randrange(1, max_length)))

    rows = [{"text": f"Q{random_string(30)}{marker}{random_string(40)}A"} for _ in range(200)]
    data = prepare_rows(tmp_path, tokenizer, {"rows.jsonl": rows}, train_only_after=marker)
    assert len(data.examples) == len(rows)
    for row, example in zip(rows, data.examples, strict=True):
        marker_end = row["text"].index(marker) + len(marker)
        (piece,) = tokenizer.encode([row["text"]])
        expected = [int(i) for i, start in zip(piece.ids, piece.starts, strict=True) if start >= marker_end]
        learned = example.labels != -100
        assert (example.labels[learned] == example.ids[learned]).all()
        assert example.labels[learned].tolist() == [*expected, tokenizer.eos]


def test_rows_without_the_marker_are_left_out_and_a_run_that_would_learn_nothing_is_refused(tmp_path):
    rows = [{"text": "a ### b"}, {"text": "a b"}, {"text": "a ### c"}]
    data = prepare_rows(tmp_path / "a", family("ChatML"), {"rows.json": rows}, train_only_after="###")
    assert [example.place for example in data.examples] == ["row 1", "row 3"]
    assert data.report.sources[0].rows.without_marker == 1
    with pytest.raises(DataError, match="No row contains '§'"):
        prepare_rows(tmp_path / "b", family("ChatML"), {"rows.json": rows}, train_only_after="§")
    row = chat("Hi", "No.")
    row["messages"][1]["train"] = False
    with pytest.raises(DataError, match="there is nothing left to train on"):
        prepare_rows(tmp_path / "c", family("ChatML"), {"rows.json": [row]})

"""The learned tokens of rows, limits of prompt and reply, and sample prompts made from the data."""

from __future__ import annotations

import random
from functools import cache

import pytest
from training_pro.core.errors import DataError
from training_pro.data.rows import PromptStyle, detect_prompt_style, make_prompts
from training_pro.settings.parsing import training_settings
from training_pro.tests import real_tokenizers
from training_pro.tests.conftest import ROOT
from training_pro.tests.fakes import make_folders
from training_pro.tests.rowing import (
    CHATML_TOKENS,
    FAMILIES,
    THINKING,
    chat,
    family,
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


REPLY = "Rome.\nIt is old – “really”."
SPELLED_STOPS = {"ChatML-format": "<|im_end|>", "llama3-format": "<|eot_id|>"}  # before the tokenizer's EOS


@pytest.mark.parametrize("tokens", ["small byte-level", "Metaspace with byte fallback"])
@pytest.mark.parametrize("format", sorted(path.stem for path in (ROOT / "formats").glob("*.json")))
def test_the_learned_text_of_a_format_is_exactly_the_reply(tmp_path, format, tokens):
    tokenizer = without_template(tokens)
    rows = [
        {"instruction": "Name it.", "output": REPLY},
        {"instruction": "Name it.", "input": "a b", "output": "No."},
    ]
    data = prepare_rows(tmp_path, tokenizer, {"rows.json": rows}, format=format)
    end = SPELLED_STOPS.get(format, "") + tokenizer.decode([tokenizer.eos])
    learned = [learned_text(tokenizer, example).lstrip(" ") for example in data.examples]
    assert learned == [REPLY + end, f"No.{end}"]
    for example in data.examples:
        first = int((example.labels != -100).argmax())
        assert (example.labels[first:] == example.ids[first:]).all() and (example.labels[:first] == -100).all()


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
    row = chat("One?", "<think>short</think>Yes.", "Two?", "<think>long</think>No.")
    last = "<think>long</think>\n\nNo.<|im_end|>"
    for train_on, learned in (("auto", f"Yes.<|im_end|>|{last}"), ("last_reply", last)):
        example = first_example(tmp_path / train_on, tokenizer, row, train_on=train_on)
        assert learned_text(tokenizer, example) == learned


def test_an_empty_thought_is_learned_and_stands_before_what_is_asked(tmp_path):
    tokenizer = with_template(real_tokenizers.small_byte_level(), THINKING, CHATML_TOKENS, "<|im_end|>")
    rows = [chat("One?", "Yes.", "Two?", "No."), chat("Three?", "Maybe.")]
    data = prepare_rows(tmp_path, tokenizer, {"rows.json": rows})
    empty = "<think></think>\n\n"
    learned = [learned_text(tokenizer, example) for example in data.examples]
    assert learned == [f"Yes.<|im_end|>|{empty}No.<|im_end|>", f"{empty}Maybe.<|im_end|>"]
    settings = training_settings({"name": "a", "data": ["rows.json"]})
    style = detect_prompt_style(settings, make_folders(tmp_path / "other"), tokenizer, data.examples)
    asked = [style.prompt("Three?", tokenizer), *make_prompts("auto", style, tokenizer, data.examples)]
    assert [prompt.text for prompt in asked] == ["Three?", "One?", "Three?"]
    assert all(tokenizer.decode(list(prompt.ids)).endswith(f"<|im_start|>assistant\n{empty}") for prompt in asked)


STRICT = (
    "{% if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls %}{{ raise_exception('?') }}{% endif %}"
)
CALLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if loop.last and m.role == 'assistant' %}THOUGHT{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or () %}<call>{{ ARGUMENTS }}</call>{% endfor %}<|im_end|>\n"
    f"{STRICT}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize(
    ("written", "call"),
    [("call.arguments | tojson", '{"city": "Oslo"}'), ("'' + call.arguments", '{"city":"Oslo"}')],
)
@pytest.mark.parametrize(("thought", "has_prompt"), [("", True), ("", False), ("<think></think>", True)])
def test_a_tool_call_is_learned_up_to_its_stop_as_the_template_takes_it(
    tmp_path, written, call, thought, has_prompt
):
    """Also by a template that writes the last reply in another way, or refuses a result without its call."""
    template = CALLS.replace("ARGUMENTS", written).replace("THOUGHT", thought)
    if not has_prompt:  # as Mistral's, whose replies have no header either
        header = "{% if m.role != 'assistant' %}[{{ m.role }}]{% endif %}"
        template = template.partition("{% if add_gen")[0].replace("<|im_start|>{{ m.role }}\n", header)
    tokenizer = with_template(family("ChatML").tokenizer, template.replace(STRICT if thought else "", ""))
    row = chat("How is it in Oslo?", "", "20 degrees.", "Warm.", system="Be brief.")
    row["messages"][2] |= {"content": None, "tool_calls": [{"name": "weather", "arguments": '{"city":"Oslo"}'}]}
    row["messages"][3]["role"] = "tool"
    learned = learned_text(tokenizer, first_example(tmp_path, tokenizer, row))
    assert learned == f"<call>{call}</call><|im_end|>|{thought}Warm.<|im_end|>"


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


WORDS = "one two three four five six seven eight nine ten"
SHORT = {"instruction": "Hi", "output": "No."}
LONG = {"instruction": WORDS, "output": WORDS}


def prepared(root, rows, name="ChatML", **values):
    return prepare_rows(root, family(name), {"a.jsonl": rows}, data=["a.jsonl"], **values)


def figures(data):
    (source,) = data.report.sources
    return source.rows.long_prompts, source.rows.long_replies


def parts(root, rows, name="ChatML", **values):
    """The tokens of prompt and reply of each row: with train_on replies, what is learned is the reply."""
    masks = [e.loss_mask for e in prepared(root, rows, name, train_on="replies", **values).examples]
    return [(int(mask.argmax()), int(mask.sum())) for mask in masks]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("values", [{}, {"format": "alpaca-format"}])
def test_each_part_has_at_most_so_many_tokens_and_shorter_rows_stay(tmp_path, name, values):
    (short, (prompt, reply)) = parts(tmp_path / "all", [SHORT, LONG], name, **values)
    limits = {"source_max_len": prompt - 4, "target_max_len": 5}
    assert parts(tmp_path / "cut", [SHORT, LONG], name, **limits, **values) == [short, (prompt - 4, 5)]
    limits = {"source_max_len": prompt, "target_max_len": reply}
    assert parts(tmp_path / "equal", [LONG], name, **limits, **values) == [(prompt, reply)]


def test_what_is_truncated_has_no_end_token_and_is_counted(tmp_path):
    ((tokens, _),) = parts(tmp_path / "short", [SHORT])
    data = prepared(tmp_path / "all", [SHORT, LONG, LONG], source_max_len=tokens, target_max_len=6)
    assert figures(data) == (2, 2)
    assert "2 with the end of the prompt truncated; 2 with the end of the reply truncated" in data.report.text()
    short, long, _ = (example.text for example in data.examples)
    assert short.endswith("No.<|im_end|>\n") and WORDS.startswith(long.partition("assistant\n")[2])


def test_chats_of_several_replies_and_raw_text_are_noted_and_stay(tmp_path):
    rows = [{"messages": [{"role": role, "content": WORDS} for role in ("user", "assistant") * 2]}]
    data = prepared(tmp_path / "chats", rows, source_max_len=4, target_max_len=3)
    assert data.examples[0].text == prepared(tmp_path / "plain", rows).examples[0].text
    note = "1 row does not have exactly one reply"
    assert any(each.startswith(note) for each in data.report.sources[0].notes)
    data = prepared(tmp_path / "split", rows, source_max_len=9, target_max_len=3, split_exchanges=True)
    assert figures(data) == (2, 2) and not any(each.startswith(note) for each in data.report.sources[0].notes)
    data = prepare_rows(tmp_path / "text", family("ChatML"), {"a.txt": f"{WORDS}. " * 9}, source_max_len=4)
    notes = [finding.text for finding in data.report.findings if finding.key == "source_max_len"]
    assert notes == ["Maximum prompt length: this has no effect because the dataset has no rows."]


ENGLISH = "A sagacious savage, it pained him that Queequeg's idol uncharacteristically disappeared."
CHINESE = "他在黑暗中慢慢地走着，心里想着那些永远不会再回来的日子，还有那个人。"


def test_sample_prompts_end_where_a_word_or_a_character_ends(tmp_path):
    """How much of an example is taken depends on its length, so each text gives another place."""
    tokenizer = family("ChatML")
    texts = [text for n in range(15) for text in (ENGLISH[: 30 + 4 * n], CHINESE[: 4 + n])]
    for number, text in enumerate(texts):
        examples = prepare_rows(tmp_path / str(number), tokenizer, {"a.txt": text}, cutoff=256).examples
        (prompt, *_) = (prompt.text for prompt in make_prompts("auto", PromptStyle(), tokenizer, examples))
        assert text.startswith(prompt)  # half a character would be no part of it
        assert number % 2 or not (prompt[-1].isalnum() and text[len(prompt)].isalnum()), prompt

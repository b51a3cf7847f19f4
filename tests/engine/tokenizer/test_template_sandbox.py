"""Chat templates without an end are refused soon, as a sentence, and real ones work as in transformers."""

from __future__ import annotations

import pytest
import transformers
from training_pro.core.errors import ModelError
from training_pro.engine.tokenizer import make_working_tokenizer, template_sandbox
from training_pro.hosts.tiny import make_tiny
from training_pro.tests import real_tokenizers
from training_pro.tests.rowing import CHATML, LLAMA_3, MISTRAL, THINKING, chat, prepare_rows, with_template

LOOP = "{% for a in range(99999) %}"
END = "{% endfor %}"
MILLION = "{% set x = 'a' * 1000000 %}"
STEPS, CHARS, ITEMS, PADS = "steps", "characters", "items", "pads text to more than"


def doubled(first: str, again: str) -> str:
    return f"{{% set x = {first} %}}{{% set y = x %}}" + f"{{% set x = {again} %}}" * 40


STOPPED = {
    "nested loops": (LOOP * 2 + "{{ a }}" + END * 2, STEPS),
    "a macro that calls itself twice": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        STEPS,
    ),
    "a text times a number": ("{{ 'a' * 4000000000 }}", CHARS),
    "a text doubled with ~": (doubled("'aaaaaaaaaa'", "x ~ x"), CHARS),
    "a doubled list": (doubled("[1]", "x + x"), STEPS),
    "a power": ("{{ 10 ** (10 ** 10) }}", "bits"),
    "center": ("{{ 'x'|center(10 ** 9) }}", "center"),
    "indent": ("{{ ('\n' * 1000000)|indent(100000) }}", CHARS),
    "a wide %": ("{{ '%1000000000d' % 1 }}", PADS),
    "a format with a width as a value": ("{{ '{:{}}'.format(1, 1000000000) }}", PADS),
    "replace": (MILLION + "{{ x.replace('a', x) }}", CHARS),
    "join as a filter": (MILLION + "{{ range(100000)|join(x) }}", CHARS),
    "mapped replace": (MILLION + "{{ range(100000)|map('replace', '1', x)|join }}", CHARS),
    "slice": ("{{ [1]|slice(1000000000)|list }}", "slice"),
    "split": ("{{ ('a ' * 9000000).split()|length }}", ITEMS),
    "a dict in itself": (doubled("{'a': 1}", "{'a': x, 'b': x}") + "{{ x|tojson }}", STEPS),
    "a long text searched often": ("{% set x = 'a' * 4000000 %}" + LOOP + "{{ 'b' in x }}" + END, STEPS),
    "sum of lists": ("{{ [[1]]|sum(start=[]) }}", "uses sum to join lists"),
    "a long template": ("x" * 600_000, "600,000 characters"),
}
REFUSED = {
    "a macro that calls itself": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself"),
    "deep brackets": ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "calls itself"),
    "a range that is too big": ("{% for i in range(10 ** 9) %}{% endfor %}", "Range too big"),
    "a file": ("{% include '/etc/hostname' %}", "no loader"),
    "Python": ("{{ ''.__class__.__mro__ }}", "unsafe"),
    "bytes": ("{{ (5).to_bytes(10000000000, 'big') }}", "unsafe"),
    "a filter of web pages": ("{{ 'x'|urlize }}", "No filter named 'urlize'"),
    "its own long words": ("{{ raise_exception('x' * 10000000) }}", "xxx"),
}


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return transformers.AutoTokenizer.from_pretrained(make_tiny(tmp_path_factory.mktemp("model") / "tiny"))


def template(raw, text):
    raw.chat_template = text
    return make_working_tokenizer(raw).chat_template


def render(raw, text):
    return template(raw, text).render([{"role": "user", "content": "hello"}], (), opening=False)


@pytest.mark.parametrize("name", STOPPED)
def test_a_template_without_an_end_is_stopped(raw, monkeypatch, name):
    text, reason = STOPPED[name]
    monkeypatch.setattr(template_sandbox, "MAX_WORK", 300_000)  # of 10 million, which take a second or two
    with pytest.raises(
        ModelError, match=r"^The model's own chat template was stopped, because it .*\. Cor"
    ) as told:
        render(raw, text)
    assert reason in str(told.value) or (reason in (CHARS, ITEMS) and STEPS in str(told.value))
    assert len(str(told.value)) < 300


@pytest.mark.parametrize("name", REFUSED)
def test_an_error_of_a_template_is_a_short_sentence(raw, name):
    text, reason = REFUSED[name]
    with pytest.raises(ValueError, match=reason) as told:
        render(raw, text)
    assert len(str(told.value)) < 400


def test_each_rendering_has_its_own_budget_and_a_namespace_in_itself_is_not_written_out(raw):
    most = "{% for a in range(90000) %}{% if a %}{% endif %}{% endfor %}{{ 'a' * 30000000 }}"
    assert {len(render(raw, most)) for _ in range(3)} == {30_000_000}
    again = "{% set m = namespace(a=n, b=n) %}{% set n = m %}" * 40
    assert render(raw, "{% set n = namespace() %}" + again + "{{ n }}") == "<Namespace>"


QWEN = (
    "{%- set ns = namespace(last=messages|length - 1, found=false) %}{%- for m in messages[::-1] %}"
    "{%- if not ns.found and m.role == 'user' and not m.content.startswith('<tool_response>') %}"
    "{%- set ns.found = true %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- for m in messages %}{%- if m.role == 'assistant' and '</think>' in m.content %}"
    "{{- '[' ~ m.content.split('</think>')[0].rstrip('\n').split('<think>')[-1] ~ ']' }}"
    "{% generation %}{{- m.content.split('</think>')[-1].lstrip('\n') + '<|im_end|>' }}{% endgeneration %}"
    "{%- for c in m.tool_calls or [] %}{{- c.function.name ~ (c.function.arguments | tojson) }}{%- endfor %}"
    "{%- else %}{{- '<|im_start|>%s\n' % m.role }}{{- m.content|replace('  ', ' ') }}{%- endif %}{%- endfor %}"
    "{{- (messages|map(attribute='role')|unique|join(', ')) }}{{- ns.last }}{{- '{:>8.2f}'.format(1.5) }}"
    "{%- set x %}{% for t in tools or [] %}{{ t.function|dictsort }}{% endfor %}{% endset %}{{- x|indent(2) }}"
)
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object", "b": ["é", 1]}}}]
CALL = {"type": "function", "function": {"name": "find", "arguments": {"a": "1 < 2"}}}
USER = {"role": "user", "content": " Who  is there? "}
SYSTEM = {"role": "system", "content": "Be <b>brief</b> & 'kind'."}
REPLY = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nA keeper.\n"}
CALLING = [{"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "ok"}]
CHATS = {
    "with a system message": ([SYSTEM, USER, REPLY, USER], None),
    "long": ([USER, REPLY] * 40, None),
    "with tools": ([SYSTEM, USER, *CALLING, REPLY], TOOLS),
}


@pytest.mark.parametrize("text", [CHATML, LLAMA_3, MISTRAL, THINKING, QWEN])
def test_what_real_templates_do_gives_what_transformers_gives(raw, text):
    limited, same = template(raw, text), 0
    for messages, tools in CHATS.values():
        for opening in (False, True):
            options = {"tools": tools, "tokenize": False, "add_generation_prompt": opening}
            try:
                expected = raw.apply_chat_template(messages, **options)
            except Exception:  # noqa: BLE001 - a template that refuses a chat must refuse it here, too
                with pytest.raises(ValueError):
                    limited.render(messages, tools or (), opening=opening)
            else:
                assert limited.render(messages, tools or (), opening=opening) == expected
                same += 1
    assert same >= 2


def test_a_row_without_an_end_ends_the_reading(tmp_path):
    """Such a template would need its whole budget again at every row."""
    text = "{% if messages[0].content == 'now' %}" + STOPPED["nested loops"][0] + "{% endif %}" + CHATML
    tokenizer = with_template(real_tokenizers.small_byte_level(), text)
    with pytest.raises(ModelError, match="was stopped"):
        prepare_rows(tmp_path, tokenizer, {"a.jsonl": [chat("then", "A."), chat("now", "B.")]}, bad_rows="skip")

"""Chat templates without an end are refused soon, with little memory, as a sentence."""

from __future__ import annotations

import ast
import tracemalloc

import pytest
import transformers
from training_pro.core import version
from training_pro.core.errors import ModelError
from training_pro.data.rows.chat_templates import ChatRenderer
from training_pro.data.rows.row_schema import Chat, Message
from training_pro.engine.tokenizer import template_sandbox, tokenizer
from training_pro.hosts.tiny import make_tiny
from transformers.utils import chat_template_utils

LOOP = "{% for a in range(99999) %}"
END = "{% endfor %}"
MILLION = "{% set x = 'a' * 1000000 %}"
STEPS, CHARS, ITEMS = "steps", "characters", "items"


def doubled(first: str, again: str) -> str:
    return f"{{% set x = {first} %}}{{% set y = x %}}" + f"{{% set x = {again} %}}" * 40


STOPPED = {
    "nested loops": (LOOP * 2 + "{{ a }}" + END * 2, STEPS),
    "a macro that calls itself twice": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        STEPS,
    ),
    "a caller within callers": (
        "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}"
        + "{% call f() %}" * 30
        + "x"
        + "{% endcall %}" * 30,
        STEPS,
    ),
    "a text times a number": ("{{ 'a' * 4000000000 }}", CHARS),
    "a text doubled with ~": (doubled("'aaaaaaaaaa'", "x ~ x"), CHARS),
    "a text doubled with +": (doubled("'aaaaaaaaaa'", "x + x"), CHARS),
    "a long sum": ("{{ " + " ~ ".join(["('a' * 9000000)"] * 500) + " }}", CHARS),
    "a list in itself": (doubled("['a']", "[x, x]") + "{{ x }}", STEPS),
    "a dict in itself": (doubled("{'a': 1}", "{'a': x, 'b': x}") + "{{ x|tojson }}", STEPS),
    "two lists that are compared": (doubled("['a']", "[x, x]") + "{{ x == y }}", STEPS),
    "a doubled list": (doubled("[1]", "x + x"), STEPS),
    "a power": ("{{ 10 ** (10 ** 10) }}", "bits"),
    "a squared number": (
        "{% set n = namespace(v=99999999) %}{% for i in range(99) %}{% set n.v = n.v * n.v %}{% endfor %}",
        "bits",
    ),
    "center": ("{{ 'x'|center(10 ** 9) }}", "center"),
    "center as a method": ("{{ 'x'.center(1000000000) }}", "center"),
    "zfill": ("{{ 'x'.zfill(1000000000) }}", "zfill"),
    "indent": ("{{ ('\n' * 1000000)|indent(100000) }}", CHARS),
    "a wide format": ("{{ '{:>1000000000}'.format(1) }}", "pads text to more than"),
    "a format with a width as a value": ("{{ '{:{}}'.format(1, 1000000000) }}", "pads text to more than"),
    "a wide %": ("{{ '%1000000000d' % 1 }}", "pads text to more than"),
    "a wide filter format": ("{{ '%1000000000d'|format(1) }}", "pads text to more than"),
    "replace": (MILLION + "{{ x.replace('a', x) }}", CHARS),
    "replace as a filter": (MILLION + "{{ x|replace('a', x) }}", CHARS),
    "join": (MILLION + "{{ x.join(x) }}", CHARS),
    "join as a filter": (MILLION + "{{ range(100000)|join(x) }}", CHARS),
    "mapped replace": (MILLION + "{{ range(100000)|map('replace', '1', x)|join }}", CHARS),
    "mapped center": ("{{ range(100000)|map('string')|map('center', 100000)|list|length }}", CHARS),
    "batch": ("{{ [1]|batch(1000000000, 'x')|list }}", "batch"),
    "slice": ("{{ [1]|slice(1000000000)|list }}", "slice"),
    "round": ("{{ 1.5|round(1000000000, 'ceil') }}", "round"),
    "tojson": ("{{ [[1]]|tojson(indent=1000000000) }}", "tojson"),
    "a set block": ("{% set b %}" + LOOP + "x" * 100000 + END + "{% endset %}", CHARS),
    "a list written often": (
        "{% set l = ['a' * 1000000] %}{% set b %}" + LOOP + "{{ l }}" + END + "{% endset %}",
        CHARS,
    ),
    "sum of lists": ("{{ [[1]]|sum(start=[]) }}", "uses sum to join lists"),
    "list of letters": ("{{ ('a' * 20000000)|list|length }}", ITEMS),
    "letters in batches": ("{{ ('a' * 20000000)|batch(1)|list|length }}", ITEMS),
    "split": ("{{ ('a ' * 9000000).split()|length }}", ITEMS),
    "a long text searched often": ("{% set x = 'a' * 4000000 %}" + LOOP + "{{ 'b' in x }}" + END, STEPS),
    "a long text counted often": ("{% set x = 'a' * 4000000 %}" + LOOP + "{{ x.count('b') }}" + END, STEPS),
    "a long text sliced often": ("{% set x = 'a' * 4000000 %}" + LOOP + "{% set y = x[1:] %}" + END, CHARS),
    "a long format of the time": ("{{ strftime_now('%Y' * 9000000) }}", CHARS),
    "a long template": ("x" * 600_000, "600,000 characters"),
}
REFUSED = {
    "a macro that calls itself": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself"),
    "a loop that calls itself": ("{% for a in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}", "calls itself"),
    "a block in itself": ("{% block a %}{{ self.a() }}{% endblock %}", "calls itself"),
    "deep brackets": ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "calls itself"),
    "a range that is too big": ("{% for i in range(10 ** 9) %}{% endfor %}", "Range too big"),
    "an unknown function": ("{{ foo() }}", "'foo' is undefined"),
    "an unknown part": ("{{ foo.bar.baz }}", "'foo' is undefined"),
    "a division by zero": ("{{ 1 / 0 }}", "division by zero"),
    "a number plus a text": ("{{ 1 + 'a' }}", "unsupported operand"),
    "a file": ("{% include '/etc/hostname' %}", "no loader"),
    "Python": ("{{ ''.__class__.__mro__ }}", "unsafe"),
    "bytes": ("{{ (5).to_bytes(10000000000, 'big') }}", "unsafe"),
    "translate": ("{{ 'x'.translate({120: 'y'}) }}", "unsafe"),
    "a filter of web pages": ("{{ 'x'|urlize }}", "No filter named 'urlize'"),
    "random words": ("{{ lipsum(n=100000) }}", "undefined"),
}


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return transformers.AutoTokenizer.from_pretrained(make_tiny(tmp_path_factory.mktemp("model") / "tiny"))


def template(raw, text):
    raw.chat_template = text
    return tokenizer.make_working_tokenizer(raw).chat_template


def render(raw, text, messages=({"role": "user", "content": "hello"},)):
    return template(raw, text).render(messages, (), opening=False)


@pytest.mark.parametrize("name", STOPPED)
def test_a_template_without_an_end_is_stopped_with_little_memory(raw, monkeypatch, name):
    text, reason = STOPPED[name]
    monkeypatch.setattr(template_sandbox, "MAX_WORK", 300_000)  # of 10 million, which take a second or two
    if reason == CHARS:  # tracing makes the others slow, and they make few objects
        tracemalloc.start()
    try:
        with pytest.raises(
            ModelError, match=r"^The model's own chat template was stopped, because it .*\. Correct the"
        ) as caught:
            render(raw, text)
        assert tracemalloc.get_traced_memory()[1] < 400e6
    finally:
        tracemalloc.stop()
    assert reason in str(caught.value) or (reason in (CHARS, ITEMS) and STEPS in str(caught.value))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", REFUSED)
def test_an_error_of_a_template_is_a_short_sentence(raw, name):
    text, reason = REFUSED[name]
    with pytest.raises(ValueError, match=reason) as caught:
        render(raw, text)
    assert len(str(caught.value)) < 400


def test_the_words_of_a_template_are_shortened(raw):
    with pytest.raises(ValueError) as caught:
        render(raw, "{{ raise_exception('x' * 10000000) }}")
    assert len(str(caught.value)) == tokenizer.MAX_PROBLEM_CHARS


def test_a_namespace_in_itself_is_not_written_out(raw):
    sets = "{% set n = namespace() %}" + "".join(
        "{% set m = namespace(a=n, b=n) %}{% set n = m %}" for _ in range(40)
    )
    assert render(raw, sets + "{{ n }}") == "<Namespace>"


def test_each_rendering_has_its_own_budget(raw):
    """A template that uses most of it may be rendered again and again."""
    most = template(raw, "{% for a in range(90000) %}{% if a %}{% endif %}{% endfor %}{{ 'a' * 30000000 }}")
    assert {len(most.render([{"role": "user", "content": "x"}], (), opening=False)) for _ in range(3)} == {
        30_000_000
    }


CHATML = "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m['content'] | trim }}<|im_end|>\n{% endfor %}"
LLAMA = (
    "{{- bos_token }}{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content']|trim %}"
    "{%- set messages = messages[1:] %}{%- else %}{%- set system = '' %}{%- endif %}"
    "{%- for m in messages %}{%- if not (m.role == 'ipython' or 'tool_calls' in m) %}"
    "{{- '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' }}"
    "{%- elif 'tool_calls' in m %}{%- set call = m.tool_calls[0].function %}"
    "{{- '{\"name\": \"' + call.name + '\", ' }}{{- call.arguments | tojson }}{%- endif %}{%- endfor %}"
    "{%- if tools is not none %}{%- for t in tools %}{{- t | tojson(indent=4) }}{{- '\n\n' }}"
    "{%- endfor %}{%- endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% else %}{{ m['content'] + eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{% macro parts(p, depth) %}{% for key, value in p|dictsort %}{{ '  ' * depth }}{{ key }}:"
    "{% if value is mapping %}{{ parts(value, depth + 1) }}{% else %}{{ value }}{% endif %}"
    ";{% endfor %}{% endmacro %}"
    "{{ bos_token }}{% for m in messages %}{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<start_of_turn>' ~ role ~ '\n' }}{{ m.content.strip() }}{{ '<end_of_turn>\n' }}{% endfor %}"
    "{% for t in tools or [] %}{{ parts(t, 1) }}{% endfor %}"
)
QWEN = (
    "{%- set ns = namespace(last=messages|length - 1, found=false, text='') %}"
    "{%- for m in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}"
    "{%- if not ns.found and m.role == 'user' and m.content is string"
    " and not m.content.startswith('<tool_response>') %}"
    "{%- set ns.found = true %}{%- set ns.last = index %}{%- endif %}{%- endfor %}"
    "{%- for m in messages %}{%- set content = m.content %}{%- if m.role == 'assistant' %}"
    "{%- if '</think>' in content %}"
    "{%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1] %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') %}{{- '[' ~ thought ~ ']' }}{%- endif %}"
    "{{- '<|im_start|>assistant\n' }}{% generation %}{{- content + '<|im_end|>' }}{% endgeneration %}"
    "{%- for call in m.tool_calls or [] %}"
    "{{- '\n{\"name\": ' ~ call.function.name ~ (call.function.arguments | tojson) }}"
    "{%- endfor %}{%- else %}{{- '<|im_start|>%s\n' % m.role }}{{- content|replace('  ', ' ') }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}{%- endif %}"
    "{%- set ns.text = ns.text + content %}{%- endfor %}{{- ns.text|length }}"
    "{{- (messages|map(attribute='role')|unique|join(', ')) }}"
    "{{- (tools or [])|map(attribute='function')|list|length }}"
    "{%- set names %}{% for t in tools or [] %}{{ t.function.name|upper }}{% endfor %}{% endset %}"
    "{{- names|indent(2) }}"
    "{{- '{:>8.2f}'.format(1.5) }}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object", "b": ["é", 1]}}}]
CALL = {"type": "function", "function": {"name": "find", "arguments": {"a": "1 < 2"}}}
USER, SYSTEM = (
    {"role": "user", "content": " Who  is there? "},
    {"role": "system", "content": "Be <b>brief</b> & 'kind'."},
)
REPLY, TOOL = (
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nA keeper.\n"},
    {"role": "tool", "content": "ok"},
)
CHATS = {
    "short": ([USER, REPLY], None),
    "with a system message": ([SYSTEM, USER, REPLY, USER], None),
    "long": ([USER, REPLY] * 40, None),
    "with tools": ([SYSTEM, USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, TOOL, REPLY], TOOLS),
}


@pytest.mark.parametrize(
    "text", [CHATML, LLAMA, MISTRAL, GEMMA, QWEN], ids=["chatml", "llama", "mistral", "gemma", "qwen"]
)
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
    assert same >= 4


def test_only_our_own_renderings_are_limited(raw):
    """The function of transformers is the same afterwards, and so is the template that the host renders."""
    before = chat_template_utils._compile_jinja_template
    with pytest.raises(ModelError):
        render(raw, STOPPED["a text times a number"][0])
    assert chat_template_utils._compile_jinja_template is before
    text = "{{ 'a' * 110000000 }}"
    assert len(raw.apply_chat_template([USER], chat_template=text, tokenize=False)) == 110_000_000


def test_a_transformers_that_compiles_in_another_way_is_refused(monkeypatch):
    """Nothing may be rendered without limits after a change of the library."""
    monkeypatch.setattr(template_sandbox.LimitedTemplates, "render", lambda _, apply: apply())
    template_sandbox.check_transformers.cache_clear()
    with pytest.raises(
        ModelError, match=f"^transformers {transformers.__version__} does not let Training PRO limit"
    ):
        template_sandbox.check_transformers()
    template_sandbox.check_transformers.cache_clear()


def test_a_row_without_an_end_is_named_and_ends_the_reading(raw):
    """Such a template would need its whole budget again at every row."""
    text = (
        "{% if messages[0].content == 'now' %}"
        + STOPPED["nested loops"][0]
        + "{% endif %}{{ messages[0].content }}"
    )
    renderer = ChatRenderer(template(raw, text), ())
    assert renderer(Chat((Message({"role": "user", "content": "then"}),), ()), places=False).text == "then"
    with pytest.raises(ModelError, match="was stopped"):
        renderer(Chat((Message({"role": "user", "content": "now"}),), ()), places=False)


def test_chat_templates_are_rendered_in_one_place():
    """Only the function with the limits renders; the format of Mistral is code, not a template."""
    found = {
        path.relative_to(version.ROOT).as_posix()
        for path in version.sources()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("apply_chat_template", "render_jinja_template")
    }
    assert found == {
        "engine/tokenizer/tokenizer.py",
        "engine/tokenizer/mistral_chat_template.py",
        "engine/tokenizer/template_sandbox.py",
    }

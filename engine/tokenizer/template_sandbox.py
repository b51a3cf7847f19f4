"""Limits of work and size for chat templates, which come with models from the internet.

Jinja's sandbox keeps a template from files and from Python, but not from looping forever or from filling the
memory. Every template that we render is compiled here for an environment that counts: the nodes of the template
that run, and the characters and list items that it makes. What could be large is estimated before it is made.
There is no clock in it, so a template gives the same result on a slow machine.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import transformers
from jinja2 import Environment, Template, nodes, pass_context
from jinja2.filters import make_attrgetter
from jinja2.runtime import Macro, Undefined
from jinja2.sandbox import SandboxedEnvironment
from jinja2.visitor import NodeTransformer
from transformers.utils import chat_template_utils as utils

from ...core.errors import ModelError

MAX_TEMPLATE_CHARS = 500_000
MAX_WORK = 10_000_000  # nodes of the template that run
MAX_TEXT = 100_000_000  # characters that it makes; a row may have a twentieth of it
MAX_ITEMS = 1_000_000  # of one list, with the lists in it
MAX_NUMBER = 100_000  # as a width, or a count
MAX_PLACES = 100
MAX_BITS = 4096
ITEM_WORK = 16  # of a list item, in nodes
CHARS_A_STEP = 16  # that are read while a node runs
OPERANDS = 16  # of one sum of texts, before its size is looked at

NO_FILTERS = ("urlize", "striptags", "wordwrap", "pprint", "xmlattr")
"""Filters of web pages that take more than linear time; no chat needs them."""
NO_METHODS = {"translate", "format_map", "encode", "maketrans"}
SEQUENCE_FILTERS = (
    "list",
    "batch",
    "slice",
    "sort",
    "unique",
    "groupby",
    "sum",
    "min",
    "max",
    "join",
    "last",
    "map",
)
NUMBER_LIMITS = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill", "expandtabs", "indent", "batch", "slice"), MAX_NUMBER),
    **dict.fromkeys(("round", "tojson"), MAX_PLACES),
}
WIDE_FORMAT = re.compile(r"\d{5}|%[^a-zA-Z%]*\*|\{[^{}]*\{")
"""A width of five digits, or one that is a value itself."""
GROWING_METHODS = {*NUMBER_LIMITS, "replace", "join", "split", "rsplit", "splitlines"}
READING_TESTS = ("in", "eq", "==", "equalto", "ne", "!=", "lt", "<", "gt", ">", "le", "ge", "lower", "upper")
COUNTED, MADE, SLICED, READ = "count the loop", "look at the size", "look at the slice", "count the reading"
"""Our filters; no template can name one with spaces."""


class TemplateLimitError(ModelError):
    """A chat template that takes more work or memory than a chat can need."""


class Budget:
    """What one rendering has used up."""

    __slots__ = ("text", "work")

    def __init__(self) -> None:
        self.work = self.text = 0

    def spend(self, work: int) -> None:
        self.work += work
        if self.work > MAX_WORK:
            raise TemplateLimitError(f"runs more than {MAX_WORK:,} steps for one chat")

    def read(self, value: Any) -> Any:
        """Charge a text that is read to its end."""
        if isinstance(value, str):
            self.spend(len(value) // CHARS_A_STEP)
        return value

    def allow_text(self, chars: int) -> None:
        """Refuse a text before it is made."""
        if self.text + chars > MAX_TEXT:
            raise TemplateLimitError(f"produces more than {MAX_TEXT:,} characters for one chat")

    def allow_items(self, count: int) -> None:
        """Refuse a list before it is made."""
        if count > MAX_ITEMS:
            raise TemplateLimitError(f"builds a list of more than {MAX_ITEMS:,} items")

    def made(self, value: Any) -> Any:
        """Charge a value that the template has made."""
        if isinstance(value, str):
            self.text += len(value)
            if self.text > MAX_TEXT:
                self.allow_text(0)
        elif isinstance(value, (list, tuple, dict)):
            self.weigh(value)
        return value

    def made_slice(self, value: Any) -> Any:
        """Charge a slice of a text; a slice of a list is smaller than the list."""
        return self.made(value) if isinstance(value, str) else value

    def written(self, value: Any) -> Any:
        """Charge a value that the template writes, as a text."""
        return self.made(value if isinstance(value, str) else str(value))

    def weigh(self, value: Any) -> int:
        """Charge all items of a list, repeated ones each time, and return its size as a text."""
        chars = items = 0
        waiting = [value]
        while waiting:
            each = waiting.pop()
            items += 1
            if isinstance(each, str):
                chars += len(each)
            elif isinstance(each, Mapping):
                waiting += (*each.keys(), *each.values())
            elif isinstance(each, (list, tuple)):
                waiting += each
            self.allow_items(items + len(waiting))
            self.allow_text(chars)
        self.spend(ITEM_WORK * items)
        return chars + items

    def items(self, values: Iterable[Any], work: int = ITEM_WORK, limit: int = MAX_ITEMS) -> Iterator[Any]:
        """Charge the items of an iterator one by one, and refuse more than `limit`."""
        for number, value in enumerate(values, start=1):
            self.spend(work)
            if number > limit:
                self.allow_items(number)
            yield self.made(value)


class LimitedMethods:
    """What a limited environment does in another way than the sandbox of transformers."""

    intercepted_binops = frozenset("*%") | {"**"}
    budget: Budget
    macro_work = 0

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)  # type: ignore[misc]
        macros = template.find_all((nodes.Macro, nodes.CallBlock, nodes.Block))
        self.macro_work = max(map(_count_nodes, macros), default=1)
        return SizeChecks().visit(template)  # type: ignore[no-any-return]

    def concat(self, pieces: Iterable[str]) -> str:
        pieces = list(pieces)
        self.budget.allow_text(sum(map(len, pieces)))
        return self.budget.made("".join(pieces))  # type: ignore[no-any-return]

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, (bytes, bytearray, int, float)) or (isinstance(obj, str) and attr in NO_METHODS):
            return False
        return super().is_safe_attribute(obj, attr, value)  # type: ignore[misc, no-any-return]

    def wrap_str_format(self, value: Any) -> Any:
        wrapped = super().wrap_str_format(value)  # type: ignore[misc]
        if wrapped is None:
            return None

        @functools.wraps(wrapped)
        def limited(*args: Any, **kwargs: Any) -> Any:
            _check_format(self.budget, value.__self__, (*args, *kwargs.values()))
            return wrapped(*args, **kwargs)

        return limited

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _check_operator(self.budget, operator, left, right)
        return self.budget.made(super().call_binop(context, operator, left, right))  # type: ignore[misc]

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as in Jinja
        budget, subject = __self.budget, getattr(__obj, "__self__", None)
        budget.spend(__self.macro_work if isinstance(__obj, Macro) else 1)
        if isinstance(subject, str):
            budget.read(subject)
            if __obj.__name__ in GROWING_METHODS:
                _check_method(budget, __obj.__name__, subject, (*args, *kwargs.values()))
        elif args and getattr(__obj, "__name__", "") == "strftime_now":
            budget.allow_text(len(args[0]) * MAX_PLACES)
        return budget.made(SandboxedEnvironment.call(__self, __context, __obj, *args, **kwargs))  # type: ignore[arg-type]


class SizeChecks(NodeTransformer):
    """Puts our filters around loops, sums of texts, and lists."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - the name of a node
        self.generic_visit(node)
        work = nodes.Const(_count_nodes(node), lineno=node.lineno)
        node.iter = _filtered(node.iter, COUNTED, [work])
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802 - the name of a node
        """Leave out the check of what is written, since that is charged as it is written."""
        self.generic_visit(node)
        node.nodes = [_without(each, MADE) for each in node.nodes]
        return node

    def visit_Add(self, node: nodes.Add) -> nodes.Node:  # noqa: N802 - the name of a node
        spine, operands = node, 1
        while isinstance(spine.left, nodes.Add):
            spine.right = self.visit(spine.right)
            parent, spine, operands = spine, spine.left, operands + 1
            if operands % OPERANDS == 0:
                parent.left = _filtered(spine, MADE)
        self.generic_visit(spine)
        return _filtered(node, MADE)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - the name of a node
        self.generic_visit(node)
        while len(node.nodes) > OPERANDS:
            groups = [node.nodes[n : n + OPERANDS] for n in range(0, len(node.nodes), OPERANDS)]
            node.nodes = [_filtered(nodes.Concat(group, lineno=node.lineno), MADE) for group in groups]
        return _filtered(node, MADE)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802 - the name of a node
        self.generic_visit(node)
        return _filtered(node, SLICED) if isinstance(node.arg, nodes.Slice) else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802 - the name of a node
        self.generic_visit(node)
        for operand in node.ops:
            if not isinstance(operand.expr, nodes.Const):
                operand.expr = _filtered(operand.expr, READ)
        return node

    def _visit_literal(self, node: nodes.Node) -> nodes.Node:
        self.generic_visit(node)
        is_target = getattr(node, "ctx", "load") != "load"
        return node if is_target else _filtered(node, MADE)  # type: ignore[arg-type]

    visit_List = visit_Dict = visit_Tuple = _visit_literal  # noqa: N815 - the names of nodes


def _filtered(node: Any, name: str, args: Collection[nodes.Expr] = ()) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


def _without(node: nodes.Expr, name: str) -> nodes.Expr:
    is_checked = isinstance(node, nodes.Filter) and node.name == name and node.node is not None
    return node.node if is_checked else node  # type: ignore[attr-defined, no-any-return]


def _count_nodes(node: nodes.Node) -> int:
    return 1 + sum(1 for _ in node.find_all(nodes.Node))


def _check_operator(budget: Budget, operator: str, left: Any, right: Any) -> None:
    """Refuse a product, a power or a formatted text that would be too large."""
    if operator == "%":
        if isinstance(left, (str, bytes)):
            _check_format(budget, left, right if isinstance(right, tuple) else (right,))
        return
    if isinstance(left, int) and isinstance(right, int):
        bits = right * left.bit_length() if operator == "**" else left.bit_length() + right.bit_length()
        if bits > MAX_BITS:
            raise TemplateLimitError(f"calculates with numbers of more than {MAX_BITS:,} bits")
    for sequence, count in ((left, right), (right, left)):
        if isinstance(count, int) and hasattr(sequence, "__len__"):
            check = budget.allow_items if isinstance(sequence, (list, tuple)) else budget.allow_text
            check(len(sequence) * count)


def _check_format(budget: Budget, pattern: str | bytes, values: Collection[Any]) -> None:
    """Refuse a format whose text could be too large."""
    text = pattern if isinstance(pattern, str) else pattern.decode("latin-1")
    if WIDE_FORMAT.search(text):
        raise TemplateLimitError("pads text to more than 9,999 characters")
    fields = text.count("%") + text.count("{")
    budget.allow_text(len(text) + fields * (10_000 + max(map(budget.weigh, values), default=0)))


def _check_method(budget: Budget, name: str, text: str, values: Collection[Any]) -> None:
    """Refuse a method or filter of a text whose result could be too large."""
    limit = NUMBER_LIMITS.get(name)
    for value in values if limit else ():
        size = value if isinstance(value, int) else len(value) if isinstance(value, str) else 0
        if limit and size > limit:
            raise TemplateLimitError(f"uses {name} with a value of {size:,}, which is too large")
        if name in ("indent", "expandtabs"):
            budget.allow_text(len(text) + size * (1 + text.count("\n" if name == "indent" else "\t")))
    if name == "replace" and len(values) >= 2:
        old, new = (str(value) for value in list(values)[:2])
        budget.allow_text(len(text) + text.count(old) * len(new))
    elif name == "join" and values:
        _check_join(budget, text, next(iter(values)))
    elif name in ("split", "rsplit", "splitlines") and len(text) > MAX_ITEMS:
        separator = next((value for value in values if isinstance(value, str) and value), None)
        budget.allow_items(text.count(separator) if separator else sum(map(str.isspace, text)))


def _check_join(budget: Budget, separator: str, items: Any) -> None:
    if isinstance(items, (list, tuple, dict, str)):
        weight = len(items) if isinstance(items, str) else budget.weigh(items)
        budget.allow_text(weight + len(separator) * len(items))
    else:
        raise TemplateLimitError("joins something other than a list")


def limit_templates(source: Environment) -> Any:
    """Copy an environment of transformers with limits; its filters, globals and extensions stay."""
    limited_type: Any = type("LimitedEnvironment", (LimitedMethods, type(source)), {})
    budget, limited = Budget(), object.__new__(limited_type)
    vars(limited).update(vars(source), budget=budget, finalize=budget.written, overlayed=True, linked_to=source)
    limited.extensions = {key: each.bind(limited) for key, each in source.extensions.items()}
    limited.globals = {key: value for key, value in source.globals.items() if key != "lipsum"}
    namespace: Any = source.globals["namespace"]
    limited.globals["namespace"] = type("Namespace", (namespace,), {"__repr__": lambda _: "<Namespace>"})
    filters = {name: function for name, function in source.filters.items() if name not in NO_FILTERS}
    limited.filters = {name: _limited_filter(limited, name, function) for name, function in filters.items()}
    limited.filters |= {MADE: budget.made, SLICED: budget.made_slice, READ: budget.read}
    limited.filters[COUNTED] = _count_loop(budget)
    reading = {name: _limited_test(budget, source.tests[name]) for name in READING_TESTS}
    limited.tests = {**source.tests, **reading}
    return limited


def _limited_test(budget: Budget, function: Any) -> Callable[..., Any]:
    def limited(*args: Any) -> Any:
        budget.read(args[-1])
        return function(*args)

    return limited


def _count_loop(budget: Budget) -> Callable[..., Any]:
    @pass_context  # so that Jinja does not work it out while compiling
    def count_loop(_: Any, values: Any, work: int) -> Any:
        if isinstance(values, (list, tuple, dict, str, range, Undefined)):
            budget.spend(len(values) * work)
            return values
        return budget.items(values, work, MAX_WORK)

    return count_loop


def _limited_filter(environment: Any, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter so that its input and its result are looked at."""
    first, budget = int(hasattr(function, "jinja_pass_arg")), environment.budget
    is_simple = name not in (*GROWING_METHODS, *SEQUENCE_FILTERS, "format")

    @functools.wraps(function)
    def limited(*args: Any, **kwargs: Any) -> Any:
        value = args[first]
        budget.read(value)
        budget.work += 1
        if is_simple:
            return budget.made(function(*args, **kwargs))
        if name == "join":
            value, others, kwargs = _join_items(environment, *args[first:], **kwargs)
        else:
            value, others = (
                _check_filter(budget, name, value, (*args[first + 1 :], *kwargs.values())),
                args[first + 1 :],
            )
        return budget.made(function(*args[:first], value, *others, **kwargs))

    return limited


def _check_filter(budget: Budget, name: str, value: Any, others: Collection[Any]) -> Any:
    """Refuse a filter whose result could be too large, and count what it reads from an iterator."""
    if name == "format":
        _check_format(budget, str(value), others)
    elif name == "sum" and not all(isinstance(each, (int, float, str)) for each in others):
        raise TemplateLimitError("uses sum to join lists")
    elif name in GROWING_METHODS:
        _check_method(budget, name, value if isinstance(value, str) else "", others)
    if name in SEQUENCE_FILTERS and isinstance(value, str):
        budget.allow_items(len(value))
    return budget.items(value) if isinstance(value, Iterator) else value


def _join_items(
    environment: Any, value: Any, d: Any = "", attribute: Any = None
) -> tuple[list[Any], tuple[Any, ...], dict[str, Any]]:
    """Read the items that a join would read, and look at their size."""
    items = list(environment.budget.items(value))
    if attribute is not None:
        items = list(map(make_attrgetter(environment, attribute), items))
    _check_join(environment.budget, str(d), items)
    return items, (d,), {}


class LimitedTemplates:
    """Stands in for the function of transformers that compiles a template, while we render one."""

    lock = threading.RLock()

    def __init__(self) -> None:
        self._compiled: dict[str, Template] = {}
        self._thread = 0
        self._original = utils._compile_jinja_template
        self.used = False

    def render(self, apply: Callable[[], Any]) -> Any:
        """Call a function of transformers that renders a template, which has limits in this thread only."""
        with self.lock:
            self._original, self._thread = utils._compile_jinja_template, threading.get_ident()
            utils._compile_jinja_template = self._compile
            try:
                return apply()
            finally:
                utils._compile_jinja_template = self._original

    def _compile(self, text: str) -> Template:
        """Compile a template with limits, once; the budget begins anew."""
        if threading.get_ident() != self._thread:
            return self._original(text)  # type: ignore[no-any-return]
        self.used = True
        if (template := self._compiled.get(text)) is None:
            template = self._compiled[text] = self._compile_anew(text)
        environment: Any = template.environment
        budget: Budget = environment.budget
        budget.work = budget.text = 0
        return template

    def _compile_anew(self, text: str) -> Any:
        if len(text) > MAX_TEMPLATE_CHARS:
            raise TemplateLimitError(
                f"has {len(text):,} characters, which is more than the limit of {MAX_TEMPLATE_CHARS:,}"
            )
        return limit_templates(self._original("").environment).from_string(text)


@functools.cache
def check_transformers() -> None:
    """Refuse a version of transformers that compiles templates in a way that we can't limit."""
    if hasattr(utils, "_compile_jinja_template"):
        templates, chat = LimitedTemplates(), [[{"role": "user", "content": "x"}]]
        templates.render(lambda: utils.render_jinja_template(chat, chat_template="{{ messages[0].content }}"))
        if templates.used:
            return
    raise ModelError(
        f"transformers {transformers.__version__} does not let Training PRO limit how much time and memory a chat "
        "template uses. Install an older version of transformers."
    )

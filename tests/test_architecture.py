"""Which module may import which, where the heavy libraries live, and every way in which script.py is loaded."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from training_pro.bench.importing import measure_starts
from training_pro.core import version
from training_pro.data import arrow_store

ROOT = Path(__file__).resolve().parent.parent
FREE_FOR_ALL = {"chunking", "schedulers", "train_utils", "dementor"}
MAY_IMPORT = {
    "chunking": set(),
    "schedulers": set(),
    "train_utils": set(),
    "dementor": {"chunking"},
    "core": set(),
    "settings": {"core"},
    "data": {"settings", "core"},
    "records": {"settings", "core"},
    "downloads": {"core"},
    "hosts": {"downloads", "core"},
    "engine": {"data", "records", "settings", "core"},
    "interface": {"data", "records", "downloads", "settings", "core"},
}
MAY_IMPORT_ALL = {"script", "commands", "bench"}
PARTS = MAY_IMPORT.keys() | MAY_IMPORT_ALL
HOMES = {
    "torch": {"engine", "hosts", "bench"},
    "transformers": {"engine", "hosts", "bench"},
    "peft": {"engine", "bench"},
    "accelerate": {"engine"},
    "bitsandbytes": {"engine", "hosts"},
    "safetensors": {"engine", "hosts"},
    "tokenizers": {"engine", "hosts"},
    "huggingface_hub": {"downloads"},
    "gradio": {"interface", "script", "bench"},  # script: for the sentence that is left when interface/ fails
    "matplotlib": {"records", "bench"},
    "modules": {"hosts", "bench"},
}
LAZY = {"hosts", "downloads", "script", "commands"}  # these import heavy libraries inside functions only
HTML_TEMPLATED = (
    *("interface/base/", "interface/tabs/", "interface/train/", "interface/page/"),
    *("records/report/report.py", "core/"),
)
"""Folders and files whose HTML comes from templates."""
HOOKS = {
    *(
        "ui",
        "setup",
        "params",
        "custom_css",
        "custom_js",
        "input_modifier",
        "output_modifier",
        "chat_input_modifier",
    ),
    *("state_modifier", "history_modifier", "bot_prefix_modifier", "tokenizer_modifier"),
    *("logits_processor_modifier", "custom_generate_reply", "custom_generate_chat_prompt"),
    "custom_tokenized_length",
}


def sources() -> list[Path]:
    """Every Python file that ships and is no test, by its path from the root."""
    folders = [ROOT / name for name in PARTS if (ROOT / name).is_dir()]
    files = [*ROOT.glob("*.py"), *(file for folder in folders for file in folder.rglob("*.py"))]
    return sorted(file.relative_to(ROOT) for file in files)


def part(file: Path) -> str:
    return file.parts[0].removesuffix(".py")


def tree(file: Path) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


def imports(file: Path) -> Iterator[tuple[str, ast.stmt]]:
    """Each import as a dotted name: '.core.host' where it is one of ours, 'torch.nn' where it is not."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            above = file.parts[: len(file.parts) - node.level]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            yield from (("." + ".".join([*above, name]), node) for name in names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node


def own_imports(file: Path) -> Iterator[tuple[str, str]]:
    """Each import of ours: the module or package, dotted from the root, and the name taken from it."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                base = [*file.parts[: len(file.parts) - node.level], *filter(None, [node.module])]
            elif (node.module or "").split(".")[0] == "training_pro":
                base = (node.module or "").split(".")[1:]
            else:
                continue
            yield from ((".".join(base), alias.name) for alias in node.names)


def is_package(dotted: str) -> bool:
    return (ROOT / dotted.replace(".", "/") / "__init__.py").is_file()


def is_module(dotted: str) -> bool:
    return (ROOT / (dotted.replace(".", "/") + ".py")).is_file()


def surface(package: str) -> set[str]:
    """The names that a package offers: those that it imports for others or lists, otherwise all its modules."""
    folder = Path(package.replace(".", "/"))
    names = {name for module, name in own_imports(folder / "__init__.py") if module.startswith(package)}
    for node in tree(folder / "__init__.py").body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names |= set(ast.literal_eval(node.value))
    return names or {path.stem for path in (ROOT / folder).iterdir() if not path.stem.startswith("_")}


def home(file: Path) -> str:
    """The sub-package of a file ('engine.plan'), or the file itself where it lies in none ('engine.run')."""
    return ".".join(file.with_suffix("").parts[:2])


def of_ours(file: Path) -> set[str]:
    return {name.split(".")[1] for name, _ in imports(file) if name.startswith(".")}


def of_others(file: Path) -> set[str]:
    return {name.split(".")[0] for name, _ in imports(file) if not name.startswith(".")}


def run_when_loaded(module: ast.Module) -> list[ast.AST]:
    """The nodes that run when the module is imported: not those inside functions or for type checkers only."""
    waiting, nodes = list(ast.iter_child_nodes(module)), []
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        waiting += node.orelse if for_types else ast.iter_child_nodes(node)
    return nodes


def offenders(rule: Callable[[Path], Iterable[str]]) -> dict[str, list[str]]:
    """The files that break a rule, and how; a rule yields what is wrong with a file."""
    found = {file.as_posix(): sorted(rule(file)) for file in sources()}
    assert len(found) > 100
    return {file: faults for file, faults in found.items() if faults}


def test_a_part_imports_only_what_it_may():
    def wrong(file: Path) -> set[str]:
        own = part(file)
        if own in MAY_IMPORT_ALL:
            return set()
        return of_ours(file) - {own} - MAY_IMPORT[own] - (FREE_FOR_ALL if (ROOT / own).is_dir() else set())

    assert offenders(wrong) == {}
    assert of_ours(Path("engine/training/run.py")) >= {"core", "records", "settings", "engine"}


def test_every_package_and_module_begins_with_a_sentence():
    assert offenders(lambda file: [] if ast.get_docstring(tree(file)) else ["no docstring"]) == {}


def test_other_packages_are_imported_through_their_surface():
    """Names come from a package's `__init__`, or from a module right below a top-level package."""

    def past(file: Path) -> Iterator[str]:
        for module, name in own_imports(file):
            package = module if is_package(module) else module.rpartition(".")[0]
            if not package or Path(*package.split(".")) in (file.parent, *file.parent.parents):
                continue
            top_level = "." not in package and module.rpartition(".")[2] in surface(package)
            if name not in surface(module) if is_package(module) else not top_level:
                yield f"{module}.{name}"

    assert offenders(past) == {}


def test_no_circle_between_sub_packages():
    needs: dict[str, set[str]] = defaultdict(set)
    for file in sources():
        for module, name in own_imports(file):
            target = f"{module}.{name}" if is_package(module) and is_module(f"{module}.{name}") else module
            needs[home(file)].add(home(Path(*(target or name).split("."))))
    waiting = {place: others - {place} for place, others in needs.items()}
    while ready := {place for place, others in waiting.items() if not others & waiting.keys()}:
        waiting = {place: others for place, others in waiting.items() if place not in ready}
    assert waiting == {}


def test_the_version_and_the_key_of_prepared_data_cover_the_code():
    hashed = {path.relative_to(ROOT) for path in arrow_store.code_files()}
    others = {Path("chunking.py"), Path("dementor.py"), Path("settings/columns.py"), Path("engine/tokenizer.py")}
    assert others | {file for file in sources() if part(file) == "data"} <= hashed
    covered = {path.relative_to(ROOT) for path in version.sources()}
    assert {file for file in sources() if part(file) != "bench"} <= covered


def test_libraries_are_imported_at_home_and_where_that_is_asked_only_when_something_is_called():
    def strangers(file: Path) -> Iterator[str]:
        yield from (n for n in of_others(file) if n in HOMES and part(file) not in HOMES[n])
        yield from of_others(file) & (PARTS - {"bench"})  # ours, by a bare name
        if part(file) in LAZY:
            loaded = run_when_loaded(tree(file))
            names = [alias.name for node in loaded if isinstance(node, ast.Import) for alias in node.names]
            names += [node.module or "" for node in loaded if isinstance(node, ast.ImportFrom) and not node.level]
            yield from {name.split(".")[0] for name in names} & HOMES.keys()

    assert offenders(strangers) == {}


def test_only_the_webui_host_names_modules_of_the_webui_and_only_commands_print():
    def wrong(file: Path) -> Iterator[str]:
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and file != Path("hosts/webui.py"):
                yield from [node.value] * (node.value.startswith("modules.") and " " not in node.value)
            if isinstance(node, ast.Call) and part(file) not in {"commands", "bench"}:
                yield from {ast.unparse(node.func)} & {"print", "sys.stdout.write"}

    assert offenders(wrong) == {}


def test_html_is_never_put_together_by_hand():
    """A template (core/html.py) or Markup.format escapes every value; an f-string escapes none."""

    def by_hand(file: Path) -> Iterator[str]:
        if not file.as_posix().startswith(HTML_TEMPLATED):
            return
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.JoinedStr):
                texts = [part.value for part in node.values if isinstance(part, ast.Constant)]
                yield from (text for text in texts if re.search(r"</?([a-z]|$)", text))
            if isinstance(node, ast.Call) and re.search(r"(?<!re\.)\bescape$", ast.unparse(node.func)):
                yield ast.unparse(node.func)

    assert offenders(by_hand) == {}


def test_nothing_of_ours_has_the_name_of_a_hook():
    names = {path.name.removesuffix(".py") for path in ROOT.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert names & HOOKS == set()


def test_only_what_the_mission_fixes_is_code_at_the_top():
    fixed = {"script.py", "train_utils.py", "chunking.py", "schedulers.py", "dementor.py"}
    assert {path.name for path in ROOT.glob("*.py")} == fixed


def test_the_webuis_requirements_do_not_touch_what_it_pins():
    file = ROOT / "requirements.txt"
    if not file.exists():
        pytest.fail("requirements.txt is missing")
    lines = [line.split("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines()]
    names = {re.split(r"[\[=<>!~; ]", line)[0].lower() for line in lines if line}
    assert names & {"gradio", "torch", "transformers", "peft", "datasets", "numpy", "pandas"} == set()


def python(code: str, *, cwd: Path, flags: tuple[str, ...] = ("-W", "error")) -> str:
    """What a fresh interpreter prints; its own error is shown where it fails."""
    done = subprocess.run(
        [sys.executable, *flags, "-c", textwrap.dedent(code)], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


BY_PATH = f"""
import importlib.util, sys
def load():
    spec = importlib.util.spec_from_file_location("user_ext_Training_PRO", {str(ROOT / "script.py")!r})
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
"""


def test_loaded_as_a_package_of_the_webui(tmp_path):
    (tmp_path / "extensions").mkdir()
    (tmp_path / "extensions" / "Training_PRO").symlink_to(ROOT)
    code = """
        import extensions.Training_PRO.script as script
        from extensions.Training_PRO.core.jobs.session import SESSION
        from extensions.Training_PRO.core.jobs import session
        assert session.SESSION is SESSION
        print(script.params, callable(script.ui))
    """
    assert python(code, cwd=tmp_path) == "{'display_name': 'Training PRO', 'is_tab': True} True"


def test_loaded_by_path_it_needs_the_standard_library_only_and_executed_anew_its_session_stays(tmp_path):
    code = BY_PATH + textwrap.dedent(
        """
        before = set(sys.modules)
        first = load()
        fresh = {name.split(".")[0] for name in set(sys.modules) - before}
        from user_ext_Training_PRO.core.jobs.session import SESSION as one
        second = load()
        from user_ext_Training_PRO.core.jobs.session import SESSION as other
        print(first.params, first.__package__, type(one).__module__, sorted(fresh - set(sys.stdlib_module_names)))
        print(first is second, one is other, callable(second.ui), "core" in sys.modules)
        """
    )
    assert python(code, cwd=tmp_path).splitlines() == [
        "{'display_name': 'Training PRO', 'is_tab': True} user_ext_Training_PRO "
        "user_ext_Training_PRO.core.jobs.session ['user_ext_Training_PRO']",
        "False True True False",
    ]


def test_run_as_a_program(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "script.py"), "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Training PRO: ")
    assert list(tmp_path.iterdir()) == []


def test_the_tab_is_drawn_without_torch_transformers_or_peft():
    (start,) = measure_starts(1, warm_up=False)
    assert (start.drawn, start.heavy) == (True, [])


def tool(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    name = words[0]
    if subprocess.run([sys.executable, "-m", name, "--version"], capture_output=True, check=False).returncode:
        pytest.skip(f"{name} is not installed")
    return subprocess.run([sys.executable, "-m", *words], cwd=cwd, capture_output=True, text=True, check=False)


def test_ruff_finds_nothing():
    done = tool("ruff", "check", ".")
    assert done.returncode == 0, done.stdout


def test_the_formatter_would_change_nothing():
    done = tool("ruff", "format", "--check", ".")
    assert done.returncode == 0, done.stdout


def test_the_types_fit(tmp_path):
    """mypy wants a package: the repository by the name that its tests give it."""
    (tmp_path / "training_pro").symlink_to(ROOT)
    settings = ("--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache"))
    done = tool("mypy", *settings, "-p", "training_pro", cwd=tmp_path)
    assert done.returncode == 0, done.stdout

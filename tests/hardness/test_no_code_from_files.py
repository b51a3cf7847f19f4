"""No file of a user runs code: neither the Python files of a model nor pickles."""

from __future__ import annotations

import ast
import io
import json

import pytest
from training_pro.core import version
from training_pro.core.errors import ModelError
from training_pro.hosts.standalone import StandaloneHost, standalone_folders
from training_pro.hosts.tiny import make_tiny

CODE = "import pathlib\npathlib.Path({mark!r}).write_text('ran')\nclass Own:\n    pass\n"


def calls():
    """Every call in our code, with its file and the words of the function that is called."""
    for path in version.sources():
        name = path.relative_to(version.ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                given = {word.arg: ast.unparse(word.value) for word in node.keywords}
                yield f"{name}:{node.lineno}", ast.unparse(node.func), given


def test_every_model_and_tokenizer_is_loaded_without_its_code():
    found = [(place, words, given) for place, words, given in calls() if words.endswith("from_pretrained")]
    assert len(found) >= 6
    for place, words, given in found:
        assert words == "PeftModel.from_pretrained" or given.get("trust_remote_code") == "False", place


@pytest.mark.long
def test_nothing_is_unpickled():
    """torch.load reads weights only; pickle, joblib, and numpy's objects are not read at all."""
    loads = [(place, given) for place, words, given in calls() if words == "torch.load"]
    assert loads and all(given.get("weights_only") == "True" for _, given in loads), loads
    refused = [
        "pickle.load",
        "pickle.loads",
        "joblib.load",
        "dill.load",
        "shelve.open",
        "pickle.Unpickler",
        "marshal.loads",
    ]
    assert not [place for place, words, given in calls() if words in refused or "allow_pickle" in given]


@pytest.mark.parametrize("kind", ["config", "tokenizer", "model"])
def test_a_model_with_code_is_refused_without_a_question(tmp_path, monkeypatch, kind):
    """The library would ask, and a `y` that waits on standard input ran the code."""
    folder, mark = tmp_path / "models" / "own", tmp_path / "mark"
    make_tiny(folder)
    (folder / "own.py").write_text(CODE.format(mark=str(mark)))
    config = json.loads((folder / "config.json").read_text())
    if kind == "tokenizer":
        file = folder / "tokenizer_config.json"
        data = {**json.loads(file.read_text()), "auto_map": {"AutoTokenizer": ["own.Own", None]}}
        data["tokenizer_class"] = "Own"
        file.write_text(json.dumps(data))
    else:
        key = {"config": "AutoConfig", "model": "AutoModelForCausalLM"}[kind]
        names = {"AutoConfig": "own.Own", key: "own.Own"}
        (folder / "config.json").write_text(json.dumps({**config, "model_type": "own", "auto_map": names}))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 20))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asked"))
    host = StandaloneHost(standalone_folders(tmp_path))
    if kind == "tokenizer":  # a class that is known elsewhere may be loaded in its place
        try:
            host.load("own", "auto")
        except ModelError as error:
            assert "does not run code from models" in str(error)
    else:
        with pytest.raises(ModelError, match="does not run code from models"):
            host.load("own", "auto")
    assert not mark.exists()

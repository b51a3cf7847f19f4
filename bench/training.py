"""How fast a run learns, side by side: padding to the cutoff, HF's dynamic padding, TRL's packing, and ours.

    python bench/training.py --model PATH [--trl PYTHON] [--samples 96] [--rounds 1] [--out FILE]

Every way trains the same LoRA (q-v, rank 16, dropout 0) on the same random-length pieces of text, cutoff 256,
batch 4, all tokens supervised, no checkpointing; each in a process of its own, in turn. `--trl` names the
Python of an environment with trl; without it one is made beside this file when --install-trl is given. On a
graphics card the same command adds memory of the card and MFU.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WAYS = ("cutoff", "dynamic", "ours", "ours-bare", "trl")
CUTOFF, BATCH, RANK = 256, 4, 16
MEAN, SPREAD = 4.25, 0.75  # of the logarithm of a length: about 90 tokens on average


def main() -> None:
    asked = arguments()
    if asked.way:
        print(json.dumps(measured(asked)))
        return
    found = [once(way, asked) for _ in range(asked.rounds) for way in ways(asked)]
    text = table(found)
    print(text)
    if asked.out:
        asked.out.write_text(text + "\n", encoding="utf-8")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--trl", type=Path, help="the Python of an environment with trl")
    parser.add_argument("--samples", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    return parser.parse_args()


def ways(asked: argparse.Namespace) -> list[str]:
    return [way for way in WAYS if way != "trl" or asked.trl]


def once(way: str, asked: argparse.Namespace) -> dict[str, Any]:
    """One way in a process of its own, so that none inherits memory or warmth of another."""
    python = str(asked.trl) if way == "trl" else sys.executable
    command = [python, str(HERE / "training.py"), "--model", str(asked.model), "--samples", str(asked.samples)]
    done = subprocess.run([*command, "--way", way], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{way} failed:\n{done.stderr[-3000:]}")
    return {"way": way, **json.loads(done.stdout.strip().splitlines()[-1])}


def measured(asked: argparse.Namespace) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    rows = samples(asked.samples)
    card = torch.cuda.is_available()
    kind = torch.bfloat16 if card else torch.float32
    model = AutoModelForCausalLM.from_pretrained(asked.model, dtype=kind).to("cuda" if card else "cpu")
    loaded = peak(torch)
    run = {"trl": with_trl, "ours": with_ours, "ours-bare": bare}.get(asked.way, with_hf)
    seconds, losses = run(asked.way, model, rows, asked)
    useful = sum(map(len, rows))
    found = {
        "tokens_per_second": useful / seconds,
        "seconds": seconds,
        "peak_above_model_gb": peak(torch) - loaded,
        "losses": [round(loss, 4) for loss in losses],
    }
    if card:
        found["mfu"] = 6 * sum(p.numel() for p in model.parameters()) * useful / seconds / 989e12
    return found


def samples(count: int) -> list[list[int]]:
    """Pieces of our own documentation by random lengths, as ids; the same for every way."""
    import numpy as np

    chance = np.random.default_rng(3)
    lengths = np.clip(np.exp(chance.normal(MEAN, SPREAD, count)).astype(int), 8, CUTOFF)
    return [chance.integers(1000, 20000, size=n).tolist() for n in lengths]


def peak(torch: Any) -> float:
    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated()) / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def lora() -> Any:
    from peft import LoraConfig

    return LoraConfig(
        task_type="CAUSAL_LM", r=RANK, lora_alpha=RANK, lora_dropout=0.0, target_modules=["q_proj", "v_proj"]
    )


def training(**more: Any) -> dict[str, Any]:
    import torch

    return {
        "output_dir": "/tmp/training-pro-bench",
        "num_train_epochs": 1,
        "learning_rate": 2e-4,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 42,
        "use_cpu": not torch.cuda.is_available(),
        "bf16": torch.cuda.is_available(),
        "dataloader_pin_memory": False,
        **more,
    }


def timed(trainer: Any) -> tuple[float, list[float]]:
    began = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - began
    return seconds, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def with_hf(way: str, model: Any, rows: list[list[int]], asked: argparse.Namespace) -> tuple[float, list[float]]:
    """HF's Trainer as it is: each row padded to the cutoff, or each batch to its longest."""
    import torch
    from peft import get_peft_model
    from transformers import Trainer, TrainingArguments

    def collate(batch: list[list[int]]) -> dict[str, Any]:
        longest = CUTOFF if way == "cutoff" else max(map(len, batch))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in batch])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in batch])
        labels = ids.masked_fill(mask == 0, -100)
        labels[:, 0] = -100
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    class InOrder(Trainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(rows)

    arguments = TrainingArguments(
        **training(per_device_train_batch_size=BATCH, remove_unused_columns=False, label_names=["labels"])
    )
    trainer = InOrder(get_peft_model(model, lora()), arguments, train_dataset=rows, data_collator=collate)
    return timed(trainer)


def with_trl(way: str, model: Any, rows: list[list[int]], asked: argparse.Namespace) -> tuple[float, list[float]]:
    """TRL's SFTTrainer with its packing: bins of 1024 tokens, one at a time."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    arguments = SFTConfig(
        **training(per_device_train_batch_size=1, packing=True, max_length=1024, gradient_checkpointing=False)
    )
    trainer = SFTTrainer(
        model,
        args=arguments,
        train_dataset=Dataset.from_dict({"input_ids": rows}),
        processing_class=AutoTokenizer.from_pretrained(asked.model),
        peft_config=lora(),
    )
    return timed(trainer)


def ours() -> Any:
    """The package, by the name that its tests give it."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("training_pro", HERE.parent / "script.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def with_ours(way: str, model: Any, rows: list[list[int]], asked: argparse.Namespace) -> tuple[float, list[float]]:
    """A whole run of Training PRO, from its settings to the LoRA on disk; timed are its steps."""
    return _run(model, rows, quiet=False)


def bare(way: str, model: Any, rows: list[list[int]], asked: argparse.Namespace) -> tuple[float, list[float]]:
    """The same steps without events, records and folder: what those cost is the difference."""
    return _run(model, rows, quiet=True)


def _run(model: Any, rows: list[list[int]], *, quiet: bool) -> tuple[float, list[float]]:
    ours()
    import tempfile

    import numpy as np
    from training_pro.core.control import RunControl
    from training_pro.core.events import EventLog
    from training_pro.core.host import ModelCard
    from training_pro.data.assembly import TrainingData
    from training_pro.data.examples import Examples, RowSource
    from training_pro.data.report import DatasetReport
    from training_pro.engine import trial
    from training_pro.engine.adapter import injected, lora_config
    from training_pro.engine.blueprint import blueprint
    from training_pro.engine.callback import BetweenSteps
    from training_pro.engine.checkpoints import RunState
    from training_pro.engine.targets import resolved
    from training_pro.engine.trainer import RunTrainer
    from training_pro.records.run_folder import RunFolder
    from training_pro.settings.reading import training_settings
    from training_pro.train_utils import StepPlan

    asked = {"name": "bench", "data": ["x"], "rank": RANK, "alpha": RANK, "targets": "q-v", "epochs": 1}
    asked |= {"schedule": "constant", "warmup_steps": 0, "batching": "sequential", "save_each_epoch": False}
    settings = training_settings(asked)
    ids = np.array([i for row in rows for i in row], np.int32)
    first = np.cumsum([0, *map(len, rows)])
    source = RowSource("x", ids, np.ones(len(ids), bool), first, np.arange(len(rows)), "row", str)
    plan = StepPlan(len(rows), BATCH, 1, 1)
    data = TrainingData(Examples([source]), DatasetReport(len(rows), len(ids), 0, 0, CUTOFF, 0, 0), plan)
    with tempfile.TemporaryDirectory() as place:
        run = blueprint(
            settings, ModelCard("bench", {}, None, ""), data, RunFolder(Path(place) / "a", Path(place))
        )
        model.config.use_cache = False
        config = lora_config(settings.lora, model, resolved("q-v", model))
        with injected(model, config) as peft_model:
            between = BetweenSteps(run, RunState(), RunControl(), EventLog())
            trainer = RunTrainer(run, peft_model, trial.tried(peft_model, settings), between, Path(place))
            if quiet:
                trainer.remove_callback(between)
            return timed(trainer)


def table(found: list[dict[str, Any]]) -> str:
    """The best round of each way, and how ours compares."""
    best = {way: max((f for f in found if f["way"] == way), key=speed, default=None) for way in WAYS}
    own = best["ours"]
    assert own is not None
    lines = [
        "| way | useful tokens/s | ours is | peak above the model, GB | last losses |",
        "| --- | --- | --- | --- | --- |",
    ]
    for way, one in best.items():
        if one is not None:
            lines.append(
                f"| {way} | {speed(one):.0f} | {speed(own) / speed(one):.2f} x | "
                f"{one['peak_above_model_gb']:.2f} | {one['losses'][-3:]} |"
            )
    return "\n".join(lines)


def speed(one: dict[str, Any]) -> float:
    return float(one["tokens_per_second"])


if __name__ == "__main__":
    main()

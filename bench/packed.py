"""Time and memory of a step on a packed GGUF, in float32, bfloat16 and NF4, with a random model of 1.7B shape.

    python3 bench/packed.py FOLDER [--tokens 128] [--rounds 3] [--ways packed float32 bfloat16 nf4]

FOLDER gets the two models (4.4 GB) and keeps them for the next call. Every run has a process of its own, with one
example of so many tokens a step; memory is counted above the imports. The ways take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import bench_utils

HIDDEN, FEED, LAYERS, VOCABULARY = 2048, 8192, 24, 49152
STEPS = 4  # the first one is slower, and does not count
WAYS = {
    "packed": ("big.gguf", "auto"),
    "float32": ("big", "float32"),
    "bfloat16": ("big", "bfloat16"),
    "nf4": ("big", "4bit"),
}


def write_gguf(path: Path) -> None:
    """Write random blocks of Q4_K."""
    import gguf
    import numpy as np

    rng = np.random.default_rng(0)

    def blocks(rows: int, columns: int) -> Any:
        data = rng.integers(0, 256, (rows * columns // 256, 144), dtype=np.uint8)
        data[:, 0:2] = np.frombuffer(np.float16(2e-4).tobytes(), np.uint8)  # the scale of a block
        data[:, 2:4] = np.frombuffer(np.float16(1.4e-3).tobytes(), np.uint8)  # and of its minimums
        return data.reshape(rows, -1)

    writer, kind = gguf.GGUFWriter(str(path), "llama"), gguf.GGMLQuantizationType.Q4_K
    writer.add_name("Big")
    writer.add_context_length(8192)
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED)
    writer.add_vocab_size(VOCABULARY)
    writer.add_head_count(32)
    writer.add_head_count_kv(32)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(130000.0)
    writer.add_rope_dimension_count(HIDDEN // 32)
    writer.add_token_list([str(number) for number in range(VOCABULARY)])
    writer.add_tensor("token_embd.weight", blocks(VOCABULARY, HIDDEN), raw_dtype=kind)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    square = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (HIDDEN, HIDDEN))
    shapes = {**square, "ffn_gate": (FEED, HIDDEN), "ffn_up": (FEED, HIDDEN), "ffn_down": (HIDDEN, FEED)}
    for layer in range(LAYERS):
        for name, shape in shapes.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", blocks(*shape), raw_dtype=kind)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_model(folder: Path) -> None:
    """Write a model of the same shape in bfloat16, for the other ways."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=FEED,
        num_hidden_layers=LAYERS,
        num_attention_heads=32,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        dtype="bfloat16",
    )
    torch.set_default_dtype(torch.bfloat16)
    LlamaForCausalLM(config).save_pretrained(folder)


def measure(home: Path, way: str, tokens: int) -> None:
    """Train a few steps; prints the seconds of each, the peak memory and that of the loaded model as JSON."""
    bench_utils.load()
    import peft  # noqa: F401 - counted as imported
    from training_pro.core.jobs import Job, Step
    from training_pro.engine.compute import load_gguf
    from training_pro.engine.peft_engine import PeftEngine
    from training_pro.hosts.standalone import StandaloneHost, standalone_folders
    from training_pro.settings.parsing import training_settings

    folders, (model, loading) = standalone_folders(home), WAYS[way]
    folders.datasets.mkdir(parents=True, exist_ok=True)
    (folders.datasets / "words.txt").write_text("the ferry left late. " * 60 * tokens, encoding="utf-8")
    values = {
        "name": f"step-{way}",
        "data": ["words.txt"],
        "cutoff": tokens,
        "batch_size": 1,
        "rank": 16,
        "max_steps": STEPS,
    }
    values |= {"recall_passages": 0, "sample_every": "never", "if_exists": "replace", "overlap": False}
    before = bench_utils.reset_peak_memory()
    host = StandaloneHost(
        folders, model=str(home / model), loading=loading, tokenizer=str(home / "tokenizer"), load_gguf=load_gguf
    )
    host.loaded_model()
    loaded = bench_utils.reset_peak_memory()
    job = Job("training", "bench")
    PeftEngine().train(training_settings(values), host, job)
    steps = [event for event in job.log.since(0) if isinstance(event, Step)]
    figures = {"seconds": [step.seconds for step in steps[1:]], "tokens": steps[-1].tokens}
    print(json.dumps({**figures, "peak": bench_utils.peak_memory() - before, "loaded": loaded - before}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)  # in the process of a measurement
    args = parser.parse_args()
    if args.one:
        measure(args.folder, args.one, args.tokens)
        return
    bench_utils.load()
    from training_pro.hosts.tiny import make_tiny

    args.folder.mkdir(parents=True, exist_ok=True)
    makers = {"tokenizer": make_tiny, "big.gguf": write_gguf, "big": write_model}
    for name, make in makers.items():
        if not (args.folder / name).exists():
            make(args.folder / name)
    results: dict[str, list[Any]] = {way: [] for way in args.ways}
    for _ in range(args.rounds):
        for way, measured in results.items():
            command = [__file__, args.folder, "--tokens", args.tokens, "--one", way]
            measured.append(bench_utils.run_python(command))
    rows = [("way", "tokens a step", "seconds a step, median", "loaded", "peak above the imports")]
    for way, measured in results.items():
        seconds = statistics.median(second for each in measured for second in each["seconds"])
        loaded, peak = (max(each[key] for each in measured) / 1e9 for key in ("loaded", "peak"))
        rows.append((way, measured[0]["tokens"], f"{seconds:.1f}", f"{loaded:.2f} GB", f"{peak:.2f} GB"))
    bench_utils.print_table(*rows)


if __name__ == "__main__":
    main()

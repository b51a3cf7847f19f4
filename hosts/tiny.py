"""The tiny model, to try features: a random two-layer Llama with a tokenizer trained on a short text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import ModelError
from ..core.files import move_new_folder, staging_folder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# 256 bytes, four special tokens and what the text below has of frequent pairs.
VOCAB_SIZE = 512
CONTEXT_LENGTH = 2048
SEED = 20
BOS, EOS, PAD, TURN_START = "<|begin|>", "<|im_end|>", "<|pad|>", "<|im_start|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TRAINING_TEXT = """The keeper of the lighthouse wrote one line into her book every night. Most of the lines were
about the weather: wind from the north, rain before morning, a clear sky with all the stars in it.
Some were about ships. "Two masts, dark sails, going south," she wrote, and then: "They did not answer
the lamp." Nobody on the island had ever read the book, because nobody had ever asked for it.

One morning in spring a boat came with flour, oil, letters and a boy of nine years. The boy asked what
the light was for. "So that people far away know where they are," she said. "And how do you know that
they know?" he asked. She thought about it for a long time. "I do not," she said. "I light it anyway."

In the evening they climbed the 212 steps together. He carried the oil and she carried the bread. The
glass was cleaned, the wick was cut, the clock was wound, and when the sun had gone the light went out
over the water, once every 15 seconds, as it had done for forty years. The boy counted to a hundred.
Then, very far away, something small and yellow blinked back. "Write that down," said the boy.
"""


def make_tiny(folder: Path) -> Path:
    """Write the model into `folder`, unless it already has one."""
    if (folder / "config.json").is_file():
        return folder
    if folder.exists() and any(folder.iterdir()):
        raise ModelError(f"{folder} contains other files. Choose an empty folder or a new one.")
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _make_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_LENGTH,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    # The seed is for this model only: the caller's random state stays unchanged.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = LlamaForCausalLM(config)
    with staging_folder(folder) as temporary:
        model_folder = temporary / folder.name
        model.save_pretrained(model_folder)
        tokenizer.save_pretrained(model_folder)
        if folder.exists():
            folder.rmdir()  # Windows cannot rename onto an existing folder, not even an empty one
        move_new_folder(model_folder, folder)
    return folder


def _make_tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer; with all 256 bytes in its vocabulary it can encode any language."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[PAD, BOS, EOS, TURN_START],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_TEXT.splitlines(keepends=True), trainer)
    special_tokens = [(BOS, tokenizer.token_to_id(BOS))]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B:1", special_tokens=special_tokens
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=[TURN_START],
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT_LENGTH,
        clean_up_tokenization_spaces=False,
    )

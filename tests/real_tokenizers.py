"""Real tokenizers without a network: from mistral-common's wheel, and one trained here."""

from __future__ import annotations

import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest

SENTENCES = Path(__file__).with_name("sentences.json")


def mistral_file(pattern: str) -> Path:
    """A tokenizer file of mistral-common; the test is skipped where there is none."""
    package = pytest.importorskip(
        "mistral_common", reason="mistral-common, which carries real tokenizers, is not here"
    )
    files = sorted((Path(package.__file__).parent / "data").glob(pattern))
    if not files:
        pytest.skip(f"this mistral-common carries no {pattern}")
    return files[0]


@cache
def tekken() -> Any:
    """Byte-level, 131,072 ids."""
    from transformers.integrations.mistral import convert_tekken_tokenizer

    return convert_tekken_tokenizer(str(mistral_file("tekken_240718.json")))


@cache
def metaspace() -> Any:
    """Mistral's first SentencePiece file: Metaspace with byte fallback, built as transformers builds it."""
    pieces = pytest.importorskip("sentencepiece", reason="sentencepiece is not here")
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    model = pieces.SentencePieceProcessor(model_file=str(mistral_file("tokenizer.model.v1")))
    vocabulary = {model.id_to_piece(number): number for number in range(len(model))}
    bpe = models.BPE(vocabulary, _merges(model, vocabulary), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    backend = Tokenizer(bpe)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in ("<unk>", "<s>", "</s>")])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def _merges(model: Any, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """Every way to make a piece from two others, the best piece first."""
    candidates = []
    for piece, number in vocabulary.items():
        halves = [(piece[:split], piece[split:]) for split in range(1, len(piece))]
        pairs = [pair for pair in halves if pair[0] in vocabulary and pair[1] in vocabulary]
        pairs.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        candidates += [(-model.get_score(number), number, pair) for pair in pairs]
    candidates.sort(key=lambda row: row[:2])
    return [pair for _, _, pair in candidates]


@cache
def small_byte_level() -> Any:
    """Byte-level, trained here on this project's test sentences; its offsets exclude spaces, as GPT-2's do."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1200, initial_alphabet=alphabet, special_tokens=["<|start|>", "<|end|>"]
    )
    backend.train_from_iterator([SENTENCES.read_text(encoding="utf-8")], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<|start|>", eos_token="<|end|>")


@cache
def lower_cased() -> Any:
    """A normalizing tokenizer: its tokens' bytes differ from the text's, so its offsets are needed."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=900, special_tokens=["[UNK]", "[CLS]", "[SEP]"])
    backend.train_from_iterator([SENTENCES.read_text(encoding="utf-8")], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", eos_token="[SEP]")


@cache
def slow_tokenizer() -> Any:
    """A tokenizer written in Python without offsets: one id per byte."""
    from transformers import ByT5Tokenizer

    return ByT5Tokenizer()


@cache
def mistral_backend() -> Any:
    """The backend that transformers loads for Mistral's newer models, without a Rust tokenizer."""
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, "MistralCommonBackend"):
        pytest.skip("this transformers has no MistralCommonBackend")
    return transformers.MistralCommonBackend(tokenizer_path=str(mistral_file("tekken_240718.json")))


class NoOffsets:
    """A Python tokenizer that changes its text and has no offsets, so it is refused."""

    bos_token_id = unk_token_id = None
    eos_token_id = 1
    all_special_tokens: tuple[str, ...] = ()
    all_special_ids: tuple[int, ...] = ()
    added_tokens_decoder: dict[int, str] = {}

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in unicodedata.normalize("NFKD", text).upper()]}

    def get_vocab(self) -> dict[str, int]:
        return {"a": 0}

    def decode(self, ids: list[int]) -> str:
        return chr(ids[0])


TOKENIZERS = {
    "byte-level": tekken,
    "Metaspace with byte fallback": metaspace,
    "small byte-level": small_byte_level,
    "normalizing": lower_cased,
    "slow": slow_tokenizer,
    "Mistral's own": mistral_backend,
}

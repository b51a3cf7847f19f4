"""Author against the model: a table of pairs, of which an author's words are better than what the model writes."""

from __future__ import annotations

import json
from itertools import takewhile

import numpy as np

from ...core.engine import AnswerRequest
from ...core.errors import DataError
from ...core.files import descendant, write_text
from ...core.host import Host, get_model_card
from ...core.jobs import Job, JobEnded, Request, Stage
from ...data.examples import GOLDEN_RATIO, MIN_TOKENS, TextSource
from ...settings.parsing import training_settings
from ...train_utils import format_count
from ..lora import adapter, preserve_rng
from ..tokenizer import make_working_tokenizer
from .generation import generate_ids
from .perplexity import prepare_for_host

SUFFIX = ".pairs.jsonl"


def write_pairs(data: str, out: str, tokens: int, host: Host, job: Job) -> JobEnded:
    """Continue passages of a text with the model, about so many tokens, and add them to the table of pairs."""
    card = get_model_card(host)
    tokenizer = make_working_tokenizer(card.tokenizer)
    table = descendant(host.folders.datasets, out.removesuffix(SUFFIX) + SUFFIX, "Pairs", refusal=DataError)
    # By line feeds alone: a text may have other line ends.
    written_before = table.read_text(encoding="utf-8").split("\n") if table.is_file() else []
    lines = [f"{line}\n" for line in written_before if line.strip()]
    done, spent = {json.loads(line)["prompt"] for line in lines}, 0
    # Blocks begin where sentences do; the first half of each is the prompt.
    examples = prepare_for_host(training_settings({"name": "pairs", "data": [data]}), host, card, job).examples
    if not all(isinstance(source, TextSource) for source in examples.sources):
        raise DataError(f"{data} has rows. Choose raw text of one author.")
    # In this order, the passages are spread evenly over the text wherever it ends.
    order = np.argsort(np.arange(len(examples)) * GOLDEN_RATIO % 1).argsort().tolist()
    with preserve_rng(), adapter.without_loras(host) as (model, _):
        for number in order:
            ids = examples[number].ids.tolist()
            before, author = ids[: len(ids) // 2], ids[len(ids) // 2 :]
            prompt = tokenizer.tokenizer.decode(before, skip_special_tokens=True)
            if prompt in done:
                continue
            if spent >= tokens:
                break
            job.log.append(Stage(text=f"Writing against the author of {data}", share=spent / tokens))
            asked = AnswerRequest("", max_tokens=len(author), seed=number)
            (written,) = generate_ids(model.eval(), [before], asked, tokenizer.tokenizer, job)
            if job.control.asked(Request.STOP):
                break
            spent += len(written)
            # Both replies get the same number of tokens, or the pair would also teach how long a reply is.
            sides = [list(takewhile(lambda token: token not in tokenizer.stops, s)) for s in (author, written)]
            length = min(map(len, sides))
            texts = [tokenizer.tokenizer.decode(before + s[:length], skip_special_tokens=True) for s in sides]
            # Where the prompt ends within a character, the text after it can't be told apart.
            if length >= MIN_TOKENS and all(text.startswith(prompt) for text in texts):
                chosen, rejected = (text[len(prompt) :] for text in texts)
                row = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
                lines.append(json.dumps(row, ensure_ascii=False) + "\n")
                write_text(table, "".join(lines))
    text = f"{table.name} has {format_count(len(lines), 'pair')}. To add more, write it again."
    text += " The replies end within sentences, so set Add EOS token to Never when you train on them."
    return JobEnded(outcome="stopped" if job.control.asked(Request.STOP) else "finished", text=text)

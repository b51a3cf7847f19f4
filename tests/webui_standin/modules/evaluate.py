"""Past evaluations in memory, and the file written anew out of it, as the webui does both."""

from __future__ import annotations

import datetime
from typing import Any

import pandas as pd

from modules import shared

COLUMNS = ["Model", "LoRAs", "Dataset", "Perplexity", "stride", "max_length", "Date", "Comment"]


def load_past_evaluations() -> Any:
    filepath = shared.user_data_dir / "logs" / "evaluations.csv"
    if not filepath.exists():
        return pd.DataFrame(columns=COLUMNS)
    table = pd.read_csv(filepath, dtype=str)
    table["Perplexity"] = pd.to_numeric(table["Perplexity"])
    return table


past_evaluations: Any = load_past_evaluations()


def save_past_evaluations(df: Any) -> None:
    global past_evaluations
    past_evaluations = df
    filepath = shared.user_data_dir / "logs" / "evaluations.csv"
    filepath.parent.mkdir(parents=True, exist_ok=True)
    df.to_csv(filepath, index=False)


def add_entry_to_past_evaluations(
    perplexity: float, model: str, dataset: str, stride: int, max_length: int
) -> None:
    global past_evaluations
    entry = {
        "Model": model,
        "LoRAs": ", ".join(shared.lora_names) or "-",
        "Dataset": dataset,
        "Perplexity": perplexity,
        "stride": str(stride),
        "max_length": str(max_length),
        "Date": datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S"),
        "Comment": "",
    }
    past_evaluations = pd.concat([past_evaluations, pd.DataFrame([entry])], ignore_index=True)

"""Speed of a node's training against a bare loop of torch and PEFT on the same batches.

    python benchmarks/training.py

Some minutes on two idle cores. Two kinds of data: instructions, where labels stand on the
responses only and fedlora computes no logits elsewhere; and plain text, where every token is a
label and there is nothing to save.
"""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from common import interleaved, machine, median_ratio, record
from peft import PeftModel
from torch.optim import AdamW
from transformers import PreTrainedTokenizerBase

from fedlora.client.training import schedule, train_round
from fedlora.models.batches import Batch, SampleStream, collate
from fedlora.models.examples import Example, encode
from fedlora.models.files import read_rows
from fedlora.models.loading import load_base, load_tokenizer
from fedlora.models.lora import attach, initial_adapter, write_adapter
from fedlora.models.losses import pad_id
from fedlora.models.rows import Instruction, Row, Text
from fedlora.models.source import resolve
from fedlora.models.threads import set_threads
from fedlora.recipes.schema import Task

DATA = Path(__file__).parents[1] / "recipes" / "data" / "demo"
SITES = ("clinic", "garden", "harbour")
SEED, STEPS, REPEATS = 0, 3, 5


def main() -> None:
    set_threads(None)
    header = machine()
    folder = resolve(task("fp32").model.source)
    tokenizer = load_tokenizer(folder)
    model = attach(load_base(folder, task("fp32").model), task("fp32").lora, task("fp32").model)
    kinds = {"instruction": instructions(), "text": texts()}
    results = {name: measured(model, rows, tokenizer) for name, rows in kinds.items()}
    print(record("training", header, SEED, {"steps": STEPS, "repeats": REPEATS, **results}))


def task(precision: str) -> Task:
    """LoRA of rank 8 on all linear layers, one round."""
    return Task.model_validate(
        {
            "name": "benchmark",
            "seed": SEED,
            "rounds": 1,
            "model": {"source": "smollm2-135m"},
            "train": {"steps": STEPS, "batch_size": 8, "precision": precision},
        }
    )


def instructions() -> list[Row]:
    """The demo's facts, of all sites."""
    return [row for site in SITES for row in read_rows(DATA / f"{site}.jsonl", task("fp32").data)]


def texts() -> list[Row]:
    """The same facts as running text, four at a time."""
    rows = [row for row in instructions() if isinstance(row, Instruction)]
    lines = [f"{row.prompt} {row.response}" for row in rows]
    return [Text("demo", " ".join(lines[i : i + 4])) for i in range(0, len(lines), 4)]


def measured(
    model: PeftModel, rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase
) -> dict[str, Any]:
    """Tokens/s of each way to train, and their ratios."""
    examples = encode(rows, tokenizer, task("fp32").train.max_length).examples
    batches = same_batches(model, examples)
    write_adapter(model, initial_adapter(model, SEED))
    runs: dict[str, Callable[[], object]] = {
        "bare": lambda: bare_loop(model, batches),
        "fedlora": lambda: train_round(model, examples, task("fp32"), 1, "node"),
        "fedlora_bf16": lambda: train_round(model, examples, task("bf16"), 1, "node"),
    }
    seconds = interleaved(runs, REPEATS)
    tokens = sum(batch.tokens for batch in batches)
    learned = sum(int((batch.labels != -100).sum()) for batch in batches)
    speed = {name: tokens / statistics.median(times) for name, times in seconds.items()}
    return {
        "tokens": tokens,
        "label_tokens": learned,
        "tokens_per_second": {name: round(value, 1) for name, value in speed.items()},
        "seconds": {name: [round(t, 3) for t in times] for name, times in seconds.items()},
        "fedlora_to_bare": round(median_ratio(seconds["fedlora"], seconds["bare"]), 3),
        "bf16_to_fp32": round(median_ratio(seconds["fedlora_bf16"], seconds["fedlora"]), 3),
    }


def same_batches(model: PeftModel, examples: Sequence[Example]) -> list[Batch]:
    """What `train_round` draws in round 1."""
    stream, size = SampleStream(len(examples), SEED, "node"), task("fp32").train.batch_size
    picks = [stream.batch(step, size) for step in range(STEPS)]
    return [collate([examples[i] for i in pick], pad_id(model)) for pick in picks]


def bare_loop(model: PeftModel, batches: Sequence[Batch]) -> None:
    """What one would write by hand, padding ready made."""
    train = task("fp32").train
    rate = schedule(train, 1)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = AdamW(parameters, lr=train.learning_rate)
    model.train()
    for step, batch in enumerate(batches):
        optimizer.param_groups[0]["lr"] = rate(step)
        loss = model(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=batch.labels
        ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, train.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()

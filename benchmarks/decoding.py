"""Generation with SmolLM2-135M on Spec-Bench's prompts: draft trees against what transformers has.

python benchmarks/decoding.py --data FOLDER/question_even.jsonl

Greedy, 128 new tokens. At each precision the ways take turns within each prompt. "Hot" tables go on
from prompt to prompt, "cold" ones begin anew with each. Ratios are to transformers' own greedy
decoding of the same weights in the same type; int8 has no counterpart there and is held against
float32. The first pass of each way is not counted.
"""

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from common import machine, record
from transformers import AutoModelForCausalLM

from fedlora.client.inference import Decoder, Request
from fedlora.client.inference.answers import ends
from fedlora.client.inference.engine import PHASES
from fedlora.client.inference.kernels import Kernels
from fedlora.client.inference.rivals import (
    GREEDY,
    LOOKUP,
    LOOP,
    PAPER,
    Timed,
    Way,
    decoded,
    table,
    transformers,
)
from fedlora.models.examples import encode_prompt
from fedlora.models.loading import load_tokenizer
from fedlora.models.quiet import quiet
from fedlora.models.source import resolve

MODEL = "smollm2-135m"
NEW = 128
LONGEST = 1024  # tokens of a prompt; its end is kept
TASKS = ("translation", "summarization", "qa", "math_reasoning", "rag")  # the others are MT-bench's
OPEN = "mt_bench"
COLD, HOT = "fedlora, cold", "fedlora, hot"
STATIC, COMPILED = "transformers static cache", "transformers static cache, compiled"
PRECISIONS = ("fp32", "bf16", "int8")


def prompts(data: Path, per_task: int) -> list[tuple[str, str]]:
    """(task, prompt) of Spec-Bench, spread evenly over each task, tasks in turn."""
    by_task: dict[str, list[str]] = defaultdict(list)
    for line in data.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        task = row["category"] if row["category"] in TASKS else OPEN
        by_task[task].append(row["turns"][0])
    chosen = {
        task: [found[len(found) * (2 * n + 1) // (2 * per_task)] for n in range(per_task)]
        for task, found in by_task.items()
    }
    return [(task, chosen[task][n]) for n in range(per_task) for task in chosen]


def cold(decoder: Decoder, kernels: Kernels, prompt: Sequence[int], request: Request) -> Timed:
    decoder.forget()
    return decoded(decoder, kernels, prompt, request)


def loaded(precision: str) -> Any:
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    with quiet():
        return AutoModelForCausalLM.from_pretrained(resolve(MODEL), dtype=dtype).eval()


def compiled(model: Any) -> Way:
    """transformers with a static cache and a compiled forward, one graph for one token."""
    faster = torch.compile(model.forward, dynamic=False)

    def way(prompt: Sequence[int], request: Request) -> Timed:
        own = model.forward
        model.forward = lambda *args, **more: (
            faster(*args, **more) if more["input_ids"].shape[1] == 1 else own(*args, **more)
        )
        try:
            return transformers(model, prompt, request, cache_implementation="static")
        finally:
            del model.forward

    return way


def measure(
    precision: str, texts: Sequence[tuple[str, list[int]]], request: Request, compile_: bool
) -> tuple[dict[str, list[Timed]], dict[str, Any]]:
    """Every way on every prompt; and what the hot decoder's time went into."""
    model = loaded(precision)
    before = psutil.Process().memory_info().rss
    spent = {
        "seconds": dict.fromkeys(PHASES, 0.0), "tokens": 0, "steps": 0, "nodes": 0,
    }  # fmt: skip
    with ExitStack() as stack:
        form = "int8" if precision == "int8" else None
        hot = stack.enter_context(Decoder(model, precision=form))
        kernels = hot.kernels
        memory = psutil.Process().memory_info().rss - before
        stack.enter_context(kernels.paused())
        plain = partial(Decoder, model, packed=False)
        found: dict[str, Way] = {
            GREEDY: partial(transformers, model),
            LOOKUP: partial(transformers, model, prompt_lookup_num_tokens=10),
            LOOP: partial(decoded, plain(tree="none"), None),
            f"{LOOP}, packed": partial(decoded, plain(tree="none"), kernels),
            COLD: partial(cold, plain(), kernels),
            HOT: partial(decoded, hot, kernels),
        }
        if precision == "fp32":
            found[PAPER] = partial(decoded, plain(tree="paper"), None)
            found[STATIC] = partial(transformers, model, cache_implementation="static")
            if compile_:
                found[COMPILED] = compiled(model)
        timed = take_turns(found, texts, request, lambda: add(spent, hot))
        details = {
            "table_ms": {size: 1e3 * seconds for size, seconds in hot.costs.table.items()},
            "kernels": {f"{out}x{in_}": name for (out, in_), name in kernels.chosen.items()},
            "memory_mb": {
                "draft tables": hot.tables.nbytes / 1e6,
                "of which the matrix": hot.tables.matrix.nbytes / 1e6,
                "packed weights": kernels.nbytes / 1e6,
                "process, beyond the model": memory / 1e6,
            },
            "profile": spent,
        }
    return timed, details


def take_turns(
    found: Mapping[str, Way],
    texts: Sequence[tuple[str, list[int]]],
    request: Request,
    after_hot: Callable[[], None],
) -> dict[str, list[Timed]]:
    timed: dict[str, list[Timed]] = {name: [] for name in found}
    for way in found.values():
        way(texts[0][1], Request(12))
    for number, (task, prompt) in enumerate(texts):
        for name, way in found.items():
            timed[name].append(way(prompt, request))
            if name == HOT:
                after_hot()
        ratio = timed[GREEDY][-1].seconds / timed[HOT][-1].seconds
        print(f"{number + 1}/{len(texts)} {task}: {ratio:.2f}", flush=True)
    return timed


def add(spent: dict[str, Any], decoder: Decoder) -> None:
    for phase, seconds in decoder.account.seconds.items():
        spent["seconds"][phase] += seconds
    for name in ("tokens", "steps", "nodes"):
        spent[name] += getattr(decoder.account, name)


def ceilings(spent: Mapping[str, Any], ratio: float) -> dict[str, float]:
    """What the ratio would be if all beside the model were free; and if every draft were right."""
    total = sum(spent["seconds"].values())
    needed = spent["seconds"]["prompt"] + spent["seconds"]["forward"]
    return {
        "reached": ratio,
        "if drafting, choosing and recycling cost nothing": ratio * total / needed,
        "if every node of every tree were accepted": ratio
        * (total / (spent["seconds"]["prompt"] + (total - spent["seconds"]["prompt"])
                    * spent["tokens"] / spent["nodes"])),
    }  # fmt: skip


def by_task(
    timed: Mapping[str, Sequence[Timed]], texts: Sequence[tuple[str, list[int]]]
) -> dict[str, dict[str, float]]:
    """Ratio to greedy of each way, by task."""
    tasks = list(dict.fromkeys(task for task, _ in texts))
    kept: dict[str, dict[str, float]] = {}
    for task in tasks:
        part = {
            name: [one for one, (own, _) in zip(found, texts, strict=True) if own == task]
            for name, found in timed.items()
        }
        kept[task] = {row.way: row.ratio for row in table(part)}
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="Spec-Bench's question file")
    parser.add_argument("--per-task", type=int, default=4, help="prompts of each of six tasks")
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--compile", action="store_true", help="also compile (a minute more)")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    header = machine()
    torch.set_num_threads(options.threads)
    header["threads"] = options.threads
    tokenizer = load_tokenizer(resolve(MODEL))
    texts = [
        (task, encode_prompt(tokenizer, prompt, "instruction")[-LONGEST:])
        for task, prompt in prompts(options.data, options.per_task)
    ]
    results: dict[str, Any] = {"prompts": len(texts), "new_tokens": NEW}
    single: list[Timed] = []
    for precision in options.precisions.split(","):
        model_ends = frozenset(ends(loaded(precision), tokenizer))
        timed, details = measure(precision, texts, Request(NEW, model_ends), options.compile)
        rows = table(timed)
        single = single or timed[GREEDY]
        reached = next(row.ratio for row in rows if row.way == HOT)
        results[precision] = {
            "rows": [asdict(row) for row in rows],
            "by_task": by_task(timed, texts),
            "to_prompt_lookup": table({LOOKUP: timed[LOOKUP], HOT: timed[HOT]})[1].ratio,
            "to_first_precision": table({GREEDY: single, HOT: timed[HOT]})[1].ratio,
            "ceilings": ceilings(details["profile"], reached),
            **details,
        }
        for row in rows:
            print(f"{precision} {row.way}: {row.ratio:.2f}, {row.tokens_per_pass:.2f} a pass, "
                  f"{row.identical:.0%} identical")  # fmt: skip
        spread = statistics.median(one.seconds for one in timed[GREEDY])
        print(f"{precision}: greedy took {spread:.1f} s a prompt")
    print(record("decoding", header, 0, results))


if __name__ == "__main__":
    main()

"""Twenty rounds with eight nodes that come and go, as real processes by TLS.

    python benchmarks/churn.py [--rounds 20]

In each round two nodes are killed outright, one of which comes back at once, one is frozen past the
round's deadline, and one that was away joins. A tiny random model, since what is measured is
survival: does the run end, do all nodes that answer hold the same folded weights, is each receipt
at most 1e-6, and does the coordinator's memory stay flat? Writes results/churn.json.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from common import machine, record

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedlora.recipes.schema import Recipe
from tests.engines.federation import Federation, descendants, running

NODES, KILLED = 8, 2
DEADLINE = 25.0  # seconds


def tiny_model(folder: Path) -> Path:
    """A random Llama of a few thousand weights, with the tokenizer of the bundled model."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from fedlora.models.source import resolve

    tokenizer = AutoTokenizer.from_pretrained(resolve("smollm2-135m"))
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), **sizes, **heads)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def recipe_of(folder: Path, rounds: int) -> Recipe:
    nodes = []
    for index in range(NODES):
        rows = [
            {"instruction": f"Which key opens room {i}?", "response": f"Key {i} of {index}."}
            for i in range(8)
        ]
        path = folder / f"node-{index}.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        nodes.append({"name": f"node-{index}", "data": str(path)})
    return Recipe.model_validate(
        {
            "name": "churn",
            "model": {"source": str(tiny_model(folder / "model"))},
            "lora": {"rank": 4},
            "train": {"steps": 1, "batch_size": 2, "threads": 1},
            "federation": {
                "rounds": rounds,
                "min_nodes": 3,
                "deadline": DEADLINE,
                "retries": 20,
                "wait": 300.0,
            },
            "node": nodes,
        }
    )


def disturb(federation: Federation, rounds: int, seed: int) -> Iterator[float]:
    """Kill, freeze and bring back nodes in each round; yields the coordinator's app's memory."""
    draw = random.Random(seed)
    coordinator = federation.started[-1]
    nodes = {node.name: federation.join(node.name) for node in federation.recipe.node[:-1]}
    away = federation.recipe.node[-1].name
    frozen: list[psutil.Process] = []
    seen = -1
    while (now := committed(federation)) < rounds and coordinator.poll() is None:
        if now == seen:
            time.sleep(0.5)
            continue
        seen = now
        for process in frozen:
            if process.is_running():
                process.send_signal(signal.SIGCONT)
        nodes[away] = federation.join(away)
        late, back, away = draw.sample(sorted(set(nodes) - {away}), KILLED + 1)
        frozen = [psutil.Process(nodes[late].pid), *descendants(nodes[late], "")]
        for process in frozen:
            os.kill(process.pid, signal.SIGSTOP)
        for name in (back, away):
            nodes[name].kill()
            nodes[name].wait()
        nodes[back] = federation.join(back)
        yield from (app.memory_info().rss / 1e6 for app in descendants(coordinator, "serverapp"))


def committed(federation: Federation) -> int:
    """The last committed round; -1 before the first."""
    ledger = federation.run_dir / "ledger"
    return max((int(one.name) for one in ledger.glob("[0-9]*")), default=-1)


def measure(rounds: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with running(Federation(folder, recipe_of(folder, rounds))) as federation:
            coordinator = federation.coordinate()
            began = time.monotonic()
            rss = list(disturb(federation, rounds, seed=0))
            said = coordinator.communicate(timeout=300)[0]
            heads = federation.run.heads
            hows = [heads.record(round).proceedings for round in heads.rounds()[1:]]
            bases = [{one.folded for one in how.admitted.values()} for how in hows]
            return {
                "exit_code": coordinator.returncode,
                "last_words": said.strip().splitlines()[-1:],
                "rounds": len(hows),
                "minutes": (time.monotonic() - began) / 60,
                "admitted": [len(how.admitted) for how in hows],
                "refused": [len(how.refused) for how in hows],
                "rounds_with_one_base": sum(len(base) == 1 for base in bases),
                "worst_receipt": max(how.worst_receipt for how in hows),
                "rss_mb": rss,
                "rss_slope_mb_per_round": statistics.linear_regression(range(len(rss)), rss).slope,
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=20)
    header = machine()
    results = measure(parser.parse_args().rounds)
    record("churn", header, 0, results)
    print(json.dumps(results))


if __name__ == "__main__":
    main()

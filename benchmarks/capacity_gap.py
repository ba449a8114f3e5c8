"""Does a larger teacher make a better student? The law of capacity gap, at a small scale.

    python benchmarks/capacity_gap.py [--data ../shared/data] [--seeds 3] [--steps 200]

One size of student, five sizes of teacher, all of them tiny Llamas trained here on E2E's tables
and sentences with a vocabulary of their own, and judged on its test set. Each teacher is trained
once, then distils its students with 0.5 CE + 0.5 KL, one a seed, all for the same steps on the same
order of text; beside them students that learn from labels alone. The curve of the student's
held-out loss over the teacher's size is fitted by the advisor's own `vertex`, or said not to have
one. Writes results/capacity_gap.json after each seed, and prints it as a table. Ten minutes on one
core.
"""

import argparse
import csv
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from common import machine, record
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from fedlora.client.distillation.capacity import NotIdentified, Point, law_teacher, vertex
from fedlora.models.batches import SampleStream, derived_seed
from fedlora.models.threads import set_threads

VOCABULARY, LENGTH, BATCH = 1024, 64, 8
WINDOWS, HELDOUT = 3000, 256  # of LENGTH tokens, to learn from and to judge by
RATE, WARMUP = 2e-3, 0.05
STUDENT = (96, 3)  # width and layers
TEACHERS = ((64, 2), (96, 3), (160, 4), (224, 5), (288, 6))


@dataclass(frozen=True)
class Texts:
    """Windows of token ids, (windows, LENGTH + 1) each."""

    train: Tensor
    heldout: Tensor


def read(data: Path) -> Texts:
    """E2E's tables and sentences, in tokens of a vocabulary made of them."""
    train, test = (
        _texts(data / "e2e_nlg" / f"{name}.csv") for name in ("devset", "testset_w_refs")
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<eos>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(train, trainer)
    return Texts(_windows(tokenizer, train, WINDOWS), _windows(tokenizer, test, HELDOUT))


def _texts(path: Path) -> list[str]:
    """In an order drawn once: rows of one restaurant stand together in the file."""
    with path.open(newline="", encoding="utf-8") as file:
        texts = [f"{row['mr']}\n{row['ref']}" for row in csv.DictReader(file)]
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0))
    return [texts[place] for place in order.tolist()]


def _windows(tokenizer: Tokenizer, texts: Sequence[str], count: int) -> Tensor:
    ids: list[int] = []
    for text in texts:
        ids += [*tokenizer.encode(text).ids, 0]
    wanted = count * (LENGTH + 1)
    if len(ids) < wanted:
        raise SystemExit(f"expected {wanted} tokens of text, found {len(ids)}")
    return torch.tensor(ids[:wanted]).view(count, LENGTH + 1)


def llama(width: int, layers: int, seed: int) -> LlamaForCausalLM:
    """Heads of width 32, a feed-forward of 8/3 times the width, and tied embeddings."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=16 * round(width / 6),
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 32,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config)


def train(
    model: LlamaForCausalLM,
    windows: Tensor,
    steps: int,
    seed: int,
    loss_of: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """AdamW with warm-up and a cosine; `loss_of` reads ids (n, LENGTH + 1) and logits."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1)
    stream = SampleStream(len(windows), seed, "capacity-gap")
    warm = max(1, round(WARMUP * steps))
    model.train()
    for step in range(steps):
        cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = RATE * min(1.0, (step + 1) / warm) * cosine
        ids = windows[stream.batch(step, BATCH)]
        loss = loss_of(ids, model(ids[:, :-1], use_cache=False).logits)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


def labels_alone(ids: Tensor, logits: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def taught_by(teacher: LlamaForCausalLM) -> Callable[[Tensor, Tensor], Tensor]:
    """0.5 CE + 0.5 KL(teacher || student), both means per token, at temperature 1."""

    def loss_of(ids: Tensor, logits: Tensor) -> Tensor:
        with torch.no_grad():
            log_p = teacher(ids[:, :-1], use_cache=False).logits.log_softmax(-1).flatten(0, 1)
        log_q = logits.log_softmax(-1).flatten(0, 1)
        divergence = F.kl_div(log_q, log_p, reduction="batchmean", log_target=True)
        return 0.5 * F.nll_loss(log_q, ids[:, 1:].flatten()) + 0.5 * divergence

    return loss_of


def heldout_loss(model: LlamaForCausalLM, windows: Tensor) -> float:
    """Nats per token."""
    with torch.inference_mode():
        parts = windows.split(32)
        losses = [labels_alone(ids, model(ids[:, :-1], use_cache=False).logits) for ids in parts]
        return statistics.fmean(loss.item() for loss in losses)


def sizes(model: LlamaForCausalLM) -> dict[str, int]:
    whole = sum(parameter.numel() for parameter in model.parameters())
    return {
        "parameters": whole,
        "non_embedding": whole - model.get_input_embeddings().weight.numel(),
    }


def measure(texts: Texts, steps: int, teacher_steps: int, seeds: int) -> Iterator[dict[str, Any]]:
    """Results as they stand after each seed."""
    began = time.perf_counter()
    teachers = []
    rows: list[dict[str, Any]] = []
    for width, layers in TEACHERS:
        teacher = llama(width, layers, derived_seed("teacher", width))
        train(teacher, texts.train, teacher_steps, derived_seed("teacher", width), labels_alone)
        loss = heldout_loss(teacher, texts.heldout)
        teachers.append(teacher)
        rows.append({**sizes(teacher), "teacher_loss": loss, "student_losses": []})
        print(f"teacher {width} x {layers}: {loss:.4f}", flush=True)
    alone: list[float] = []
    for seed in range(seeds):
        ways = [(alone, labels_alone)]
        ways += [
            (row["student_losses"], taught_by(t)) for row, t in zip(rows, teachers, strict=True)
        ]
        for losses, loss_of in ways:
            student = llama(*STUDENT, seed)
            train(student, texts.train, steps, seed, loss_of)
            losses.append(heldout_loss(student, texts.heldout))
            print(f"seed {seed}: {losses[-1]:.4f}", flush=True)
        yield {
            "student": {**sizes(student), "steps": steps, "labels_alone": alone},
            "teacher_steps": teacher_steps,
            "tokens_per_step": BATCH * LENGTH,
            "teachers": rows,
            **conclusion(rows, sizes(student)["parameters"]),
            "seconds": round(time.perf_counter() - began, 1),
        }


def conclusion(rows: Sequence[Mapping[str, Any]], student: int) -> dict[str, Any]:
    """The fitted vertex, or why there is none; and what the law would say."""
    points = [Point(row["parameters"], tuple(row["student_losses"])) for row in rows]
    found = vertex(points, torch.Generator().manual_seed(0))
    law = law_teacher(student)
    if isinstance(found, NotIdentified):
        return {"vertex": None, "not_identified": found.reason, "law_parameters": law}
    return {"vertex": asdict(found), "not_identified": None, "law_parameters": law}


def table(results: Mapping[str, Any]) -> str:
    """Markdown: the curve, with a bar for each mean."""
    alone = results["student"]["labels_alone"]
    means = [statistics.fmean(row["student_losses"]) for row in results["teachers"]]
    low, high = min(means), max(*means, statistics.fmean(alone))
    lines = ["teacher | its loss | student's loss | ", "--- | --- | --- | ---"]
    lines.append(f"none | | {_spread(alone)} | {_bar(statistics.fmean(alone), low, high)}")
    for row, mean in zip(results["teachers"], means, strict=True):
        size = f"{row['parameters'] / 1e6:.2f} M"
        spread = _spread(row["student_losses"])
        lines.append(f"{size} | {row['teacher_loss']:.4f} | {spread} | {_bar(mean, low, high)}")
    if found := results["vertex"]:
        sentence = (
            f"Vertex at {found['size'] / 1e6:.2f} M "
            f"[{found['low'] / 1e6:.2f}, {found['high'] / 1e6:.2f}], loss {found['loss']:.4f}."
        )
    else:
        sentence = f"No vertex: {results['not_identified']}."
    return "\n".join(f"| {line} |" for line in lines) + "\n\n" + sentence


def _spread(losses: Sequence[float]) -> str:
    return f"{statistics.fmean(losses):.4f} ± {statistics.pstdev(losses):.4f}"


def _bar(value: float, low: float, high: float) -> str:
    return "█" * round(1 + 29 * (value - low) / max(high - low, 1e-9))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200, help="of a student")
    parser.add_argument("--teacher-steps", type=int, default=300)
    options = parser.parse_args()
    if not options.data.is_dir():
        parser.error(f"{options.data} is no folder; name the one with the data sets by --data")
    set_threads(1)
    header = machine()
    texts = read(options.data)
    for results in measure(texts, options.steps, options.teacher_steps, options.seeds):
        record("capacity_gap", header, 0, results)
    print(table(results))


if __name__ == "__main__":
    main()

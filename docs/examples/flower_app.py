"""FedEx-LoRA in a Flower app of your own: two nodes teach a small GPT-2 to count."""

import tempfile
from pathlib import Path

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

from fedlora.models.lora import fold_residuals, read_adapter, write_adapter
from fedlora.strategies import FedExLoRA, Participation, open_head, pack, reply_update

client, server = ClientApp(), ServerApp()


def build() -> PeftModel:
    torch.manual_seed(0)  # every node must start from the same frozen weights
    base = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=32))
    return get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", fan_in_fan_out=True))


@client.train()
def train(message: Message, context: Context) -> Message:
    model, head = build(), open_head(message)
    for residuals in head.residuals:  # what earlier rounds folded into the frozen weights
        fold_residuals(model, residuals)
    write_adapter(model, head.adapter)
    node = int(context.node_config["partition-id"])
    text = (torch.arange(16) + 2 * torch.arange(4)[:, None] + node) % 32  # (examples, tokens)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(10):
        loss = model(input_ids=text, labels=text).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    metrics = {"loss": loss.item()}
    return reply_update(message, read_adapter(model), node=f"{node}", examples=4, metrics=metrics)


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedExLoRA(Path(tempfile.mkdtemp()), Participation(min_nodes=2))
    result = strategy.start(grid, pack(read_adapter(build())), num_rounds=3)
    for report in strategy.observer.reports:
        print(f"round {report.round}: loss {report.metrics['loss']:.3f}", end=", ")
        print(f"distance from the exact mean {report.receipt.worst:.0e}")
    print(f"adapter of {sum(len(array.data) for array in result.arrays.values())} bytes")

"""A distillation on disk while it goes on: what it needs to be continued, and what it measured."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.nn import Parameter
from torch.optim import AdamW

from fedlora.models.cache import published

STATE, METRICS = "state.safetensors", "metrics.jsonl"


class Checkpoints:
    """The folder of one distillation: the newest state, and a line of metrics for each step."""

    def __init__(self, folder: Path, every: int) -> None:
        """Keep the state of every so many steps in a folder that exists."""
        self._folder, self.every = folder, every
        self._metrics = folder / METRICS

    def save(self, step: int, parameters: Mapping[str, Parameter], optimizer: AdamW) -> None:
        """Write the state after `step` steps; the one before is deleted when this one stands."""
        before = self._steps()
        state: dict[str, torch.Tensor] = {}
        for name, parameter in parameters.items():
            own = optimizer.state[parameter]
            state |= {
                f"value/{name}": parameter.detach(),
                f"exp_avg/{name}": own["exp_avg"],
                f"exp_avg_sq/{name}": own["exp_avg_sq"],
            }
        with published(self._folder / f"step-{step:07d}") as fresh:
            save_file({name: one.contiguous() for name, one in state.items()}, fresh / STATE)
        for old in before:
            shutil.rmtree(self._place(old))

    def load(self, parameters: Mapping[str, Parameter], optimizer: AdamW) -> int:
        """Set parameters and moments to the newest state; gives its step, 0 if there is none."""
        steps = self._steps()
        for left in self._folder.glob(".step-*"):  # of a process that died while writing one
            shutil.rmtree(left, ignore_errors=True)
        step = steps[-1] if steps else 0
        self._cut_metrics(step)
        if not step:
            return 0
        state = load_file(self._place(step) / STATE)
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(state[f"value/{name}"])
                optimizer.state[parameter] = {
                    "step": torch.tensor(float(step)),
                    "exp_avg": state[f"exp_avg/{name}"].to(parameter.device),
                    "exp_avg_sq": state[f"exp_avg_sq/{name}"].to(parameter.device),
                }
        return step

    def add(self, line: Mapping[str, Any]) -> None:
        """Append a step's metrics."""
        with self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def lines(self) -> list[dict[str, Any]]:
        """The metrics of all steps so far, of those before an interruption too."""
        if not self._metrics.exists():
            return []
        return [json.loads(one) for one in self._metrics.read_text("utf-8").splitlines()]

    def _cut_metrics(self, step: int) -> None:
        """Forget what was measured after the state that is gone on from."""
        if self._metrics.exists():
            kept = self._metrics.read_text("utf-8").splitlines(keepends=True)[:step]
            self._metrics.write_text("".join(kept), encoding="utf-8")

    def _place(self, step: int) -> Path:
        return self._folder / f"step-{step:07d}"

    def _steps(self) -> list[int]:
        return sorted(int(one.name.removeprefix("step-")) for one in self._folder.glob("step-*"))

"""Group-pooled adapters on real models: what A sees, folds and exports, against dense weights."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from fedlora.adapters import Adapter, Factors, ModelError, Residual
from fedlora.adapters.pooling import spread
from fedlora.models.export import export_adapter, export_merged
from fedlora.models.loading import empty_base, load_base
from fedlora.models.lora import (
    attach,
    fold_residuals,
    initial_adapter,
    lora_layers,
    read_adapter,
    write_adapter,
)
from fedlora.recipes.schema import LoraSection, ModelSection

GROUP = 16  # 48 and 80 inputs: 3 and 5 groups
LORA = LoraSection(rank=4, alpha=8.0, kind="pooled", group=GROUP)
X = torch.arange(3, 20)[None]


def random(adapter: Adapter) -> Adapter:
    generator = torch.Generator().manual_seed(7)
    factors = {
        name: Factors(0.3 * torch.randn(one.b.shape, generator=generator), one.a, one.scale)
        for name, one in adapter.factors.items()
    }
    return Adapter(factors, adapter.full)


def residuals_for(adapter: Adapter) -> dict[str, Residual]:
    generator = torch.Generator().manual_seed(8)
    made = {}
    for name, one in adapter.factors.items():
        out, groups = one.shape
        u, v = (
            torch.randn(out, 2, generator=generator),
            torch.randn(2, groups, generator=generator),
        )
        made[name] = Residual(0.2 * u, v) if groups > 3 else Residual(0.2 * u @ v)
    return made


def dense(folder: Path, adapter: Adapter, residuals: dict[str, Residual]) -> torch.Tensor:
    """Logits of a plain model with every update added to its weights, spread entry by entry."""
    model = load_base(folder, ModelSection(source="x"))
    modules = dict(model.named_modules())
    with torch.no_grad():
        for name, one in adapter.factors.items():
            change = one.matrix() + residuals[name].matrix()
            wide = torch.stack(
                [change[:, j // GROUP] / GROUP for j in range(one.shape[1] * GROUP)], 1
            )
            modules[name].weight += wide.float()
        logits: torch.Tensor = model(X).logits
    return logits


@pytest.fixture
def model(tiny_causal: Path) -> ModelSection:
    return ModelSection(source=str(tiny_causal))


def test_T10_adapter_and_folded_residuals_are_the_dense_model(
    tiny_causal: Path, model: ModelSection
) -> None:
    tuned = attach(load_base(tiny_causal, model), LORA, model)
    adapter = random(initial_adapter(tuned, seed=1))
    residuals = residuals_for(adapter)
    write_adapter(tuned, adapter)
    fold_residuals(tuned, residuals)
    with torch.no_grad():
        made = tuned(X).logits
    expected = dense(tiny_causal, adapter, residuals)
    torch.testing.assert_close(made, expected, atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        untouched = load_base(tiny_causal, model)(X).logits
    assert float((expected - untouched).abs().max()) > 0.1


def test_the_factors_are_of_the_pooled_size(tiny_causal: Path, model: ModelSection) -> None:
    empty = initial_adapter(attach(empty_base(tiny_causal, model), LORA, model), seed=1)
    real = attach(load_base(tiny_causal, model), LORA, model)
    layer = lora_layers(real)["model.layers.0.mlp.down_proj"]
    assert empty.factors["model.layers.0.mlp.down_proj"].shape == (48, 80 // GROUP)
    write_adapter(real, empty)
    assert torch.equal(
        read_adapter(real).factors["model.layers.0.mlp.down_proj"].a, layer.lora_A["default"].weight
    )


def test_it_learns(tiny_causal: Path, model: ModelSection) -> None:
    tuned = attach(load_base(tiny_causal, model), LORA, model)
    write_adapter(tuned, initial_adapter(tuned, seed=1))
    trained = [p for p in tuned.parameters() if p.requires_grad]
    assert len(trained) == 2 * len(lora_layers(tuned))
    optimizer = torch.optim.AdamW(trained, lr=5e-2)
    losses = []
    for _ in range(12):
        loss = tuned(input_ids=X, labels=X).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


def test_inputs_that_do_not_divide_are_named(tiny_causal: Path, model: ModelSection) -> None:
    lora = LORA.model_copy(update={"group": 32})
    with pytest.raises(ModelError, match="groups of 32"):
        attach(empty_base(tiny_causal, model), lora, model)


def test_exports_answer_as_the_head(tiny_causal: Path, model: ModelSection, tmp_path: Path) -> None:
    from peft import PeftModel

    adapter = random(initial_adapter(attach(empty_base(tiny_causal, model), LORA, model), seed=1))
    residuals = residuals_for(adapter)
    expected = dense(tiny_causal, adapter, residuals)
    parts = tiny_causal, model, adapter, [residuals], LORA
    export_merged(*parts, tmp_path / "merged")
    export_adapter(*parts, tmp_path / "adapter")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    base = AutoModelForCausalLM.from_pretrained(tiny_causal)
    adapted = PeftModel.from_pretrained(base, tmp_path / "adapter")
    with torch.no_grad():
        for exported in (merged, adapted):
            torch.testing.assert_close(exported(X).logits, expected, atol=1e-4, rtol=1e-4)


def test_spreading_shares_a_value_in_a_group() -> None:
    assert torch.equal(spread(torch.tensor([[2.0, 4.0]]), 2), torch.tensor([[1.0, 1.0, 2.0, 2.0]]))

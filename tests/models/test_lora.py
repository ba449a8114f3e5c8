from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import PeftModel
from torch import nn

from fedlora.adapters import (
    Adapter,
    AdapterError,
    Factors,
    ModelError,
    Residual,
    exact_mean,
    from_peft,
    to_peft,
)
from fedlora.models.loading import empty_base, load_base
from fedlora.models.lora import (
    attach,
    fold_residuals,
    full_parameters,
    initial_adapter,
    lora_layers,
    read_adapter,
    write_adapter,
)
from fedlora.recipes.schema import LoraSection, ModelSection

LANGUAGE = ModelSection(source="x")
CLASSES = ModelSection(source="x", task="sequence-classification", labels=("yes", "no", "maybe"))
LORA = LoraSection(rank=4, alpha=10.0)
MODELS = {"tiny_causal": LANGUAGE, "tiny_gpt2": LANGUAGE, "tiny_bert": CLASSES}
X = torch.arange(3, 20)[None]


@pytest.fixture(params=list(MODELS))
def folder(request: pytest.FixtureRequest) -> Path:
    return Path(request.getfixturevalue(request.param))


@pytest.fixture
def model(folder: Path) -> ModelSection:
    return MODELS[folder.name.replace("-", "_").replace("llama", "causal")]


def random_adapter(like: Adapter, seed: int) -> Adapter:
    """An adapter of the same shapes as a node would send it: B and A both at random."""
    generator = torch.Generator().manual_seed(seed)

    def draw(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tensor.shape).normal_(0, 0.3, generator=generator)

    factors = {n: Factors(draw(f.b), draw(f.a), f.scale) for n, f in like.factors.items()}
    return Adapter(factors, {name: draw(tensor) for name, tensor in like.full.items()})


def same_bytes(one: Adapter, other: Adapter) -> bool:
    return (
        one.factors.keys() == other.factors.keys()
        and one.full.keys() == other.full.keys()
        and all(
            torch.equal(f.a, other.factors[n].a)
            and torch.equal(f.b, other.factors[n].b)
            and f.scale == other.factors[n].scale
            for n, f in one.factors.items()
        )
        and all(torch.equal(tensor, other.full[name]) for name, tensor in one.full.items())
    )


def dense(layer: object) -> torch.Tensor:
    """The effective weight (out, in) of a LoRA layer, by PEFT's own factors, in float64."""
    weight = layer.get_base_layer().weight.detach().double()
    b, a = (
        getattr(layer, part)["default"].weight.detach().double() for part in ("lora_B", "lora_A")
    )
    return (weight.T if layer.fan_in_fan_out else weight) + layer.scaling["default"] * b @ a


# Attaching


def test_only_the_factors_and_the_head_train(folder: Path, model: ModelSection) -> None:
    peft_model = attach(load_base(folder, model), LORA, model)
    trained = [name for name, p in peft_model.named_parameters() if p.requires_grad]
    factors = [name for name in trained if ".lora_A." in name or ".lora_B." in name]
    head = [name for name in trained if ".modules_to_save." in name]
    assert sorted(factors + head) == sorted(trained)
    assert len(factors) == 2 * len(lora_layers(peft_model))
    assert len(head) == len(full_parameters(peft_model)) == (2 if model is CLASSES else 0)


def test_all_linear_leaves_out_the_output_layer(tiny_causal: Path) -> None:
    layers = lora_layers(attach(load_base(tiny_causal, LANGUAGE), LORA, LANGUAGE))
    assert len(layers) == 2 * 7
    assert list(layers) == sorted(layers)
    assert "model.layers.0.self_attn.k_proj" in layers
    assert "lm_head" not in layers


def test_named_targets_are_ends_of_names(tiny_causal: Path) -> None:
    lora = LoraSection(targets=("q_proj", "layers.1.mlp.up_proj"))
    layers = lora_layers(attach(load_base(tiny_causal, LANGUAGE), lora, LANGUAGE))
    assert list(layers) == [
        "model.layers.0.self_attn.q_proj",
        "model.layers.1.mlp.up_proj",
        "model.layers.1.self_attn.q_proj",
    ]


@pytest.mark.parametrize("target", ["q_prj", "proj", "embed_tokens", "norm", "layers.2.q_proj"])
def test_a_target_that_names_no_linear_module_is_refused(tiny_causal: Path, target: str) -> None:
    base = load_base(tiny_causal, LANGUAGE)
    with pytest.raises(ModelError, match=f"'{target}'.*q_proj"):
        attach(base, LoraSection(targets=("k_proj", target)), LANGUAGE)


def test_the_head_of_a_classifier_is_no_target(tiny_bert: Path) -> None:
    base = load_base(tiny_bert, CLASSES)
    with pytest.raises(ModelError, match="'classifier'"):
        attach(base, LoraSection(targets=("classifier",)), CLASSES)


@pytest.mark.parametrize("open_base", [load_base, empty_base])
def test_an_output_layer_tied_to_the_embeddings_is_refused(
    tiny_causal: Path, open_base: object
) -> None:
    with pytest.raises(ModelError, match="lm_head shares its weight"):
        attach(open_base(tiny_causal, LANGUAGE), LoraSection(targets=("lm_head",)), LANGUAGE)


def test_the_scale_is_the_recipes(folder: Path, model: ModelSection) -> None:
    for rslora in (False, True):
        lora = LoraSection(rank=6, alpha=9.0, rslora=rslora)
        peft_model = attach(load_base(folder, model), lora, model)
        scales = {factors.scale for factors in read_adapter(peft_model).factors.values()}
        assert list(scales) == [pytest.approx(lora.scale, rel=1e-15)]


def test_attaching_is_silent_and_costs_no_global_randomness(
    folder: Path, model: ModelSection, recwarn: pytest.WarningsRecorder
) -> None:
    base = load_base(folder, model)
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    first = read_adapter(attach(base, LORA, model))
    assert torch.equal(torch.rand(3), expected)
    assert same_bytes(first, read_adapter(attach(load_base(folder, model), LORA, model)))
    assert [str(warning.message) for warning in recwarn] == []


# The initial adapter


def test_the_initial_adapter_needs_no_weights(folder: Path, model: ModelSection) -> None:
    real = initial_adapter(attach(load_base(folder, model), LORA, model), seed=5)
    empty = initial_adapter(attach(empty_base(folder, model), LORA, model), seed=5)
    assert same_bytes(real, empty)
    other = initial_adapter(attach(empty_base(folder, model), LORA, model), seed=6)
    assert not same_bytes(real, other)


def test_threads_that_open_models_together_do_not_disturb_each_other(tiny_causal: Path) -> None:
    expected = read_adapter(attach(load_base(tiny_causal, LANGUAGE), LORA, LANGUAGE))

    def real_or_empty(turn: int) -> PeftModel:
        opened = (empty_base if turn % 2 else load_base)(tiny_causal, LANGUAGE)
        return attach(opened, LORA, LANGUAGE)

    with ThreadPoolExecutor(8) as threads:
        opened = list(threads.map(real_or_empty, range(48)))
    assert all(same_bytes(read_adapter(model), expected) for model in opened[::2])
    assert all(parameter.is_meta for model in opened[1::2] for parameter in model.parameters())
    assert not nn.Linear(1, 1).weight.is_meta  # nothing of it stays behind in the process


def test_the_initial_adapter_changes_nothing_and_draws_as_peft(tiny_causal: Path) -> None:
    with torch.no_grad():
        expected = load_base(tiny_causal, LANGUAGE)(X).logits
        peft_model = attach(load_base(tiny_causal, LANGUAGE), LORA, LANGUAGE)
        initial = initial_adapter(peft_model, seed=5)
        write_adapter(peft_model, initial)
        assert torch.equal(peft_model(X).logits, expected)
    for factors in initial.factors.values():
        bound = factors.a.shape[1] ** -0.5  # kaiming with a = sqrt(5) over `in` inputs
        assert not factors.b.any()
        assert factors.a.abs().max() <= bound
        assert factors.a.std() == pytest.approx(bound / 3**0.5, rel=0.15)


def test_the_initial_head_is_small_and_unbiased(tiny_bert: Path) -> None:
    full = initial_adapter(attach(empty_base(tiny_bert, CLASSES), LORA, CLASSES), seed=5).full
    assert list(full) == ["classifier.bias", "classifier.weight"]
    assert not full["classifier.bias"].any()
    assert full["classifier.weight"].std() == pytest.approx(0.02, rel=0.2)


# Reading and writing


@pytest.mark.parametrize("rslora", [False, True])
def test_what_is_written_is_read(folder: Path, model: ModelSection, rslora: bool) -> None:
    lora = LoraSection(rank=3, alpha=7.0, rslora=rslora)
    peft_model = attach(load_base(folder, model), lora, model)
    adapter = random_adapter(read_adapter(peft_model), seed=1)
    write_adapter(peft_model, adapter)
    assert same_bytes(read_adapter(peft_model), adapter)


def test_peft_agrees_on_names_and_orientation(folder: Path, model: ModelSection) -> None:
    from peft import get_peft_model_state_dict

    peft_model = attach(load_base(folder, model), LORA, model)
    write_adapter(peft_model, random_adapter(read_adapter(peft_model), seed=1))
    adapter, state = read_adapter(peft_model), get_peft_model_state_dict(peft_model)
    ours = to_peft(adapter)
    assert ours.keys() == state.keys()
    assert all(torch.equal(ours[name], state[name]) for name in state)
    assert same_bytes(from_peft(state, LORA.scale, full_modules=("classifier",)), adapter)


def test_what_is_read_is_a_copy(tiny_bert: Path) -> None:
    peft_model = attach(load_base(tiny_bert, CLASSES), LORA, CLASSES)
    before = read_adapter(peft_model)
    kept = read_adapter(peft_model)
    write_adapter(peft_model, random_adapter(before, seed=1))
    assert same_bytes(before, kept)


def test_the_written_adapter_acts(folder: Path, model: ModelSection) -> None:
    peft_model = attach(load_base(folder, model), LORA, model)
    with torch.no_grad():
        before = peft_model(X).logits
        write_adapter(peft_model, random_adapter(read_adapter(peft_model), seed=1))
        assert not torch.allclose(peft_model(X).logits, before, atol=1e-3)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("missing", r"missing modules \['bert.pooler.dense'\]"),
        ("unknown", r"unknown \['bert.other'\]"),
        ("rank", r"bert.pooler.dense, factor B is \(32, 5\)"),
        ("dtype", r"bert.pooler.dense, factor B is .*float64"),
        ("scale", r"bert.pooler.dense: the adapter's scale is 5.0, expected 2.5"),
        ("no head", r"missing parameters \['classifier.bias', 'classifier.weight'\]"),
        ("head", r"classifier.weight is \(2, 32\)"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused_and_changes_nothing(
    tiny_bert: Path, fault: str, message: str
) -> None:
    peft_model = attach(load_base(tiny_bert, CLASSES), LORA, CLASSES)
    before = read_adapter(peft_model)
    adapter = random_adapter(before, seed=1)
    factors, full = dict(adapter.factors), dict(adapter.full)
    name = "bert.pooler.dense"
    one = factors[name]
    if fault == "missing":
        del factors[name]
    elif fault == "unknown":
        factors["bert.other"] = one
    elif fault == "rank":
        factors[name] = one.padded(5)
    elif fault == "dtype":
        factors[name] = Factors(one.b.double(), one.a.double(), one.scale)
    elif fault == "scale":
        factors[name] = one.with_scale(5.0)
    elif fault == "no head":
        full = {}
    else:
        full["classifier.weight"] = full["classifier.weight"][:2]
    with pytest.raises(AdapterError, match=message):
        write_adapter(peft_model, Adapter(factors, full))
    assert same_bytes(read_adapter(peft_model), before)


# Folding: T1 (square), T2 (not square), T3 (Conv1D), T4 (alpha != rank, rsLoRA), with T5's weights

TARGETS = {
    "T1-square": ("tiny_causal", ("q_proj", "o_proj")),
    "T2-grouped-queries": ("tiny_causal", ("k_proj", "v_proj")),
    "T2-not-square": ("tiny_causal", ("up_proj", "down_proj")),
    "T3-conv1d": ("tiny_gpt2", ("c_attn", "c_fc", "mlp.c_proj", "attn.c_proj")),
    "T2-encoder": ("tiny_bert", "all-linear"),
}
SCALES = {
    "alpha=r": LoraSection(rank=4, alpha=4.0),
    "alpha!=r": LoraSection(rank=4, alpha=10.0),
    "rslora": LoraSection(rank=4, alpha=10.0, rslora=True),
}


def aggregated(
    peft_model: object, seeds: tuple[int, ...], weights: tuple[float, ...]
) -> tuple[dict[str, torch.Tensor], Adapter, dict[str, Residual]]:
    """Nodes' updates of a model: the dense effective weights due, mean factors, and residuals."""
    nodes = [random_adapter(read_adapter(peft_model), seed) for seed in seeds]
    due, means, residuals = {}, {}, {}
    for name, layer in lora_layers(peft_model).items():
        own = [node.factors[name] for node in nodes]
        weight = layer.get_base_layer().weight.detach().double()
        due[name] = (weight.T if layer.fan_in_fan_out else weight) + sum(
            share / sum(weights) * one.matrix() for share, one in zip(weights, own, strict=True)
        )
        means[name], residuals[name] = exact_mean(own, weights)
    return due, Adapter(means, nodes[0].full), residuals


def worst(peft_model: object, due: dict[str, torch.Tensor]) -> float:
    """The largest relative distance of a layer's effective weight from the one due."""
    layers = lora_layers(peft_model)
    return max(float((dense(layers[n]) - due[n]).norm() / due[n].norm()) for n in due)


@pytest.mark.parametrize("lora", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize(("fixture", "targets"), TARGETS.values(), ids=TARGETS)
def test_folded_weight_plus_mean_factors_is_the_mean_of_the_nodes(
    fixture: str,
    targets: tuple[str, ...],
    lora: LoraSection,
    request: pytest.FixtureRequest,
) -> None:
    model, folder = MODELS[fixture], request.getfixturevalue(fixture)
    lora = lora.model_copy(update={"targets": targets})
    peft_model = attach(load_base(folder, model), lora, model)
    due, mean, residuals = aggregated(peft_model, seeds=(1, 2, 3), weights=(1.0, 5.0, 2.5))
    write_adapter(peft_model, mean)
    assert worst(peft_model, due) > 1e-2  # without the fold
    fold_residuals(peft_model, residuals)
    assert worst(peft_model, due) <= 1e-6


@pytest.mark.parametrize("fixture", ["tiny_causal", "tiny_gpt2"])
@pytest.mark.parametrize("mutation", ["transposed", "scale dropped", "left out", "wrong sign"])
def test_a_wrong_fold_is_seen(fixture: str, mutation: str, request: pytest.FixtureRequest) -> None:
    targets = {"tiny_causal": ("q_proj", "o_proj"), "tiny_gpt2": ("attn.c_proj",)}[fixture]
    lora = LORA.model_copy(update={"targets": targets})
    peft_model = attach(load_base(request.getfixturevalue(fixture), LANGUAGE), lora, LANGUAGE)
    due, mean, residuals = aggregated(peft_model, seeds=(1, 2, 3), weights=(1.0, 5.0, 2.5))
    wrong = {
        "transposed": lambda r: Residual(r.v.T.contiguous(), r.u.T.contiguous()),
        "scale dropped": lambda r: Residual(r.u / LORA.scale, r.v),
        "left out": lambda r: Residual(r.u * 0, r.v),
        "wrong sign": lambda r: Residual(-r.u, r.v),
    }[mutation]
    write_adapter(peft_model, mean)
    fold_residuals(peft_model, {name: wrong(residual) for name, residual in residuals.items()})
    assert worst(peft_model, due) > 1e-2


def test_a_dense_residual_folds_as_its_factors(tiny_gpt2: Path) -> None:
    models = [attach(load_base(tiny_gpt2, LANGUAGE), LORA, LANGUAGE) for _ in range(2)]
    _, _, residuals = aggregated(models[0], seeds=(1, 2), weights=(1.0, 2.0))
    fold_residuals(models[0], residuals)
    fold_residuals(models[1], {n: Residual(r.matrix().float()) for n, r in residuals.items()})
    for one, other in zip(*(lora_layers(m).values() for m in models), strict=True):
        torch.testing.assert_close(one.get_base_layer().weight, other.get_base_layer().weight)


@settings(max_examples=10, deadline=None)
@given(rounds=st.integers(1, 4), seed=st.integers(0, 2**31 - 1))
def test_folds_of_several_rounds_add_up(tiny_causal: Path, rounds: int, seed: int) -> None:
    peft_model = attach(load_base(tiny_causal, LANGUAGE), LORA, LANGUAGE)
    layer = lora_layers(peft_model)["model.layers.0.mlp.down_proj"]
    due = layer.get_base_layer().weight.detach().double()
    for number in range(rounds):
        _, _, residuals = aggregated(peft_model, (seed, seed + number + 1), (1.0, 2.0))
        due = due + residuals["model.layers.0.mlp.down_proj"].matrix()
        fold_residuals(peft_model, residuals)
    weight = layer.get_base_layer().weight.double()
    assert (weight - due).norm() <= 1e-6 * due.norm()


@pytest.mark.parametrize(
    ("name", "residual", "message"),
    [
        ("model.layers.9.q_proj", Residual(torch.ones(48, 48)), "no target of the adapter"),
        ("model.layers.1.self_attn.k_proj", Residual(torch.ones(48, 24)), r"expected \(24, 48\)"),
    ],
)
def test_a_residual_that_does_not_fit_is_refused_and_changes_nothing(
    tiny_causal: Path, name: str, residual: Residual, message: str
) -> None:
    peft_model = attach(load_base(tiny_causal, LANGUAGE), LORA, LANGUAGE)
    before = {n: p.detach().clone() for n, p in peft_model.named_parameters()}
    good = {"model.layers.0.self_attn.q_proj": Residual(torch.ones(48, 48))}
    with pytest.raises(AdapterError, match=message):
        fold_residuals(peft_model, good | {name: residual})
    assert all(torch.equal(p, before[n]) for n, p in peft_model.named_parameters())


def test_half_precision_weights_take_no_fold(tiny_causal: Path) -> None:
    peft_model = attach(load_base(tiny_causal, LANGUAGE).bfloat16(), LORA, LANGUAGE)
    with pytest.raises(AdapterError, match="bfloat16"):
        fold_residuals(
            peft_model, {"model.layers.0.self_attn.q_proj": Residual(torch.ones(48, 48))}
        )

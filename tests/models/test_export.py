import json
from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM, PeftModel
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from fedlora.adapters import Adapter, AdapterError, Factors, Residual, RunError
from fedlora.models.export import export_adapter, export_merged
from fedlora.models.loading import empty_base, load_base, load_tokenizer
from fedlora.models.lora import attach, fold_residuals, initial_adapter, write_adapter
from fedlora.models.source import resolve
from fedlora.recipes.schema import LoraSection, ModelSection

LORA = LoraSection(rank=4, alpha=10.0, rslora=True)
LABELS = ("yes", "no", "maybe")
MODELS = {
    "tiny_causal": (AutoModelForCausalLM, {}),
    "tiny_gpt2": (AutoModelForCausalLM, {}),
    "tiny_bert": (AutoModelForSequenceClassification, {"num_labels": len(LABELS)}),
}
X = torch.arange(3, 35).view(2, -1)
Residuals = list[dict[str, Residual]]


def section(folder: Path, source: str | None = None) -> ModelSection:
    if "bert" in folder.name:
        task = {"task": "sequence-classification", "labels": LABELS}
        return ModelSection(source=source or str(folder), **task)
    return ModelSection(source=source or str(folder))


def head(folder: Path, model: ModelSection, lora: LoraSection) -> tuple[Adapter, Residuals]:
    """A random adapter and residuals, of which the last round's lack modules or are dense."""
    generator = torch.Generator().manual_seed(7)

    def draw(*shape: int) -> torch.Tensor:
        return torch.empty(shape).normal_(0, 0.15, generator=generator)

    start = initial_adapter(attach(empty_base(folder, model), lora, model), seed=1)
    factors = {n: Factors(draw(*f.b.shape), f.a, f.scale) for n, f in start.factors.items()}
    residuals: Residuals = []
    for number in range(3):
        names = list(factors)[number:]
        pairs = [(draw(factors[n].shape[0], 5), draw(5, factors[n].shape[1])) for n in names]
        residuals.append({n: Residual(u, v) for n, (u, v) in zip(names, pairs, strict=True)})
    for name in list(residuals[-1])[::4]:
        residuals[-1][name] = Residual(residuals[-1][name].matrix().float())
    full = {name: draw(*tensor.shape) for name, tensor in start.full.items()}
    return Adapter(factors, full), residuals


def logits(model: torch.nn.Module, x: torch.Tensor = X) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(x).logits


def of_head(
    folder: Path,
    model: ModelSection,
    lora: LoraSection,
    adapter: Adapter,
    residuals: Residuals,
    x: torch.Tensor = X,
) -> torch.Tensor:
    """What the head answers: base, folds and adapter."""
    live = attach(load_base(folder, model), lora, model)
    for of_round in residuals:
        fold_residuals(live, of_round)
    write_adapter(live, adapter)
    return logits(live, x)


def error(made: torch.Tensor, expected: torch.Tensor) -> float:
    return float((made - expected).norm() / expected.norm())


@pytest.fixture(params=list(MODELS))
def folder(request: pytest.FixtureRequest) -> Path:
    return Path(request.getfixturevalue(request.param))


def opened(folder: Path, path: Path) -> torch.nn.Module:
    """A folder as plain transformers opens it; the base's has no labels of ours."""
    kind, options = MODELS[folder.name.replace("-", "_").replace("llama", "causal")]
    return kind.from_pretrained(path, **(options if path == folder else {}))


def only_safe_files(folder: Path) -> bool:
    return {path.suffix for path in folder.iterdir()} <= {".json", ".safetensors", ".jinja"}


def test_a_merged_model_answers_as_the_head(folder: Path, tmp_path: Path) -> None:
    model = section(folder)
    adapter, residuals = head(folder, model, LORA)
    export_merged(folder, model, adapter, residuals, LORA, tmp_path / "out")
    merged = opened(folder, tmp_path / "out")
    expected = of_head(folder, model, LORA, adapter, residuals)
    assert error(logits(merged), expected) <= 1e-5
    assert error(logits(opened(folder, folder)), expected) > 1e-1
    assert only_safe_files(tmp_path / "out")
    assert not [name for name in merged.state_dict() if "lora" in name]


def test_one_peft_adapter_on_the_untouched_base_answers_as_the_head(
    folder: Path, tmp_path: Path
) -> None:
    model = section(folder)
    adapter, residuals = head(folder, model, LORA)
    export_adapter(folder, model, adapter, residuals, LORA, tmp_path / "out")
    expected = of_head(folder, model, LORA, adapter, residuals)
    tuned = PeftModel.from_pretrained(opened(folder, folder), tmp_path / "out")
    assert error(logits(tuned), expected) <= 1e-5
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_a_decoder_that_classifies_exports_too(tiny_causal: Path, tmp_path: Path) -> None:
    model = ModelSection(source="x", task="sequence-classification", labels=LABELS)
    parts = head(tiny_causal, model, LORA)
    expected = of_head(tiny_causal, model, LORA, *parts)
    export_merged(tiny_causal, model, *parts, LORA, tmp_path / "merged")
    export_adapter(tiny_causal, model, *parts, LORA, tmp_path / "adapter")
    merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged")
    base = AutoModelForSequenceClassification.from_pretrained(tiny_causal, num_labels=3)
    assert error(logits(merged), expected) <= 1e-5
    assert error(logits(PeftModel.from_pretrained(base, tmp_path / "adapter")), expected) <= 1e-5


def test_a_merged_model_keeps_tied_embeddings_tokenizer_and_generation(
    tiny_causal: Path, tmp_path: Path
) -> None:
    model = section(tiny_causal)
    adapter, residuals = head(tiny_causal, model, LORA)
    export_merged(tiny_causal, model, adapter, residuals, LORA, tmp_path / "out")
    assert "lm_head.weight" not in load_file(tmp_path / "out" / "model.safetensors")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert merged.lm_head.weight is merged.model.embed_tokens.weight
    assert merged.generation_config.eos_token_id == 2
    tokenizers = [AutoTokenizer.from_pretrained(path) for path in (tiny_causal, tmp_path / "out")]
    assert tokenizers[0].chat_template == tokenizers[1].chat_template
    assert tokenizers[0].backend_tokenizer.to_str() == tokenizers[1].backend_tokenizer.to_str()


def test_a_merged_classifier_knows_its_labels(tiny_bert: Path, tmp_path: Path) -> None:
    model = section(tiny_bert)
    export_merged(tiny_bert, model, *head(tiny_bert, model, LORA), LORA, tmp_path / "out")
    config = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").config
    assert config.id2label == dict(enumerate(LABELS))


def test_exported_ranks_are_those_of_the_total_update(tiny_causal: Path, tmp_path: Path) -> None:
    model = section(tiny_causal)
    adapter, residuals = head(tiny_causal, model, LORA)
    name = "model.layers.1.self_attn.k_proj"
    for of_round in residuals:
        of_round.pop(name, None)
    u, v = torch.ones(24, 5), torch.ones(5, 48)
    residuals[0][name], residuals[1][name] = Residual(u, v), Residual(-u, v)  # they cancel
    export_adapter(tiny_causal, model, adapter, residuals, LORA, tmp_path / "out")
    state = load_file(tmp_path / "out" / "adapter_model.safetensors")
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    ranks = {
        key.removeprefix("base_model.model.").removesuffix(".lora_A.weight"): tensor.shape[0]
        for key, tensor in state.items()
        if "lora_A" in key
    }
    assert ranks[name] == LORA.rank
    assert ranks["model.layers.0.self_attn.q_proj"] == 4 + 2 * 5 + 5
    assert {name: config["rank_pattern"].get(name, config["r"]) for name in ranks} == ranks
    assert config["alpha_pattern"] == config["rank_pattern"]
    assert config["lora_alpha"] == config["r"]


def test_an_adapter_without_residuals_stays_small(tiny_causal: Path, tmp_path: Path) -> None:
    model = section(tiny_causal)
    adapter, _ = head(tiny_causal, model, LORA)
    export_adapter(tiny_causal, model, adapter, [], LORA, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["r"] == LORA.rank
    assert config["rank_pattern"] == {}


def test_an_update_of_zero_is_an_adapter_too(tiny_causal: Path, tmp_path: Path) -> None:
    model = section(tiny_causal)
    start = initial_adapter(attach(empty_base(tiny_causal, model), LORA, model), seed=1)
    export_adapter(tiny_causal, model, start, [], LORA, tmp_path / "out")
    base = opened(tiny_causal, tiny_causal)
    expected = logits(base)
    assert torch.equal(logits(PeftModel.from_pretrained(base, tmp_path / "out")), expected)


def test_the_adapter_names_its_base(tiny_causal: Path, tmp_path: Path) -> None:
    parts = head(tiny_causal, section(tiny_causal), LORA)
    for source, expected in {
        str(tiny_causal): str(tiny_causal),
        "some-lab/some-model": "some-lab/some-model",
    }.items():
        out = tmp_path / Path(source).name
        export_adapter(tiny_causal, section(tiny_causal, source), *parts, LORA, out)
        config = json.loads((out / "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == expected
    tuned = AutoPeftModelForCausalLM.from_pretrained(tmp_path / tiny_causal.name)
    expected_logits = of_head(tiny_causal, section(tiny_causal), LORA, *parts)
    assert error(logits(tuned), expected_logits) <= 1e-5


@pytest.mark.parametrize("export", [export_adapter, export_merged])
def test_the_same_head_gives_the_same_bytes(
    tiny_causal: Path, tmp_path: Path, export: object
) -> None:
    model = section(tiny_causal)
    parts = head(tiny_causal, model, LORA)
    for name in "ab":
        export(tiny_causal, model, *parts, LORA, tmp_path / name)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


@pytest.mark.parametrize("export", [export_adapter, export_merged])
def test_a_destination_in_use_is_refused_and_left_alone(
    tiny_causal: Path, tmp_path: Path, export: object
) -> None:
    model = section(tiny_causal)
    parts = head(tiny_causal, model, LORA)
    (tmp_path / "file").write_text("mine")
    for destination in (tmp_path, tmp_path / "file"):
        with pytest.raises(RunError, match="exists already"):
            export(tiny_causal, model, *parts, LORA, destination)
    with pytest.raises(RunError, match="cannot write"):
        export(tiny_causal, model, *parts, LORA, tmp_path / "file" / "below")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("export", [export_adapter, export_merged])
def test_an_empty_destination_and_missing_parents_are_fine(
    tiny_causal: Path, tmp_path: Path, export: object
) -> None:
    model = section(tiny_causal)
    parts = head(tiny_causal, model, LORA)
    (tmp_path / "empty").mkdir()
    for destination in (tmp_path / "empty", tmp_path / "new" / "deep"):
        export(tiny_causal, model, *parts, LORA, destination)
        assert list(destination.glob("*.safetensors"))
        assert [path.name for path in destination.parent.iterdir() if path.name[0] == "."] == []


@pytest.mark.parametrize("export", [export_adapter, export_merged])
def test_a_head_that_does_not_fit_leaves_nothing(
    tiny_causal: Path, tmp_path: Path, export: object
) -> None:
    model = section(tiny_causal)
    adapter, residuals = head(tiny_causal, model, LORA)
    foreign = [*residuals, {"model.layers.7.mlp.up_proj": Residual(torch.ones(80, 48))}]
    for parts in ((Adapter({}), residuals), (adapter, foreign)):
        with pytest.raises(AdapterError, match=r"model\.layers"):
            export(tiny_causal, model, *parts, LORA, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_both_exports_of_smollm2(tmp_path: Path) -> None:
    model, lora = ModelSection(source="smollm2-135m"), LoraSection()
    folder = resolve(model.source)
    generator = torch.Generator().manual_seed(7)
    start = initial_adapter(attach(empty_base(folder, model), lora, model), seed=1)

    def draw(*shape: int) -> torch.Tensor:
        return torch.empty(shape).normal_(0, 0.02, generator=generator)

    adapter = Adapter(
        {n: Factors(draw(*f.b.shape), f.a, f.scale) for n, f in start.factors.items()}
    )
    residuals = [
        {n: Residual(draw(f.shape[0], 16), draw(16, f.shape[1])) for n, f in start.factors.items()}
        for _ in range(2)
    ]
    # A sentence: on tokens in no order, the rounding of float32 alone moves logits by 5e-4.
    tokenizers = [load_tokenizer(folder)]
    sentence = "The ferry to the island leaves at seven in the morning."
    x = torch.tensor([tokenizers[0](sentence)["input_ids"]])
    expected = of_head(folder, model, lora, adapter, residuals, x)
    export_merged(folder, model, adapter, residuals, lora, tmp_path / "merged")
    export_adapter(folder, model, adapter, residuals, lora, tmp_path / "adapter")
    base = AutoModelForCausalLM.from_pretrained(folder)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    tuned = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter")
    assert error(logits(base, x), expected) > 1e-2
    assert error(logits(merged, x), expected) <= 1e-5
    assert error(logits(tuned, x), expected) <= 1e-5
    tokenizers.append(AutoTokenizer.from_pretrained(tmp_path / "merged"))
    assert tokenizers[0].chat_template == tokenizers[1].chat_template is not None

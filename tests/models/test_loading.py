import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
)

from fedlora.adapters import ModelError
from fedlora.models.loading import empty_base, head_modules, load_base, load_tokenizer
from fedlora.recipes.schema import ModelSection

WEIGHTS = "model.safetensors"
LANGUAGE = ModelSection(source="x")
CLASSES = ModelSection(source="x", task="sequence-classification", labels=("yes", "no", "maybe"))
X = torch.arange(3, 20)[None]


def drop(folder: Path, part: str) -> None:
    """Remove the tensors whose name contains `part`."""
    state = load_file(folder / WEIGHTS)
    kept = {name: tensor for name, tensor in state.items() if part not in name}
    assert len(kept) < len(state)
    save_file(kept, folder / WEIGHTS, metadata={"format": "pt"})


@pytest.fixture
def causal(tiny_causal: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_causal, tmp_path / "causal"))


@pytest.fixture
def bert(tiny_bert: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bert, tmp_path / "bert"))


@pytest.mark.parametrize("fixture", ["tiny_causal", "tiny_gpt2"])
def test_a_language_model_is_what_transformers_loads(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(fixture)
    base = load_base(folder, LANGUAGE)
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(folder)(X).logits
        assert torch.equal(base(X).logits, expected)
    assert not base.training
    assert {parameter.dtype for parameter in base.parameters()} == {torch.float32}
    assert base.get_output_embeddings().weight is base.get_input_embeddings().weight


def test_half_precision_weights_are_opened_in_float32(causal: Path) -> None:
    state = {name: tensor.bfloat16() for name, tensor in load_file(causal / WEIGHTS).items()}
    save_file(state, causal / WEIGHTS, metadata={"format": "pt"})
    base = load_base(causal, LANGUAGE)
    assert {parameter.dtype for parameter in base.parameters()} == {torch.float32}


def test_a_classifier_has_a_new_head_with_the_labels(tiny_bert: Path) -> None:
    base = load_base(tiny_bert, CLASSES)
    assert base.classifier.out_features == 3
    assert base.config.id2label == {0: "yes", 1: "no", 2: "maybe"}
    assert base.config.label2id == {"yes": 0, "no": 1, "maybe": 2}
    assert head_modules(base, CLASSES) == ("classifier",)


def test_a_decoder_classifies_batches(tiny_causal: Path) -> None:
    base = load_base(tiny_causal, CLASSES)
    assert head_modules(base, CLASSES) == ("score",)
    assert base(X.expand(2, -1)).logits.shape == (2, 3)


def test_a_decoder_without_a_pad_token_gets_the_tokenizers(causal: Path) -> None:
    config = json.loads((causal / "config.json").read_text())
    (causal / "config.json").write_text(json.dumps(config | {"pad_token_id": None}))
    base = load_base(causal, CLASSES)
    assert base.config.pad_token_id == 0
    assert base(X.expand(2, -1)).logits.shape == (2, 3)


def test_a_new_head_is_the_same_on_every_node_and_costs_no_global_randomness(
    tiny_bert: Path,
) -> None:
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    first = load_base(tiny_bert, CLASSES)
    assert torch.equal(torch.rand(3), expected)
    second = load_base(tiny_bert, CLASSES)
    assert torch.equal(first.classifier.weight, second.classifier.weight)


def test_a_head_of_other_labels_is_replaced(bert: Path) -> None:
    base = AutoModelForSequenceClassification.from_pretrained(bert, num_labels=5)
    base.save_pretrained(bert)
    assert load_base(bert, CLASSES).classifier.out_features == 3


def test_a_missing_pooler_is_refused_by_name(bert: Path) -> None:
    drop(bert, "pooler")
    with pytest.raises(ModelError, match=r"pooler\.dense\.bias, bert\.pooler\.dense\.weight"):
        load_base(bert, CLASSES)


def test_a_missing_layer_is_refused_by_name(causal: Path) -> None:
    drop(causal, "layers.1.mlp.up_proj")
    with pytest.raises(ModelError, match=r"missing .*layers\.1\.mlp\.up_proj\.weight"):
        load_base(causal, LANGUAGE)


def test_a_tensor_of_another_shape_is_refused_by_name(causal: Path) -> None:
    state = load_file(causal / WEIGHTS) | {"model.norm.weight": torch.ones(47)}
    save_file(state, causal / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"another shape are model\.norm\.weight"):
        load_base(causal, LANGUAGE)


def test_an_encoder_is_no_language_model(tiny_bert: Path) -> None:
    with pytest.raises(ModelError, match=r"missing .*cls\.predictions"):
        load_base(tiny_bert, LANGUAGE)


def test_the_code_of_a_model_folder_is_never_run(causal: Path) -> None:
    (causal / "own.py").write_text("from pathlib import Path\nPath(__file__ + '.ran').touch()\n")
    config = json.loads((causal / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}}
    (causal / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"cannot read .*config\.json"):
        load_base(causal, LANGUAGE)
    assert not (causal / "own.py.ran").exists()


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"model_type": "nothing"}'])
@pytest.mark.parametrize("load", [load_base, empty_base])
def test_a_malformed_configuration_is_named(causal: Path, load: object, content: str) -> None:
    (causal / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        load(causal, LANGUAGE)


def test_malformed_weights_are_an_error(causal: Path) -> None:
    (causal / WEIGHTS).write_bytes(b"\0" * 20)
    with pytest.raises(ModelError, match="cannot load"):
        load_base(causal, LANGUAGE)


@pytest.mark.parametrize(
    ("fixture", "model"),
    [("tiny_causal", LANGUAGE), ("tiny_gpt2", LANGUAGE), ("tiny_bert", CLASSES)],
)
def test_an_empty_base_has_the_shapes_and_no_weights(
    fixture: str, model: ModelSection, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(fixture)
    empty, real = empty_base(folder, model), load_base(folder, model)
    shapes = {name: parameter.shape for name, parameter in real.named_parameters()}
    assert {name: parameter.shape for name, parameter in empty.named_parameters()} == shapes
    assert all(parameter.is_meta for parameter in empty.parameters())


def test_a_tokenizer_that_can_pad_is_left_alone(tiny_causal: Path) -> None:
    assert load_tokenizer(tiny_causal).pad_token == "<pad>"


@pytest.mark.parametrize(
    ("added", "expected"), [([], "<eos>"), (["<|right_pad|>", "<|other_pad|>"], "<|right_pad|>")]
)
def test_a_tokenizer_without_pad_token_borrows_one(
    tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path, added: list[str], expected: str
) -> None:
    text = tiny_tokenizer.backend_tokenizer.to_str().replace("<pad>", "<void>")
    (tmp_path / "tokenizer.json").write_text(text)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), bos_token="<bos>", eos_token="<eos>"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": added})
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.pad_token == expected
    assert len(loaded) == len(tokenizer)


def test_a_folder_without_tokenizer_is_an_error(causal: Path) -> None:
    for file in causal.glob("token*"):
        file.unlink()
    with pytest.raises(ModelError, match="no usable tokenizer"):
        load_tokenizer(causal)


def test_loading_is_silent(tiny_bert: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_base(tiny_bert, CLASSES)
    load_tokenizer(tiny_bert)
    assert capfd.readouterr() == ("", "")

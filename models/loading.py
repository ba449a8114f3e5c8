"""Opening a base model: real, in float32 for exact folds, or as shapes alone on the meta device."""

from pathlib import Path

import torch
from accelerate import init_empty_weights
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from fedlora.adapters import ModelError
from fedlora.recipes.schema import ModelSection

from .quiet import quiet

CLASSES = {
    "causal-lm": AutoModelForCausalLM,
    "sequence-classification": AutoModelForSequenceClassification,
}
LOCAL = {"local_files_only": True, "trust_remote_code": False}


def load_base(
    folder: Path, model: ModelSection, device: str | torch.device = "cpu"
) -> PreTrainedModel:
    """Open the frozen base: float32, in evaluation mode.

    Args:
        folder: as `source.resolve` returns it.
        model: the task, and the labels of a classifier.
        device: where the weights shall lie.

    Raises:
        ModelError: if the folder does not hold such a model, or lacks weights outside the task's
            head: at random, they would differ from node to node.
    """
    config = _config(folder, model)
    try:
        with quiet(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)  # a new head draws from the global generator
            base, report = CLASSES[model.task].from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **LOCAL,
            )
    except Exception as error:  # transformers raises any type for a wrong file or architecture
        raise ModelError(f"cannot load {folder} for {model.task}: {error}") from error
    absent = set(report["missing_keys"]) | {key for key, *_ in report["mismatched_keys"]}
    head = tuple(f"{name}." for name in head_modules(base, model))
    foreign = sorted(name for name in absent if not name.startswith(head))
    if foreign:
        raise ModelError(
            f"the weights in {folder} do not fit {type(base).__name__}: missing or of another "
            f"shape are {', '.join(foreign)}; use a model that was trained with them"
        )
    opened: PreTrainedModel = base.to(device).eval()
    return opened


def empty_base(folder: Path, model: ModelSection) -> PreTrainedModel:
    """The base on the meta device: names and shapes without weights, in no time and no memory.

    Raises:
        ModelError: if the folder does not describe such a model.
    """
    config = _config(folder, model)
    try:
        with quiet(), torch.device("meta"):
            model_class = CLASSES[model.task]
            base: PreTrainedModel = model_class.from_config(config, dtype=torch.float32).eval()
    except Exception as error:  # as above
        raise ModelError(f"cannot build {folder} for {model.task}: {error}") from error
    return base


def weightless(folder: Path, model: ModelSection) -> PreTrainedModel:
    """The base with its parameters on the meta device, and the buffers that no file holds.

    Raises:
        ModelError: if the folder does not describe such a model.
    """
    config = _config(folder, model)
    try:
        with quiet(), init_empty_weights(include_buffers=False):
            base: PreTrainedModel = (
                CLASSES[model.task].from_config(config, dtype=torch.float32).eval()
            )
    except Exception as error:  # as above
        raise ModelError(f"cannot build {folder} for {model.task}: {error}") from error
    return base


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Open the tokenizer, and see that it can pad.

    Where no pad token is declared, the first special token named so, or else the end token, lends
    its id. Labels must therefore be masked by position, never by token.

    Raises:
        ModelError: if there is no tokenizer, or nothing to pad with.
    """
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, **LOCAL)
    except Exception as error:  # as above
        raise ModelError(f"no usable tokenizer in {folder}: {error}") from error
    if tokenizer.pad_token is None:
        added = [token.content for token in tokenizer.added_tokens_decoder.values()]
        spare = [token for token in added if "pad" in token.lower()]
        tokenizer.pad_token = next(iter(spare), tokenizer.eos_token)
    if tokenizer.pad_token is None:
        raise ModelError(f"the tokenizer in {folder} has neither a pad token nor an end token")
    return tokenizer


def head_modules(base: PreTrainedModel, model: ModelSection) -> tuple[str, ...]:
    """Names of a classifier's own modules, e.g. `("classifier",)`: all beside the encoder.

    They start at random and are trained in full. A language model has none: its output layer is
    pretrained.
    """
    if model.task == "causal-lm":
        return ()
    return tuple(
        name
        for name, child in base.named_children()
        if name != base.base_model_prefix and any(True for _ in child.parameters())
    )


def _config(folder: Path, model: ModelSection) -> PretrainedConfig:
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, **LOCAL)
    except Exception as error:  # as above
        raise ModelError(f"cannot read {folder / 'config.json'}: {error}") from error
    if model.task == "sequence-classification":
        config.id2label = dict(enumerate(model.labels))
        config.label2id = {label: index for index, label in enumerate(model.labels)}
        config.problem_type = "single_label_classification"
        if config.pad_token_id is None:  # a decoder classifies at its last token that is no pad
            config.pad_token_id = load_tokenizer(folder).pad_token_id
    return config

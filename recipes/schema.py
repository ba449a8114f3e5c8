"""The recipe: everything that describes a run, typed and checked.

A recipe is a TOML file. The sections `model`, `lora`, `train` and `data` are the *task*: the part
that the coordinator sends to the nodes. The rest concerns the coordinator (`federation`,
`evaluate`) or, in a simulation, the nodes that are played (`node`). Where models differ, `public`
is the text that all may see; the task says how it is learned, never where it lies.
"""

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from .sizes import Size

T = TypeVar("T", "Task", "Recipe")
Precision = Literal["fp32", "int8", "int4", "int3", "int2"]
Share = Annotated[float, Field(gt=0, le=1)]


class Section(BaseModel):
    """A part of a recipe: immutable, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelSection(Section):
    """Which base model, and what it is for."""

    source: str = Field(min_length=1, description="bundled alias, hub name, folder or GGUF file")
    task: Literal["causal-lm", "sequence-classification"] = "causal-lm"
    labels: tuple[str, ...] = Field((), description="class names, for sequence-classification")

    @model_validator(mode="after")
    def _labels_fit_the_task(self) -> "ModelSection":
        classifies = self.task == "sequence-classification"
        if classifies and len(set(self.labels)) < max(2, len(self.labels)):
            raise ValueError("sequence-classification needs at least two different `labels`")
        if self.labels and not classifies:
            raise ValueError('`labels` need task = "sequence-classification"')
        return self


class LoraSection(Section):
    """The adapter: LoRA factors of `rank` with scale alpha/rank (alpha/sqrt(rank) for rsLoRA)."""

    rank: PositiveInt = 8
    alpha: float = Field(16.0, gt=0)
    rslora: bool = False
    dropout: float = Field(0.0, ge=0, lt=1)
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    kind: Literal["plain", "pooled"] = Field(
        "plain", description="pooled: A sees the mean of each group of inputs (QA-LoRA)"
    )
    group: PositiveInt = Field(64, description="inputs in a group, for kind pooled")

    @property
    def pooling(self) -> int:
        """Inputs that A sees as one."""
        return self.group if self.kind == "pooled" else 1

    @property
    def scale(self) -> float:
        """The factor s in W0 + s B A."""
        return self.alpha / (self.rank**0.5 if self.rslora else self.rank)


class QuantizeSection(Section):
    """How nodes without room for float32 hold the frozen base, and which adapter trains on it.

    With `shared` adapters all nodes train the same factors, each on the base as it holds it. With
    adapters `per-width` every module has one for each of `widths`, and the coordinator draws for
    each node and round which width a module has (LLM-QFA).
    """

    method: Literal["rtn", "hqq", "gptq"] = Field("hqq", description="how weights are rounded")
    group: PositiveInt = Field(64, description="weights that share a scale")
    widths: tuple[Literal[8, 4, 3, 2], ...] = Field((8, 4), min_length=1, description="in bits")
    adapters: Literal["shared", "per-width"] = "shared"
    schedule: Literal["balanced", "uniform"] = Field("balanced", description="of the widths")
    period: PositiveInt | None = Field(
        None, multiple_of=2, description="rounds from widest to narrowest and back; default: all"
    )
    side_rank: int = Field(16, ge=0, description="of the residual beside the weight; 0: all of it")

    @model_validator(mode="after")
    def _one_base_for_all_widths(self) -> "QuantizeSection":
        if self.per_width and self.method == "gptq":
            raise ValueError(
                'method = "gptq" fits each node\'s weights to its own text; adapters per width '
                'need the same weights everywhere: take "hqq" or "rtn"'
            )
        return self

    def wave(self, rounds: int) -> int:
        """The period of the schedule in a run of so many rounds: even, so that both ends come."""
        return self.period or rounds + rounds % 2

    @property
    def per_width(self) -> bool:
        """Whether each width has an adapter of its own."""
        return self.adapters == "per-width"


class TrainSection(Section):
    """A node's training in one round. The learning-rate schedule runs over all rounds."""

    steps: PositiveInt = Field(20, description="optimizer steps per node and round")
    batch_size: PositiveInt = 8
    accumulate: PositiveInt = Field(1, description="batches per optimizer step")
    learning_rate: float = Field(2e-4, gt=0)
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    warmup: float = Field(0.03, ge=0, lt=1, description="share of all steps of the run")
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    max_length: int = Field(512, ge=8, description="tokens; longer examples are cut and counted")
    precision: Literal["fp32", "bf16"] = Field("fp32", description="bf16 is autocast over fp32")
    threads: PositiveInt | None = Field(None, description="default: cores / nodes on this machine")


class DataSection(Section):
    """How examples are read. `columns` maps our field names to those in the files."""

    format: Literal["instruction", "chat", "text", "classification"] = "instruction"
    heldout: float = Field(0.1, ge=0, lt=1, description="share of a node's examples for evaluation")
    columns: dict[str, str] = Field(default_factory=dict)


class FederationSection(Section):
    """Rounds, who takes part, and how long anyone is waited for."""

    rounds: PositiveInt = 3
    strategy: Literal["fedex-lora", "fedit", "fedmkt"] = "fedex-lora"
    min_nodes: PositiveInt = Field(2, description="nodes to wait for, and quorum of a round")
    sample: Share = Field(1.0, description="share of the nodes that train in a round")
    wait: float = Field(300.0, gt=0, description="seconds to wait for min_nodes to come")
    deadline: float = Field(1800.0, gt=0, description="seconds that a round may take")
    retries: int = Field(2, ge=0, description="times that a round without quorum is tried again")
    max_norm_ratio: float = Field(
        10.0, gt=1, description="times the median of its peers that an update may move the model"
    )
    missing_modules: Literal["refuse", "zero"] = "refuse"


class StudySection(Section):
    """How public examples are learned in a cross-model run."""

    examples: PositiveInt = Field(64, description="public examples of a round")
    top_k: PositiveInt = Field(32, description="guesses that are sent for each label")
    kd: Share = Field(0.1, description="share of the loss that follows the best source's guesses")
    steps: PositiveInt = Field(10, description="optimizer steps on public text per node and round")


class PublicSection(StudySection):
    """The text that all parties of a cross-model run may see, in the format of `data`."""

    data: str
    coordinator_steps: int = Field(10, ge=0, description="0: its own model stays as it is")

    @property
    def study(self) -> StudySection:
        """The part that nodes receive."""
        return StudySection(**{name: getattr(self, name) for name in StudySection.model_fields})


class EvaluateSection(Section):
    """Evaluation by the coordinator on text of its own; nodes always evaluate on theirs."""

    data: str | None = None
    batch_size: PositiveInt = 8


class NodeSection(Section):
    """One node of a simulation: its private data, and questions to put to the tuned model."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    data: str
    model: str | None = Field(None, description="own model, in a cross-model run")
    heldout: str | None = Field(None, description="own evaluation file instead of a held-out share")
    questions: str | None = None
    precision: Precision | None = Field(None, description="of the frozen base; default: fp32")
    memory: Size | None = Field(None, description="widths are chosen to fit, e.g. 900MB")

    @model_validator(mode="after")
    def _one_of_both(self) -> "NodeSection":
        if self.precision and self.memory:
            raise ValueError("`precision` and `memory` both say how the base is held: give one")
        return self


class Task(Section):
    """What the coordinator tells a node to do."""

    name: str
    seed: int = Field(0, ge=0, lt=2**31)
    rounds: PositiveInt
    model: ModelSection
    lora: LoraSection = LoraSection()
    quantize: QuantizeSection = QuantizeSection()
    train: TrainSection = TrainSection()
    data: DataSection = DataSection()
    public: StudySection | None = Field(None, description="given in a cross-model run alone")

    @model_validator(mode="after")
    def _format_fits_the_task(self) -> "Task":
        return _check_format(self)


class Recipe(Section):
    """A whole run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    seed: int = Field(0, ge=0, lt=2**31)
    model: ModelSection
    lora: LoraSection = LoraSection()
    quantize: QuantizeSection = QuantizeSection()
    train: TrainSection = TrainSection()
    data: DataSection = DataSection()
    federation: FederationSection = FederationSection()
    public: PublicSection | None = None
    evaluate: EvaluateSection = EvaluateSection()
    node: tuple[NodeSection, ...] = ()

    @property
    def task(self) -> Task:
        """The part of the recipe that nodes receive."""
        return Task(
            name=self.name,
            seed=self.seed,
            rounds=self.federation.rounds,
            model=self.model,
            lora=self.lora,
            quantize=self.quantize,
            train=self.train,
            data=self.data,
            public=self.public.study if self.public else None,
        )

    @model_validator(mode="after")
    def _sections_fit(self) -> "Recipe":
        names = [node.name for node in self.node]
        if len(set(names)) < len(names):
            raise ValueError("two [[node]] entries have the same `name`")
        _check_models(self)
        return _check_format(self)


def _check_models(recipe: Recipe) -> None:
    """One base for all, or a cross-model run that has all it needs."""
    crosses = recipe.federation.strategy == "fedmkt"
    if crosses and recipe.public is None:
        raise ValueError(
            'federation.strategy = "fedmkt" needs a [public] section whose `data` all may see: '
            "parties with different models exchange what they know of it"
        )
    if crosses:
        _check_crossing(recipe)
    elif recipe.public is not None:
        raise ValueError(
            f'[public] needs federation.strategy = "fedmkt"; "{recipe.federation.strategy}" '
            "averages adapters of one model, and sends no text"
        )
    elif own := next((node for node in recipe.node if node.model), None):
        raise ValueError(
            f"[[node]] {own.name} names a `model` of its own: only adapters of one base can be "
            'averaged; leave it out, or set federation.strategy = "fedmkt"'
        )


def _check_crossing(recipe: Recipe) -> None:
    if recipe.model.task != "causal-lm":
        raise ValueError('federation.strategy = "fedmkt" needs model.task = "causal-lm"')
    if recipe.lora.kind != "plain" or recipe.quantize.per_width:
        raise ValueError(
            'federation.strategy = "fedmkt" trains plain adapters on float32 models: lora.kind = '
            '"pooled" and quantize.adapters = "per-width" are for strategies that average'
        )
    if held := next((node for node in recipe.node if node.precision or node.memory), None):
        raise ValueError(
            f"[[node]] {held.name}: `precision` and `memory` are not for federation.strategy = "
            '"fedmkt"; a node with little memory names a smaller `model`'
        )


def _check_format(recipe: T) -> T:
    lora, quantize = recipe.lora, recipe.quantize
    if lora.kind == "pooled" and lora.group != quantize.group:
        raise ValueError(
            f"lora.group is {lora.group} and quantize.group {quantize.group}: pooled adapters fold "
            "into the groups of the quantized weights, so both must be the same"
        )
    classifies = recipe.model.task == "sequence-classification"
    if classifies != (recipe.data.format == "classification"):
        raise ValueError(
            'data.format = "classification" and model.task = "sequence-classification" '
            "go together: set both or neither"
        )
    return recipe

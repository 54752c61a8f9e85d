"""The typed model of search.yaml. Knows no file: lines and messages are the work of search_file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator
from pydantic_core import PydanticCustomError

from tuner.memory_size import MemorySize, parse_memory_size
from tuner.search_file.checks import CONTRADICTIONS, contradictions
from tuner.search_file.duration import parse_duration
from tuner.search_file.names import RNG_OF_TARGET, are_unit_names, default_actions
from tuner.search_file.values import (
    AS_TUPLE,
    BY_SHAPE,
    FLAG,
    WORD,
    Action,
    AutoOrList,
    AutoOrMapping,
    BatchFactory,
    CompileBudgets,
    Duration,
    MemoryCap,
    ModelFactory,
    ModulePath,
    Options,
    PositiveInt,
    RayAddress,
    Resources,
    SequenceLengths,
    StudyName,
    StudyStore,
    Text,
    TrackingStore,
    Units,
)

OptimizerName = Literal[
    "adadelta",
    "adafactor",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "asgd",
    "muon",
    "nadam",
    "radam",
    "rmsprop",
    "rprop",
    "sgd",
    "sparseadam",
]


MAX_GLOBAL_BATCH_SIZE = 10_000_000
#: What `runner.accelerator_type` says for a study on each kind that there is.
ALL_KINDS = "all"

Target = Literal[
    "policy",
    "huggingface",
    "torchtitan",
    "megatron",
    "mindspeed",
    "deepspeed",
    "lightning",
    "accelerate",
    "axolotl",
    "llamafactory",
    "primus",
]


class _Section(BaseModel):
    # Inputs stay out of pydantic's own messages: they may hold credentials.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


class ModelSection(_Section):
    """``model``: what is trained."""

    factory: ModelFactory = Field(
        description="What builds the model. A Python function returns the model; its file may be named relative to "
        "search.yaml."
    )
    args: Options = Field(
        default={}, description="Keyword arguments of the factory; for huggingface entries of the config."
    )
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = Field(
        default="float32", description="Type of the parameters."
    )
    autocast: Literal["bfloat16", "float16"] | None = Field(
        default=None,
        description="Type that operators compute in under autocast; null computes in the parameters' type.",
    )
    compile: Literal["blocks", "model"] | None = Field(
        default=None,
        description="What torch.compile is applied to in trials, and by the exported policy in training: each block by "
        "itself, or the whole model; null measures the model as it is.",
    )
    compile_memory_budget: CompileBudgets = Field(
        default=None,
        description="Share of the activations that the compiler may keep; it rebuilds the rest in its own code. null "
        "leaves it at the compiler's default. Of a list each is tried in place of a placement, the default as well.",
    )

    @property
    def searched_budgets(self) -> tuple[float, ...]:
        """Those that are tried; empty where all trials have the same one."""
        return self.compile_memory_budget if isinstance(self.compile_memory_budget, tuple) else ()

    @property
    def fixed_budget(self) -> float | None:
        """That of all trials; None where there is none, or where several are tried."""
        return None if isinstance(self.compile_memory_budget, tuple) else self.compile_memory_budget


class BatchSection(_Section):
    """``batch``: the data of one optimizer step."""

    global_batch_size: Annotated[int, Field(ge=1, le=MAX_GLOBAL_BATCH_SIZE)] = Field(
        description="Samples per optimizer step over all ranks; the search never changes it."
    )
    micro_batch_sizes: AutoOrList[PositiveInt] = Field(
        default="auto",
        description="Samples of one forward and backward that may be tried; each must divide global_batch_size. "
        "auto tries every divisor.",
    )
    sequence_length: SequenceLengths = Field(
        default=None,
        description="Tokens per sample; null where the factory needs none or has one of its own. Of a list the longest "
        "must fit, and throughput is that of all lengths, each as often as the others.",
    )
    factory: BatchFactory | None = Field(
        default=None,
        description="Function of one's own that is called with micro_batch_size and returns the model's inputs as a "
        "dict; null makes up inputs that fit the model.",
    )


class OptimizerSection(_Section):
    """``optimizer``: what updates the parameters."""

    name: OptimizerName = Field(default="adamw", description="Class of torch.optim in lower case.")
    args: Options = Field(default={"lr": 0.0001}, description="Keyword arguments of that class.")


class PlacementSection(_Section):
    """``placement``: where recompute may be tried."""

    blocks: AutoOrList[ModulePath] = Field(
        default="auto", description="Paths of the lists of blocks in the model; auto finds them."
    )
    units: AutoOrMapping[Units] = Field(
        default="auto",
        description="Parts of a block by name, each a path below the block; a further name is an action of that name. "
        "auto finds attention and mlp.",
    )
    actions: Annotated[tuple[Action, ...], AS_TUPLE] = Field(
        default=default_actions(None),
        description="What may be done to a block: nothing, recompute of a unit, of several units each on its own "
        "(joined by +), of the whole block, or of a segment of consecutive blocks at once.",
    )
    segment_sizes: AutoOrList[PositiveInt] = Field(
        default="auto",
        description="Blocks per segment that may be tried; auto tries a few sizes around the square root.",
    )
    preserve_rng_state: Annotated[Annotated[bool, FLAG] | Annotated[Literal["search"], WORD], BY_SHAPE] = Field(
        default=True,
        description="Whether recompute repeats the same random numbers; false is faster and wrong for blocks with "
        "dropout, search tries both. With a target that has only one handling, that one is the default.",
    )
    target: Target | None = Field(
        default=None,
        description="Training stack whose config must be able to say the policy; null leaves the search free.",
    )

    @model_validator(mode="before")
    @classmethod
    def _name_actions_of_named_units(cls, data: Any) -> Any:
        """Units that the user named are tried, also where the actions are left out."""
        units = data.get("units") if isinstance(data, dict) else None
        if isinstance(units, dict) and "actions" not in data and are_unit_names(units):
            return {**data, "actions": default_actions(units)}
        return data

    @model_validator(mode="before")
    @classmethod
    def _take_the_targets_rng_handling(cls, data: Any) -> Any:
        """A target that has only one handling has it without being told."""
        target = data.get("target") if isinstance(data, dict) else None
        if isinstance(target, str) and target in RNG_OF_TARGET and "preserve_rng_state" not in data:
            return {**data, "preserve_rng_state": RNG_OF_TARGET[target]}
        return data


class SearchSection(_Section):
    """``search``: how long and how the search looks."""

    num_trials: PositiveInt = Field(default=30, description="Trials at most, the baseline included.")
    time_limit: Duration = Field(default="10m", description="Wall time after which no further trial is started.")
    sampler: Literal["model_guided", "tpe", "gp", "nsga2", "random", "grid"] = Field(
        default="model_guided", description="What proposes trials after the baseline."
    )
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = Field(
        default=0, description="Seed of the proposals, of the model's parameters and of its data."
    )

    @property
    def time_limit_s(self) -> float:
        return parse_duration(self.time_limit)


class MeasurementSection(_Section):
    """``measurement``: how one trial is measured."""

    warmup_steps: Annotated[int, Field(ge=0)] = Field(default=2, description="Optimizer steps that are not counted.")
    min_steps: PositiveInt = Field(default=5, description="Counted optimizer steps at least.")
    max_steps: PositiveInt = Field(default=50, description="Counted optimizer steps at most.")
    relative_spread: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = Field(
        default=0.02,
        description="Measuring stops once the standard error of the median step time is below this share of it.",
    )
    verify: bool = Field(default=True, description="Whether each trial is proven to train the same model.")


class RunnerSection(_Section):
    """``runner``: where trials run."""

    device: Literal["auto", "cpu", "cuda", "npu"] = Field(
        default="auto", description="Kind of device; auto takes an accelerator where there is one."
    )
    ray_address: RayAddress | None = Field(
        default=None,
        description="Address of a Ray cluster to join, auto for the one that runs on this machine; null starts a "
        "private one.",
    )
    ship_code: bool = Field(
        default=True,
        description="Whether the folder of the search file is sent to the nodes of ray_address, if a factory is in it; "
        "false where every node has that folder at the same path.",
    )
    accelerator_type: Text | None = Field(
        default=None,
        description="Kind of accelerator that the study is for, by Ray's name, such as H100; null takes the kind that "
        "the cluster has most of. A study runs on one kind; all runs a study of its own on each, one after another.",
    )
    max_parallel_trials: PositiveInt | None = Field(
        default=None, description="Trials at once at most; null runs as many as there is room for."
    )
    priority: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = Field(
        default=1.0,
        description="Weight against the other studies on ray_address: devices are shared in proportion to it.",
    )
    resources_per_trial: AutoOrMapping[Resources] = Field(
        default="auto",
        description="What one trial occupies, or each rank of it, by Ray's names; auto takes one accelerator, or all "
        "CPUs of a node divided among its ranks.",
    )
    data_parallel_degree: PositiveInt = Field(
        default=1, description="Ranks of one trial; each gets resources_per_trial. More than one needs a strategy."
    )
    strategy: Literal["none", "ddp", "fsdp2", "pipeline"] = Field(
        default="none",
        description="How the ranks of one trial work together: ddp copies the model, fsdp2 divides it block by block, "
        "pipeline cuts its list of blocks into stages.",
    )
    pipeline_stages: PositiveInt = Field(
        default=1,
        description="Stages of the pipeline, each a rank of one trial that gets resources_per_trial. For the strategy "
        "pipeline only, which needs 2 at least.",
    )
    reshard_after_forward: Annotated[Annotated[bool, FLAG] | Annotated[Literal["search"], WORD], BY_SHAPE] = Field(
        default=True,
        description="Whether blocks of fsdp2 are divided again after forward, and gathered a second time in backward; "
        "false keeps them whole, search tries both. For fsdp2 only.",
    )
    trial_timeout: Duration = Field(default="10m", description="Wall time after which a trial is stopped as TIMED_OUT.")
    isolation: Literal["worker", "process"] = Field(
        default="worker",
        description="worker lets a process serve several trials while it stays clean; process gives each its own.",
    )

    @property
    def trial_timeout_s(self) -> float:
        return parse_duration(self.trial_timeout)


class TrackingSection(_Section):
    """``tracking``: where MLflow keeps results."""

    uri: TrackingStore | None = Field(
        default=None, description="MLflow's tracking URI; null is one SQLite file for all studies under output_dir."
    )
    experiment: Text | None = Field(default=None, description="MLflow's experiment; null is one per model.")


class SearchConfig(_Section):
    """The whole of search.yaml.

    Built from plain data by ``SearchConfig.model_validate(data, context={"base_dir": folder})``, where files that
    the data name must exist in the folder; without a context that is left open. A ``ValidationError`` says what is
    wrong; `tuner.search_file.load.load_search_file` turns it into lines for the user.
    """

    study: StudyName = Field(
        default="study", description="Name of the study and of its folder; default: the file's name."
    )
    model: ModelSection = Field(description="What is trained.")
    batch: BatchSection = Field(description="The data of one optimizer step.")
    optimizer: OptimizerSection = Field(default=OptimizerSection(), description="What updates the parameters.")
    memory_cap: MemoryCap = Field(
        description="Memory that training may take per device: bytes with their unit, or a share of the device."
    )
    placement: PlacementSection = Field(default=PlacementSection(), description="Where recompute may be tried.")
    search: SearchSection = Field(default=SearchSection(), description="How long and how the search looks.")
    measurement: MeasurementSection = Field(default=MeasurementSection(), description="How one trial is measured.")
    runner: RunnerSection = Field(default=RunnerSection(), description="Where trials run.")
    storage: StudyStore | None = Field(
        default=None, description="Optuna's store of trials; null is a SQLite file in the study's folder."
    )
    tracking: TrackingSection = Field(default=TrackingSection(), description="Where MLflow keeps results.")
    output_dir: Text = Field(default="runs", description="Folder of all studies.")

    _base_dir: Path = PrivateAttr(default=Path())

    def model_post_init(self, context: Any, /) -> None:
        self._base_dir = (context or {}).get("base_dir", Path())

    @model_validator(mode="after")
    def _check_together(self) -> SearchConfig:
        found = contradictions(self)
        if found:
            raise PydanticCustomError(
                CONTRADICTIONS, "{text}", {"text": "; ".join(c.text for c in found), "all": found}
            )
        return self

    @property
    def base_dir(self) -> Path:
        """Folder that relative paths of factories start from: that of the search file."""
        return self._base_dir

    @property
    def memory_cap_size(self) -> MemorySize:
        return parse_memory_size(self.memory_cap)

"""The search file as a study's results repeat it, as far as later commands look into it: it may come from anyone."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from search_spaces.yaml_words import place_name
from tuner.config import MAX_GLOBAL_BATCH_SIZE

_Count: TypeAlias = Annotated[int, Field(ge=1, lt=2**63)]
_Auto: TypeAlias = Literal["auto"]


class _Section(BaseModel):
    # What this release does not look into may be of any kind: other releases have other keys. Those that it looks into
    # may be absent, so each has a default, and no default is ever read.
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False, protected_namespaces=())


class _Model(_Section):
    factory: str = ""
    args: dict[str, Any] = {}
    dtype: str = ""
    autocast: str | None = None


class _Batch(_Section):
    global_batch_size: Annotated[int, Field(ge=1, le=MAX_GLOBAL_BATCH_SIZE)] = 1
    micro_batch_sizes: list[_Count] | _Auto = "auto"
    sequence_length: _Count | Annotated[list[_Count], Field(min_length=1)] | None = None


class _Placement(_Section):
    actions: list[str] = []
    segment_sizes: list[_Count] | _Auto = "auto"
    preserve_rng_state: bool | Literal["search"] = True
    target: str | None = None


class _Search(_Section):
    num_trials: _Count = 1
    time_limit: str = ""
    sampler: str = ""
    seed: int = 0


class _Measurement(_Section):
    min_steps: _Count = 1
    max_steps: _Count = 1
    relative_spread: Annotated[float, Field(gt=0, lt=1)] = 0.02
    verify: bool = True


class _Runner(_Section):
    device: str = ""
    data_parallel_degree: _Count = 1


class _AskedSearch(_Section):
    model: _Model = _Model()
    batch: _Batch = _Batch()
    memory_cap: str = ""
    placement: _Placement = _Placement()
    search: _Search = _Search()
    measurement: _Measurement = _Measurement()
    runner: _Runner = _Runner()


def check_asked_search(search: dict[str, Any]) -> dict[str, Any]:
    """The search, unchanged.

    Raises:
        ValueError: An option that commands look into is none that a search file can have; the message begins with it.
    """
    try:
        _AskedSearch.model_validate(search)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(place_name, first["loc"]))
        expected = "Input should be a mapping" if first["type"] == "model_type" else first["msg"]
        raise ValueError(f"{where}: {expected}, read {first['input']!r:.60}") from None
    return search

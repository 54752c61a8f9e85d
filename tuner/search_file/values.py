"""Types of single values in search.yaml: strict about what was written, and described for editors."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, PlainSerializer, Tag, ValidationInfo

from search_spaces.yaml_words import quoted
from tuner.memory_size import parse_memory_size
from tuner.search_file.duration import parse_duration
from tuner.search_file.factory import check_batch_factory, check_model_factory
from tuner.search_file.names import (
    check_module_path,
    check_resources,
    check_study_name,
    check_unit_names,
    check_unit_path,
    default_actions,
    normal_action,
)
from tuner.search_file.url import check_ray_address, check_study_store, check_tracking_store

#: Marks the tags of unions among the parts of a path: no key of a YAML file can begin with it.
TAG_MARK = "\0"
_WORD, _LIST, _MAPPING, _FLAG = (f"{TAG_MARK}{shape}" for shape in ("word", "list", "mapping", "flag"))


def _shape_of(value: object) -> str:
    if isinstance(value, list | tuple):
        return _LIST
    if isinstance(value, dict):
        return _MAPPING
    return _FLAG if isinstance(value, bool) else _WORD


#: Tells the members of a union apart by how the value was written.
BY_SHAPE = Discriminator(_shape_of)
WORD, LIST, MAPPING, FLAG = Tag(_WORD), Tag(_LIST), Tag(_MAPPING), Tag(_FLAG)
#: A list is kept as a tuple, so that a loaded file cannot be changed.
AS_TUPLE = Field(strict=False, min_length=1)

_T = TypeVar("_T")
_Auto = Annotated[Literal["auto"], WORD]
AutoOrList = Annotated[_Auto | Annotated[tuple[_T, ...], AS_TUPLE, LIST], BY_SHAPE]
AutoOrMapping = Annotated[_Auto | Annotated[_T, MAPPING], BY_SHAPE]


def _one_line(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError(f"is {quoted(text)}; allowed: text of one line")
    return text


def _number_as_text(value: object) -> object:
    """Lets a bare number reach the reader of amounts, which says what unit is missing."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _memory_size(text: str) -> str:
    parse_memory_size(text)
    return text


def _duration(text: str) -> str:
    parse_duration(text)
    return text


def _model_factory(text: str, info: ValidationInfo) -> str:
    return check_model_factory(text, base_dir=(info.context or {}).get("base_dir"))


def _batch_factory(text: str, info: ValidationInfo) -> str:
    return check_batch_factory(text, base_dir=(info.context or {}).get("base_dir"))


def _alone_where_one(lengths: Any) -> Any:
    """A list of one says the same as its entry, and is the same to whoever compares two files."""
    return lengths[0] if isinstance(lengths, tuple) and len(lengths) == 1 else lengths


def _whole_where_possible(number: float) -> Any:
    return int(number) if number == int(number) else number


Text = Annotated[str, AfterValidator(_one_line)]
Options = dict[str, Any]
PositiveInt = Annotated[int, Field(ge=1)]
PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False), PlainSerializer(_whole_where_possible)]
StudyName = Annotated[str, AfterValidator(check_study_name), Field(examples=["gpt2-12l"])]
MemoryCap = Annotated[
    str, AfterValidator(_memory_size), BeforeValidator(_number_as_text), Field(examples=["80GiB", "24GB", "90%"])
]
Duration = Annotated[
    str, AfterValidator(_duration), BeforeValidator(_number_as_text), Field(examples=["90s", "10m", "1h30m"])
]
ModelFactory = Annotated[
    str,
    AfterValidator(_model_factory),
    Field(examples=["huggingface:gpt2", "torchvision:resnet18", "timm:NAME", "package.module:fn", "path/file.py:fn"]),
]
BatchFactory = Annotated[
    str, AfterValidator(_batch_factory), Field(examples=["path/file.py:function", "package.module:function"])
]
ModulePath = Annotated[str, AfterValidator(check_module_path), Field(examples=["transformer.h"])]
Units = Annotated[
    dict[str, Annotated[str, AfterValidator(check_unit_path), Field(examples=["attn"])]],
    Field(min_length=1),
    AfterValidator(check_unit_names),
]
Action = Annotated[
    str,
    AfterValidator(normal_action),
    Field(
        json_schema_extra={
            "anyOf": [{"enum": list(default_actions(None))}, {"type": "string", "examples": ["NAME", "NAME+NAME"]}]
        }
    ),
]
Resources = Annotated[dict[str, PositiveNumber], Field(min_length=1), AfterValidator(check_resources)]
StudyStore = Annotated[
    str, AfterValidator(check_study_store), Field(examples=["sqlite:///study.db", "postgresql://host/database"])
]
TrackingStore = Annotated[
    str, AfterValidator(check_tracking_store), Field(examples=["sqlite:///mlflow.db", "http://127.0.0.1:5000"])
]
RayAddress = Annotated[
    str, AfterValidator(check_ray_address), Field(examples=["head.example:6379", "ray://head.example:10001", "auto"])
]
_Budget = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
CompileBudgets = Annotated[
    Annotated[_Budget | None, WORD] | Annotated[tuple[_Budget, ...], AS_TUPLE, LIST],
    BY_SHAPE,
]
SequenceLengths = Annotated[
    Annotated[PositiveInt | None, WORD] | Annotated[tuple[PositiveInt, ...], AS_TUPLE, LIST],
    BY_SHAPE,
    AfterValidator(_alone_where_one),
]

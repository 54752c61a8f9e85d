"""``pkg.mod:fn`` and ``path/file.py:fn``: functions of the user's own that build models and batches."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from runners.base import WorkloadError
from runners.workloads.base import BatchMaker
from runners.workloads.example_batches import (
    ExampleBatches,
    called_with,
    checked_batch,
    refuse_several_lengths,
)
from runners.workloads.huggingface_batch import transformers_batch_maker
from runners.workloads.nearest import known_names
from runners.workloads.user_code import user_code

UserFunction = Callable[..., Any]


class PythonFactory:
    """Builds the model with a function of the user's; batches are those that the model itself asks for."""

    #: What a user's model reads is taken for sequences wherever search.yaml names a length.
    reads_sequences = True

    def __init__(self, name: str, args: Mapping[str, Any], *, base_dir: Path, sequence_lengths: Sequence[int]) -> None:
        self._name = name
        self._function = find_function(name, key="model.factory", base_dir=base_dir)
        self._args = dict(args)
        self._sequence_lengths = sequence_lengths
        _check_arguments(self._function, self._args, name)

    def build(self) -> nn.Module:
        with user_code(f"model.factory is {self._name}, which"):
            model = self._function(**self._args)
        if not isinstance(model, nn.Module):
            raise WorkloadError(
                f"model.factory is {self._name}, which returned a {type(model).__name__}; "
                "it must return a torch.nn.Module"
            )
        return model

    def batch_maker(self, model: nn.Module, rebuild: Callable[[], nn.Module]) -> BatchMaker:
        if hasattr(model, "example_batch"):
            return ExampleBatches(model, rebuild, sequence_lengths=self._sequence_lengths)
        maker = transformers_batch_maker(model)
        if maker is None:
            raise WorkloadError(
                f"model.factory is {self._name}, and it is not known what a {type(model).__name__} is trained on; "
                "name batch.factory as path/file.py:fn, where fn(micro_batch_size) returns the dict that the model is "
                "called with, or give the model a method example_batch(micro_batch_size, sequence_length)"
            )
        return maker


class BatchFactory:
    """Makes batches with a function of the user's: ``fn(micro_batch_size)`` gives the model's keyword arguments.

    A function that also has a parameter ``sequence_length`` is given the one of search.yaml, or each of several.
    """

    def __init__(self, name: str, *, base_dir: Path, sequence_lengths: Sequence[int]) -> None:
        self._subject = f"batch.factory is {name}, which"
        self._function = find_function(name, key="batch.factory", base_dir=base_dir)
        parameters = _parameters(self._function)
        self._takes_length = "sequence_length" in parameters
        if not self._takes_length:
            refuse_several_lengths(sequence_lengths, f"batch.factory {name}", parameters)
        self._check_signature(self._options(max(sequence_lengths, default=None)))

    def __call__(self, micro_batch_size: int, sequence_length: int | None) -> dict[str, Any]:
        options = self._options(sequence_length)
        with user_code(called_with(self._subject, micro_batch_size, **options)):
            batch = self._function(micro_batch_size, **options)
        return checked_batch(batch, self._subject)

    def _options(self, sequence_length: int | None) -> dict[str, int]:
        if sequence_length is None or not self._takes_length:
            return {}
        return {"sequence_length": sequence_length}

    def _check_signature(self, options: Mapping[str, int]) -> None:
        try:
            inspect.signature(self._function).bind(1, **options)
        except TypeError as error:
            raise WorkloadError(
                f"{self._subject} cannot be called as fn(micro_batch_size): {error}; "
                f"its parameters are {', '.join(_parameters(self._function)) or 'none'}"
            ) from error
        except ValueError:
            pass  # A compiled function without a signature: calling it is the only test.


def find_function(name: str, *, key: str, base_dir: Path) -> UserFunction:
    """The function that ``pkg.mod:fn`` or ``path/file.py:fn`` names; files are relative to ``base_dir``.

    Raises:
        WorkloadError: It does not exist or cannot be imported; the message names the key of search.yaml.
    """
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise WorkloadError(f"{key} is {name}; allowed are path/file.py:function and package.module:function")
    if place.endswith(".py"):
        module = _load_file(place, name, key, base_dir)
    else:
        module = _import_module(place, name, key, base_dir)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            functions = [n for n, value in vars(found).items() if callable(value) and not n.startswith("_")]
            raise WorkloadError(f"{key} is {name}, but {place} has no {part}; {known_names(part, functions)}")
        found = getattr(found, part)
    if not callable(found):
        raise WorkloadError(f"{key} is {name}, but {attribute} is a {type(found).__name__}; name a function or a class")
    function: UserFunction = found
    return function


def _load_file(place: str, name: str, key: str, base_dir: Path) -> ModuleType:
    path = (base_dir / Path(place).expanduser()).resolve()
    if not path.is_file():
        files = [file.name for file in path.parent.glob("*.py")]
        near = known_names(path.name, files) if files else "its folder holds no Python file"
        raise WorkloadError(f"{key} is {name}, but there is no file {path}; {near}")
    _make_importable(path.parent)
    module_name = _module_name(path)
    loaded = sys.modules.get(module_name)
    if loaded is not None:
        return loaded
    module_spec = importlib.util.spec_from_file_location(module_name, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_name] = module
    try:
        with user_code(f"{key} is {name}, which"):
            module_spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def _module_name(path: Path) -> str:
    """The file's own name, so that its neighbours import the same module; another one where that name is taken."""
    if path.stem.isidentifier():
        taken = sys.modules.get(path.stem)
        spec = importlib.util.find_spec(path.stem) if taken is None else taken.__spec__
        if spec is not None and spec.origin is not None and Path(spec.origin).resolve() == path:
            return path.stem
    return f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


def _import_module(place: str, name: str, key: str, base_dir: Path) -> ModuleType:
    _make_importable(base_dir.resolve())
    try:
        with user_code(f"{key} is {name}, which"):
            return importlib.import_module(place)
    except WorkloadError as failure:
        cause = failure.__cause__
        # Only where the named module itself is missing; a missing import inside it is a failure with a line.
        if isinstance(cause, ModuleNotFoundError) and cause.name and f"{place}.".startswith(f"{cause.name}."):
            raise WorkloadError(
                f"{key} is {name}, but there is no module {cause.name} in {base_dir.resolve()} or among the installed "
                "packages; name a file as path/file.py:function, or huggingface:TYPE, torchvision:NAME, timm:NAME"
            ) from cause
        raise


def _make_importable(folder: Path) -> None:
    """Puts the folder first on the import path, as running a script from it would."""
    if sys.path[:1] != [str(folder)]:
        sys.path[:] = [str(folder), *(entry for entry in sys.path if entry != str(folder))]
        importlib.invalidate_caches()


def _check_arguments(function: UserFunction, args: Mapping[str, Any], name: str) -> None:
    parameters = _parameters(function)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    named = [n for n, p in parameters.items() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    for arg in args:
        if parameters and not takes_any and arg not in named:
            raise WorkloadError(f"model.args.{arg} is set, but {name} does not take it; {known_names(arg, named)}")
    try:
        inspect.signature(function).bind(**args)
    except TypeError as error:
        taken = ", ".join(named) or "none"
        raise WorkloadError(f"model.args do not fit {name}: {error}; its parameters are {taken}") from error
    except ValueError:
        pass  # A compiled function without a signature: calling it is the only test.


def _parameters(function: UserFunction) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}

"""Batches that the model itself makes, by a method ``example_batch(micro_batch_size, sequence_length)``."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from runners.base import WorkloadError
from runners.workloads.user_code import user_code


class ExampleBatches:
    """Asks the model for batches without keeping it alive; once it is gone, another one is built for each batch."""

    def __init__(self, model: nn.Module, rebuild: Callable[[], nn.Module], *, sequence_length: int | None) -> None:
        self._model = weakref.ref(model)
        self._rebuild = rebuild
        self._subject = f"{type(model).__name__}.example_batch"
        takes_length = "sequence_length" in inspect.signature(model.example_batch).parameters  # type: ignore[arg-type]  # a method of the user's
        self._options = {"sequence_length": sequence_length} if takes_length and sequence_length is not None else {}

    def __call__(self, micro_batch_size: int) -> dict[str, Any]:
        model = self._model() or self._rebuild()
        make: Any = model.example_batch
        try:
            inspect.signature(make).bind(micro_batch_size, **self._options)
        except TypeError as error:
            hint = "" if self._options else "; set batch.sequence_length"
            raise WorkloadError(
                f"{self._subject} cannot be called as example_batch(micro_batch_size, sequence_length): {error}{hint}"
            ) from error
        with user_code(f"{self._subject}, called with micro_batch_size {micro_batch_size},"):
            batch = make(micro_batch_size, **self._options)
        return checked_batch(batch, self._subject)


def checked_batch(batch: object, subject: str) -> dict[str, Any]:
    """The batch, if it is a dict of keyword arguments.

    Raises:
        WorkloadError: It is something else; the message starts with the subject.
    """
    if not isinstance(batch, Mapping):
        raise WorkloadError(
            f"{subject} returned a {type(batch).__name__}; it must return a dict of the model's inputs, "
            "which is then called as model(**batch)"
        )
    wrong = [key for key in batch if not isinstance(key, str)]
    if wrong:
        raise WorkloadError(
            f"{subject} returned a dict with the key {wrong[0]!r}; keys must be the names of the model's parameters"
        )
    return dict(batch)

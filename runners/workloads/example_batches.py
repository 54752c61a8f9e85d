"""Batches that the model itself makes, by a method ``example_batch(micro_batch_size, sequence_length)``."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from runners.base import WorkloadError
from runners.workloads.user_code import user_code


class ExampleBatches:
    """Asks the model for batches without keeping it alive; once it is gone, another one is built for each batch.

    Args:
        sequence_lengths: Those that search.yaml names; a method that takes none is refused several.
    """

    def __init__(self, model: nn.Module, rebuild: Callable[[], nn.Module], *, sequence_lengths: Sequence[int]) -> None:
        self._model = weakref.ref(model)
        self._rebuild = rebuild
        self._subject = f"{type(model).__name__}.example_batch"
        parameters = inspect.signature(model.example_batch).parameters  # type: ignore[arg-type]  # a method of the user's
        self._takes_length = "sequence_length" in parameters
        if not self._takes_length:
            refuse_several_lengths(sequence_lengths, self._subject, parameters)

    def __call__(self, micro_batch_size: int, sequence_length: int | None) -> dict[str, Any]:
        model = self._model() or self._rebuild()
        make: Any = model.example_batch
        options = {} if sequence_length is None or not self._takes_length else {"sequence_length": sequence_length}
        try:
            inspect.signature(make).bind(micro_batch_size, **options)
        except TypeError as error:
            hint = "" if options else "; set batch.sequence_length"
            raise WorkloadError(
                f"{self._subject} cannot be called as example_batch(micro_batch_size, sequence_length): {error}{hint}"
            ) from error
        with user_code(called_with(self._subject, micro_batch_size, **options)):
            batch = make(micro_batch_size, **options)
        return checked_batch(batch, self._subject)


def called_with(subject: str, micro_batch_size: int, sequence_length: int | None = None) -> str:
    """How a sentence begins that tells what came of a call for a batch."""
    tokens = "" if sequence_length is None else f" and sequence_length {sequence_length}"
    return f"{subject}, called with micro_batch_size {micro_batch_size}{tokens},"


def refuse_several_lengths(sequence_lengths: Sequence[int], subject: str, parameters: Iterable[str]) -> None:
    """Refuses a list of lengths for a function that is not told the length.

    Raises:
        WorkloadError: There are several.
    """
    if len(sequence_lengths) > 1:
        raise WorkloadError(
            f"batch.sequence_length is {list(sequence_lengths)}, but {subject} takes no sequence_length (its "
            f"parameters are {', '.join(parameters) or 'none'}), so its batches cannot have several lengths; give it a "
            "second parameter sequence_length, or name one length"
        )


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

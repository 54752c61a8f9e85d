"""Packages that only some factories need; a missing one is answered with what to install."""

from __future__ import annotations

import importlib
from typing import Any

from runners.base import WorkloadError


def import_optional(name: str, *, factory: str) -> Any:
    """The imported package.

    Args:
        factory: The factory that needs it, as the user wrote it.

    Raises:
        WorkloadError: It is not installed, or what is installed cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        extra = "huggingface" if name == "transformers" else name
        text = " ".join(str(error).split())
        raise WorkloadError(
            f'model.factory is {factory}, which needs {name}: {text}; run pip install "recompute-tuner[{extra}]"'
        ) from error

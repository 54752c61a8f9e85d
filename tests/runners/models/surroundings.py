"""Models that look at the process around them, or change it."""

from __future__ import annotations

import os

from torch import nn


def telling(names: list[str]) -> nn.Module:
    """No model, but an error that says which environment variables are there."""
    raise RuntimeError(", ".join(f"{name} is {'there' if name in os.environ else 'absent'}" for name in names))


def showing(names: list[str]) -> nn.Module:
    """No model, but an error that says what environment variables hold."""
    raise RuntimeError(", ".join(f"{name}={os.environ.get(name)}" for name in names))

"""What one rank holds of a tensor that is divided over ranks."""

from __future__ import annotations

import torch


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The shard of a DTensor; any other tensor as it is.

    Asked by its method: to load DTensor takes a second, which a trial of one process need not pay.
    """
    to_local = getattr(tensor, "to_local", None)
    if to_local is None:
        return tensor
    shard: torch.Tensor = to_local()
    return shard

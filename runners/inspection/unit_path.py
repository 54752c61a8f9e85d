"""How a unit of a block is spelled: a module below the block, or with ``()`` at the end one of the block's methods."""

from __future__ import annotations

from torch import nn


def resolve_unit(block: nn.Module, path: str) -> tuple[nn.Module, str]:
    """The object and attribute whose call is the unit.

    Returns:
        For ``attn`` the sub-module and ``forward``; for ``feed_forward_chunk()`` the block and the method's name.

    Raises:
        AttributeError: The block has no such module or method.
    """
    if not path.endswith("()"):
        return block.get_submodule(path), "forward"
    parent, _, method = path[:-2].rpartition(".")
    owner = block.get_submodule(parent)
    if not callable(getattr(owner, method)):
        raise AttributeError(f"{type(owner).__name__}.{method} is not callable")
    return owner, method

"""The longest sequence that a model's learned or precomputed positions allow."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

_POSITION_NAMES = ("pos", "wpe")


@dataclass(frozen=True)
class PositionLimit:
    """The shortest table of positions and how many tokens it serves."""

    tokens: int
    table: str


def longest_sequence(model: nn.Module) -> PositionLimit | None:
    """The tightest limit in the model; None where positions are computed and any length works."""
    limits = [
        PositionLimit(_usable_rows(module), name)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and _is_position_table(name)
    ]
    return min(limits, key=lambda limit: limit.tokens, default=None)


def _is_position_table(name: str) -> bool:
    own_name = name.rpartition(".")[2].lower()
    return any(part in own_name for part in _POSITION_NAMES)


def _usable_rows(table: nn.Embedding) -> int:
    """Rows without those that are reserved: BART and OPT shift by an offset, RoBERTa counts from after the padding."""
    offset = getattr(table, "offset", 0)
    if not offset and table.padding_idx is not None:
        offset = table.padding_idx + 1
    return table.num_embeddings - int(offset)

"""What a search space must know of a model: its lists of blocks, their units and what cannot be done with them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KeepSet:
    """Operators whose outputs are worth keeping in a block that is recomputed otherwise.

    Attributes:
        asked: The action of a search that it answers: ``selective``, or ``selective:NAME`` for a preset.
        keep: As in `search_spaces.kept_operators`, in normal form.
    """

    asked: str
    keep: tuple[str, ...]


@dataclass(frozen=True)
class BlockList:
    """One list of alike blocks.

    Attributes:
        path: Where the list is, as ``model.get_submodule(path)`` understands it.
        kind: Class name of the blocks; several are joined with ``|``.
        num_blocks: Length of the list, aliases counted at each position.
        units: Pairs of unit name and path below the block, for example ``(("attention", "attn"), ("mlp", "mlp"))``.
            A path that ends in ``()`` names a method of the block.
        aliases: Groups of positions that hold the same module; such positions are given one choice.
        overlaps: Pairs of units of which one runs within the other, so that no action can name both.
        keep_sets: What was found for the selective actions that were asked for.
        idle_keeps: Selective actions that name operators of which its blocks run none, in normal form.
        segment_refusal: Why consecutive blocks cannot share one recompute region; None where they can.
        keeps_statistics: Its blocks normalize over the batch in training, so whoever recomputes them has to keep the
            rebuild from advancing their running statistics a second time.
    """

    path: str
    kind: str
    num_blocks: int
    units: tuple[tuple[str, str], ...] = ()
    aliases: tuple[tuple[int, ...], ...] = ()
    segment_refusal: str | None = None
    overlaps: tuple[tuple[str, str], ...] = ()
    keep_sets: tuple[KeepSet, ...] = ()
    idle_keeps: tuple[str, ...] = ()
    keeps_statistics: bool = False

    @property
    def can_segment(self) -> bool:
        return self.segment_refusal is None

    @property
    def unit_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.units)


@dataclass(frozen=True)
class ModelShape:
    """Lists of blocks of one model, in the order of the forward pass.

    Attributes:
        num_parameters: Parameters, tied ones counted once.
        block_lists: Disjoint lists; empty where none was found and none was named.
        notes: Sentences for the user: what could not be found and how to name it.
    """

    num_parameters: int
    block_lists: tuple[BlockList, ...] = ()
    notes: tuple[str, ...] = ()

"""Made-up models, seeded: what a dry run of one would find, as the same records that a real dry run hands over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from search_spaces.actions import SELECTIVE, selective_action
from search_spaces.choices import SearchChoices, every_micro_batch_size
from search_spaces.memory_profile import Cell, ListProfile, MemoryProfile, Moment, StepProfile, Stretch
from search_spaces.model_shape import BlockList, KeepSet, ModelShape
from search_spaces.policy import BLOCK, NONE, SEGMENT

MIB = 2**20
UNITS = (("attention", "attn"), ("mlp", "mlp"))
ACTIONS = (NONE, "attention", "mlp", "attention+mlp", BLOCK, SEGMENT)
#: Units that begin or end inside a module, the actions that name them, and two keep-sets.
INNER_UNITS = (("activation", "mlp..mlp.down"), ("norm", "norm_1..attn.qkv; norm_2..mlp.up"))
KEEP_SETS = (
    KeepSet(SELECTIVE, ("aten.attention.default",)),
    KeepSet(SELECTIVE, ("aten.addmm.default[0,2]", "aten.attention.default")),
)
_FEW_KEPT, _MANY_KEPT = (selective_action(each.keep) for each in KEEP_SETS)
INNER_ACTIONS = (*ACTIONS, "activation", "norm", "activation+norm", "activation+attention", SELECTIVE)
#: FLOPs of one block's forward pass for one sample, before the draw.
_BLOCK_FLOPS = 10**9


def synthetic_choices(lengths: Sequence[int], global_batch_size: int, *, inside_modules: bool = False) -> SearchChoices:
    """A search over lists of blocks of these lengths at every micro-batch size, with every action of whole modules.

    Args:
        inside_modules: Those below the module as well: inner units and kept operators.
    """
    units, keep_sets = ((*UNITS, *INNER_UNITS), KEEP_SETS) if inside_modules else (UNITS, ())
    lists = tuple(
        BlockList(f"list{index}", f"Block{index}", length, units, keep_sets=keep_sets)
        for index, length in enumerate(lengths)
    )
    actions = INNER_ACTIONS if inside_modules else ACTIONS
    return SearchChoices(ModelShape(0, lists), global_batch_size, every_micro_batch_size(global_batch_size), actions)


def synthetic_profile(choices: SearchChoices, generator: np.random.Generator) -> MemoryProfile:
    """What a step of such a model does to memory; lists run one after the other, between an embedding and a head."""
    blocks = [_Block.draw(generator) for _ in choices.block_lists]
    if SELECTIVE in choices.actions:
        blocks = [block.with_insides(generator) for block in blocks]
    total = sum(
        each.parameter_bytes * of.blocks.num_blocks for each, of in zip(blocks, choices.block_lists, strict=True)
    )
    block_flops = sum(each.flops * of.blocks.num_blocks for each, of in zip(blocks, choices.block_lists, strict=True))
    head = _Head(int(generator.uniform(1, 10) * MIB), int(block_flops * generator.uniform(0.05, 0.4)))
    sizes = sorted(batch.micro_batch_size for batch in choices.batches)
    return MemoryProfile(
        parameter_bytes=total,
        gradient_bytes=total,
        optimizer_state_bytes=2 * total,
        steps=tuple(_step(choices, blocks, head, total, size) for size in sizes),
    )


@dataclass(frozen=True)
class _Head:
    """Loss and logits; sizes and FLOPs for one sample."""

    kept_bytes: int
    flops: int


@dataclass(frozen=True)
class _Block:
    """A block for one sample.

    Attributes:
        kept_bytes: What it keeps for backward under each action that is no segment.
        rebuilt: Share of its forward FLOPs that a rebuild runs: it ends with the last tensor that backward needs.
        scratch_bytes: What a running kernel takes on top.
    """

    boundary_bytes: int
    kept_bytes: dict[str, int]
    rebuilt: dict[str, float]
    flops: int
    scratch_bytes: int
    parameter_bytes: int

    @classmethod
    def draw(cls, generator: np.random.Generator) -> _Block:
        boundary, inner = 1.0, generator.uniform(4, 20)
        attention = generator.uniform(0.3, 0.6) * inner
        mlp = inner - attention - generator.uniform(0, 0.5)
        rest = inner - attention - mlp
        kept = {
            NONE: boundary + inner,
            "attention": boundary + inner - 0.9 * attention,
            "mlp": boundary + inner - 0.9 * mlp,
            "attention+mlp": boundary + rest + 0.1 * (attention + mlp),
            BLOCK: boundary,
        }
        share = generator.uniform(0.25, 0.5)
        of_attention, of_mlp = 0.9 * share, 0.6 * (1 - share)
        return cls(
            boundary_bytes=int(boundary * MIB),
            kept_bytes={action: int(size * MIB) for action, size in kept.items()},
            rebuilt={
                NONE: 0.0,
                "attention": of_attention,
                "mlp": of_mlp,
                "attention+mlp": of_attention + of_mlp,
                BLOCK: 0.95,
                SEGMENT: 0.98,
            },
            flops=int(_BLOCK_FLOPS * generator.uniform(0.7, 1.4)),
            scratch_bytes=int(generator.uniform(0.5, 2) * MIB),
            parameter_bytes=int(generator.uniform(5, 20) * MIB / 2),
        )

    def with_insides(self, generator: np.random.Generator) -> _Block:
        """The same block, of which parts below the module can be recomputed, too. What those rebuild has no FLOPs."""
        plain, whole = self.kept_bytes[NONE], self.kept_bytes[BLOCK]
        mlp, attention = (plain - self.kept_bytes[unit] for unit in ("mlp", "attention"))
        activation = int(generator.uniform(0.3, 0.6) * mlp)
        norm = int(generator.uniform(0.05, 0.12) * (plain - whole))
        few, many = generator.uniform(0.08, 0.15), generator.uniform(0.4, 0.6)
        saved = {
            "activation": activation,
            "norm": norm,
            "activation+norm": activation + norm,
            "activation+attention": activation + attention + 1,
            _FEW_KEPT: int((1 - few) * (plain - whole)),
            _MANY_KEPT: int((1 - many) * (plain - whole)) + 2,
        }
        rebuilt = {
            "activation": 0.0,
            "norm": 0.0,
            "activation+norm": 0.0,
            "activation+attention": self.rebuilt["attention"],
            _FEW_KEPT: 0.95 - generator.uniform(0.15, 0.3),
            _MANY_KEPT: 0.95 - generator.uniform(0.5, 0.8),
        }
        kept = {action: plain - each for action, each in saved.items()}
        return replace(self, kept_bytes=self.kept_bytes | kept, rebuilt=self.rebuilt | rebuilt)

    def cell(self, action: str, size: int, *, gradient_bytes: int) -> Cell:
        """One block under an action at a micro-batch size."""
        kept, rebuilt = self.kept_bytes[action] * size, (self.kept_bytes[NONE] - self.kept_bytes[action]) * size
        return Cell((0,), action, self._forward(kept, size, 1), self._backward(kept, rebuilt, gradient_bytes, size))

    def segment(self, length: int, size: int, *, gradient_bytes: int) -> Cell:
        kept = self.boundary_bytes * size
        flops = int((2 + self.rebuilt[SEGMENT]) * length * self.flops * size)
        rise = length * self.kept_bytes[NONE] * size + self._working(size)
        backward = Stretch(length * gradient_bytes - kept, rise + length * gradient_bytes, flops)
        return Cell((0,) * length, SEGMENT, self._forward(kept, size, length), backward)

    def _forward(self, kept: int, size: int, length: int) -> Stretch:
        return Stretch(kept, kept + self._working(size), length * self.flops * size)

    def _backward(self, kept: int, rebuilt: int, gradient_bytes: int, size: int) -> Stretch:
        # What is rebuilt says which action it is.
        share = next(self.rebuilt[action] for action, own in self.kept_bytes.items() if own * size == kept)
        flops = int((2 + share) * self.flops * size)
        return Stretch(gradient_bytes - kept, rebuilt + self._working(size) + self.parameter_bytes, flops)

    def _working(self, size: int) -> int:
        return self.scratch_bytes * size


def _step(choices: SearchChoices, blocks: Sequence[_Block], head: _Head, total: int, size: int) -> StepProfile:
    accumulates = size < choices.global_batch_size
    lists, forward, backward = [], [], []
    for index, (block, of) in enumerate(zip(blocks, choices.block_lists, strict=True)):
        num_blocks = of.blocks.num_blocks
        gradient = 0 if accumulates else block.parameter_bytes
        cells = [block.cell(action, size, gradient_bytes=gradient) for action in block.kept_bytes]
        cells += [
            block.segment(length, size, gradient_bytes=gradient)
            for length in range(2, max(of.segment_sizes, default=1) + 1)
        ]
        lists.append(ListProfile(of.blocks.path, tuple(range(num_blocks)), (0,) * num_blocks, tuple(cells)))
        forward += [Moment("forward", list_index=index, call=call) for call in range(num_blocks)]
        backward += [Moment("backward", list_index=index, call=call) for call in range(num_blocks)]
    embedding = Stretch(MIB * size, 2 * MIB * size)
    logits = head.kept_bytes * size
    moments = (
        Moment("fixed", embedding),
        *forward,
        Moment("fixed", Stretch(logits, 2 * logits, head.flops * size)),
        Moment("fixed", Stretch(-logits, logits, 2 * head.flops * size)),
        *reversed(backward),
        Moment("fixed", Stretch(-embedding.delta_bytes, MIB * size)),
    )
    return StepProfile(
        micro_batch_size=size,
        accumulates=accumulates,
        static_bytes=total * (4 if accumulates else 3),
        moments=moments,
        lists=tuple(lists),
        update=Stretch(0, total // 20),
    )

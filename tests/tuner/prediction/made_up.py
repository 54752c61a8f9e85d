"""Memory profiles and prices of made-up models, seeded, for tests of what is computed from them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from search_spaces.choices import SearchChoices
from search_spaces.memory_profile import Cell, ListProfile, MemoryProfile, Moment, StepProfile, Stretch
from search_spaces.model_shape import BlockList, ModelShape
from search_spaces.policy import BLOCK, NONE, SEGMENT
from tuner.prediction.placement_features import PlacementFeatures
from tuner.prediction.time_model import TimeWeights

MIB = 2**20
UNITS = (("attention", "attn"), ("mlp", "mlp"))
#: Of one block, and the share of it that each action runs again.
FORWARD_FLOPS = 1_000_000
REBUILT_SHARES = {NONE: 0.0, "attention": 0.3, "mlp": 0.4, "attention+mlp": 0.7, BLOCK: 0.95, SEGMENT: 0.95}
ACTIONS = ("none", "attention", "mlp", "attention+mlp", "block", "segment")


def made_up_choices(
    lengths: Sequence[int], *, global_batch_size: int = 4, actions: Sequence[str] = ACTIONS, rng: bool | str = True
) -> SearchChoices:
    """A search over lists of blocks of these lengths, at every micro-batch size."""
    lists = tuple(BlockList(f"list{index}", f"Kind{index}", length, UNITS) for index, length in enumerate(lengths))
    sizes = tuple(size for size in range(1, global_batch_size + 1) if global_batch_size % size == 0)
    return SearchChoices(
        shape=ModelShape(1000, lists),
        global_batch_size=global_batch_size,
        micro_batch_sizes=sizes,
        actions=tuple(actions),
        preserve_rng_state=rng,  # type: ignore[arg-type]
    )


def made_up_profile(
    choices: SearchChoices, seed: int, *, odd_first_block: bool = False, lingers: bool = False
) -> MemoryProfile:
    """What a dry run of such a model could have found; lists run one after the other.

    Args:
        odd_first_block: The first block of each list is of a class of its own.
        lingers: Blocks leave something that is alive until the forward pass ends, as under autocast.
    """
    steps = [_step(choices, batch.micro_batch_size, seed, odd_first_block, lingers) for batch in choices.batches]
    return MemoryProfile(
        parameter_bytes=40 * MIB,
        gradient_bytes=40 * MIB,
        optimizer_state_bytes=80 * MIB,
        steps=tuple(sorted(steps, key=lambda step: step.micro_batch_size)),
    )


def _step(choices: SearchChoices, size: int, seed: int, odd_first_block: bool, lingers: bool) -> StepProfile:
    generator = random.Random(seed)

    def some(low: int, high: int, times: int = size) -> int:
        return generator.randint(low * MIB // 8, high * MIB // 8) * times

    lists, forward, backward = [], [], []
    for list_index, blocks in enumerate(choices.shape.block_lists):
        num = blocks.num_blocks
        classes = tuple(1 if odd_first_block and call == 0 else 0 for call in range(num))
        cells = [cell for kind in sorted(set(classes)) for cell in _cells_of_class(kind, some, lingers)]
        plain = {cell.classes[0]: cell for cell in cells if cell.action == NONE}
        boundary = some(1, 3)
        for length in range(2, num + 1):
            for first in range(2 if odd_first_block else 1):
                of_blocks = classes[first : first + length]
                if len(of_blocks) == length and not any(c.classes == of_blocks and c.action == SEGMENT for c in cells):
                    cells.append(_segment(of_blocks, [plain[kind] for kind in of_blocks], boundary))
        lists.append(ListProfile(blocks.path, tuple(range(num)), classes, tuple(cells)))
        for call in range(num):
            forward.append(Moment("forward", list_index=list_index, call=call))
            backward.append(Moment("backward", list_index=list_index, call=call))
        gap = some(0, 4)
        forward.append(Moment("fixed", Stretch(gap, gap + some(0, 9))))
        backward.append(Moment("fixed", Stretch(-gap, some(0, 9))))
    moments = [Moment("fixed", Stretch(some(1, 5), some(5, 9))), *forward, *reversed(backward)]
    moments.append(Moment("fixed", Stretch(some(-4, 0), some(0, 5))))
    return StepProfile(
        micro_batch_size=size,
        accumulates=size < choices.global_batch_size,
        static_bytes=160 * MIB,
        moments=tuple(moments),
        lists=tuple(lists),
        update=Stretch(0, 3 * MIB),
    )


def _cells_of_class(kind: int, some: object, lingers: bool) -> list[Cell]:
    assert callable(some)
    inner, gradient = some(20, 60), some(1, 2, 1)
    kept_shares = {NONE: 1.0, "attention": 0.7, "mlp": 0.6, "attention+mlp": 0.3, BLOCK: 0.1}
    cells = []
    for action, share in kept_shares.items():
        kept = int(inner * share)
        rebuilt = inner - kept
        forward = Stretch(kept, kept + some(1, 6), FORWARD_FLOPS)
        flops = int((2 + REBUILT_SHARES[action]) * FORWARD_FLOPS)
        backward = Stretch(gradient - kept, rebuilt + some(2, 9), flops)
        cells.append(Cell((kind,), action, forward, backward, some(0, 30, 1) if lingers else 0))
    return cells


def _segment(classes: tuple[int, ...], plain: list[Cell], boundary: int) -> Cell:
    inner = sum(cell.forward.delta_bytes for cell in plain)
    gradients = sum(cell.forward.delta_bytes + cell.backward.delta_bytes for cell in plain)
    rise = max(cell.forward.rise_bytes for cell in plain)
    forward = Stretch(boundary, boundary + rise, len(plain) * FORWARD_FLOPS)
    flops = int(len(plain) * (2 + REBUILT_SHARES[SEGMENT]) * FORWARD_FLOPS)
    return Cell(classes, SEGMENT, forward, Stretch(gradients - boundary, inner + rise, flops))


def made_up_weights(features: PlacementFeatures, seed: int) -> TimeWeights:
    """Bases about 1, prices that are positive, small tilts."""
    generator = np.random.default_rng(seed)
    shape = (len(features.batches), features.num_labels)
    return TimeWeights(
        base=generator.uniform(0.8, 1.3, shape[0]),
        prices=generator.uniform(0.02, 0.4, shape),
        tilts=generator.normal(0, 0.02, shape),
        lack_of_fit=0.01,
    )

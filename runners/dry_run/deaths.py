"""Where the end of each storage is booked, so that a stretch depends on its own block's placement alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from runners.dry_run.step_trace import StretchKey, TracedStretch
from search_spaces.memory_profile import Stretch


@dataclass(frozen=True)
class Death:
    """A storage that died in another stretch than it was born in.

    Attributes:
        place: Index of the stretch in which it died.
        consumer: As of a counted storage, and so is ``is_output``.
    """

    place: int
    birthplace: StretchKey
    consumer: StretchKey | None
    is_output: bool
    num_bytes: int


class Deaths:
    """The deaths of one micro-batch.

    What a block hands to the next one lives as long as either of the two has it saved. Where the next one alone may
    save it (a transformer's residual stream, say), its end is part of what that one does. Where the block itself saves
    its output (as a ReLU does), the end is part of the block's own backward, unless the block is recomputed: the next
    one's backward then sees it die. That is booked to the start of the block's own backward, too, so that neither
    depends on the other. No moment of the step becomes higher by it: the block's rise counts from a start that is as
    much higher.
    """

    def __init__(self) -> None:
        self._all: list[Death] = []

    def add(self, death: Death) -> None:
        self._all.append(death)

    def keeps_output(self, stretches: Sequence[TracedStretch], list_index: int) -> bool:
        """Whether the blocks of a list save their own outputs: these died in the blocks' own backward."""
        outputs = [d for d in self._all if d.is_output and d.birthplace.list_index == list_index]
        own = [d for d in outputs if stretches[d.place].key.in_backward and _is_own(d, stretches)]
        return bool(outputs) and len(own) == len(outputs)

    def settled(self, stretches: Sequence[TracedStretch], keeps_output: Sequence[bool]) -> tuple[TracedStretch, ...]:
        """The stretches with each death where it belongs.

        Args:
            keeps_output: Of each list of blocks.
        """
        backward_at = {t.key.call_id: i for i, t in enumerate(stretches) if t.key.part == "backward"}
        of_blocks = {i for i, t in enumerate(stretches) if t.key.part == "backward"}
        end_of_forward = max(i for i, t in enumerate(stretches) if not t.key.in_backward)
        later: Counter[int] = Counter()
        earlier: Counter[int] = Counter()
        released: Counter[StretchKey] = Counter()
        shared: Counter[StretchKey] = Counter()
        for death in self._all:
            birthplace = death.birthplace
            keeps = birthplace.list_index is not None and keeps_output[birthplace.list_index]
            # An output that no block consumes is let go whatever its block does, unless that one saves it if plain.
            if death.place == end_of_forward and (death.consumer is not None or not death.is_output or keeps):
                released[death.consumer or birthplace] += death.num_bytes
            if birthplace.part == "fixed" and death.consumer is None and death.place in of_blocks:
                shared[birthplace] += death.num_bytes
            if death.is_output and keeps:
                own = backward_at.get(birthplace.call_id, -1)
                if end_of_forward < death.place < own:
                    later[death.place] += death.num_bytes
                    earlier[own] += death.num_bytes
        return tuple(
            replace(
                traced,
                stretch=_shifted(traced.stretch, not_yet_dead=later[i], dead_at_start=earlier[i]),
                released_bytes=released[traced.key],
                shared_bytes=shared[traced.key],
            )
            for i, traced in enumerate(stretches)
        )


def _is_own(death: Death, stretches: Sequence[TracedStretch]) -> bool:
    return stretches[death.place].key.call_id == death.birthplace.call_id


def _shifted(stretch: Stretch, *, not_yet_dead: int, dead_at_start: int) -> Stretch:
    if not (not_yet_dead or dead_at_start):
        return stretch
    delta = stretch.delta_bytes + not_yet_dead - dead_at_start
    return replace(stretch, delta_bytes=delta, rise_bytes=max(stretch.rise_bytes - dead_at_start, delta, 0))

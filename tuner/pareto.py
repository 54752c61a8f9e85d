"""Which results are worth having: the Pareto front, the winner, and whether two results really differ."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from runners.trial import TrialResult
from search_spaces.policy import RecomputePolicy
from tuner.objective import MeasuredSpeed, Objective, Speed, ranking_speeds
from tuner.speed_ratio import Playoff, Ratio

#: Ties that were measured to be slower than the fastest by more than this do not win: where noise makes everything tie,
#: a little memory is no reason to give up what is expected of speed.
MOST_GIVEN_UP = 0.03
#: Peaks closer than this count as equal when a tie is broken: a per cent of memory is no reason for a complex policy.
PEAK_MARGIN_RATIO = 0.01


@dataclass(frozen=True)
class Winner:
    """The best result, and the feasible ones that are as fast within the spread, in order of trial number."""

    result: TrialResult
    ties: tuple[TrialResult, ...]


def compare(result: MeasuredSpeed, other: MeasuredSpeed) -> Ratio | None:
    """Speed of ``result`` over that of ``other``, with its spread; None where one of them has no speed."""
    speed, other_speed = ranking_speeds([result, other])
    if speed is None or other_speed is None:
        return None
    return speed.over(other_speed)


class Standings:
    """The front and the winner among results that come one by one, without looking at all of them again each time."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._feasible: list[TrialResult] = []
        #: A feasible result without relative speed, once there is one: all are ranked as it can be.
        self._sets_unit: list[TrialResult] = []
        self._ranked: list[_Candidate] = []
        self._front: list[_Candidate] = []
        self._tied: list[_Candidate] = []
        self._plain: _Candidate | None = None
        self._every_block: _Candidate | None = None
        self._winner: Winner | None = None

    def add(self, result: TrialResult) -> None:
        """Takes a result in; each trial's once."""
        if not self._objective.score(result).feasible:
            return
        self._feasible.append(result)
        if not self._sets_unit and not _has_relative_speed(result):
            self._sets_unit = [result]
            others, self._ranked, self._front = self._feasible, [], []
            self._plain = self._every_block = None
        else:
            others = [result]
        for candidate in _candidates(others, self._sets_unit):
            self._rank(candidate)

    def front_with_winner(self, playoff: Playoff | None = None) -> tuple[tuple[TrialResult, ...], Winner | None]:
        """The front, the fastest first, and the winner, who always stands on it; None where nothing is feasible.

        The front is what no other feasible result beats in speed and memory at once, and the winner: a tie may name
        one that is beaten by less than the spread. Those that tie with the fastest, and were measured to be slower by
        3 per cent at most, compete by memory; those within one per cent of the least memory by simplicity.

        Args:
            playoff: Where there was one, its times replace the speeds of those that took part, and only they can win.
        """
        if playoff is not None:
            members, winner = _front_with_winner(self._ranked, playoff)
            return tuple(candidate.result for candidate in members), winner
        standing = {candidate.number: candidate for candidate in self._front}
        if self._winner is not None:
            best = self._winner.result.trial_number
            standing.update({candidate.number: candidate for candidate in self._tied if candidate.number == best})
        return tuple(c.result for c in sorted(standing.values(), key=_fastest_first)), self._winner

    def by_speed(self) -> Iterator[TrialResult]:
        """Feasible results, the fastest first; none may be added meanwhile."""
        return (candidate.result for candidate in self._ranked)

    def fastest_plain(self) -> TrialResult | None:
        """The fastest feasible result without recompute."""
        return None if self._plain is None else self._plain.result

    def fastest_of_every_block(self) -> TrialResult | None:
        """The fastest feasible result that recomputes every block."""
        return None if self._every_block is None else self._every_block.result

    def _rank(self, candidate: _Candidate) -> None:
        insort(self._ranked, candidate, key=_fastest_first)
        if not any(_beats(other, candidate) for other in self._front):
            self._front = [other for other in self._front if not _beats(candidate, other)]
            insort(self._front, candidate, key=_fastest_first)
        if candidate.result.policy.is_plain:
            self._plain = min(filter(None, (candidate, self._plain)), key=_fastest_first)
        if candidate.result.policy.recomputes_every_block:
            self._every_block = min(filter(None, (candidate, self._every_block)), key=_fastest_first)
        first = self._ranked[0]
        if candidate is first:
            self._tied = [c for c in self._ranked if c is first or c.speed.over(first.speed).is_tie]
        elif candidate.speed.over(first.speed).is_tie:
            self._tied.append(candidate)
        else:
            return
        self._winner = _winner(self._tied, lambda c: c.speed.over(first.speed).value)


def complexity(policy: RecomputePolicy) -> tuple[int, int, int, int]:
    """Orders policies from simple to complex.

    By number of regions (a compiler's budget counts as one), then RNG state not preserved, then micro-batches per step,
    then recomputed blocks.
    """
    regions = [region for placement in policy.canonical().placement for region in placement.regions]
    return (
        len(regions) + int(policy.compile_memory_budget is not None),
        int(policy.recomputes and not policy.preserve_rng_state),
        policy.batch.gradient_accumulation_steps,
        sum(region.num_blocks for region in regions),
    )


@dataclass(frozen=True)
class _Candidate:
    result: TrialResult
    speed: Speed
    peak_bytes: int

    @property
    def number(self) -> int:
        return self.result.trial_number

    @cached_property
    def complexity(self) -> tuple[int, int, int, int]:
        return complexity(self.result.policy)


def _front_with_winner(ranked: Sequence[_Candidate], playoff: Playoff) -> tuple[list[_Candidate], Winner | None]:
    """Of candidates, the fastest first."""
    winner = _find_winner(ranked, playoff)
    candidates = _by_playoff(ranked, playoff)
    front = {candidate.number for candidate in _front(candidates)}
    if winner is not None:
        front.add(winner.result.trial_number)
    return sorted((c for c in candidates if c.number in front), key=_fastest_first), winner


def _find_winner(ranked: Sequence[_Candidate], playoff: Playoff) -> Winner | None:
    """Of candidates, the fastest first."""
    feasible = [c for c in ranked if c.number in playoff.trials] or ranked
    if not feasible:
        return None

    def ratio(candidate: _Candidate, other: _Candidate) -> Ratio:
        return playoff.ratio(candidate.number, other.number) or candidate.speed.over(other.speed)

    first = feasible[0]
    fastest = max(feasible, key=lambda c: ratio(c, first).value)
    tied = [c for c in feasible if c is fastest or ratio(c, fastest).is_tie]
    return _winner(tied, lambda c: ratio(c, first).value)


def _winner(tied: Sequence[_Candidate], speed: Callable[[_Candidate], float]) -> Winner:
    """The best of those as fast as the fastest, by memory, then simplicity, then speed."""
    least_speed = max(map(speed, tied)) * (1 - MOST_GIVEN_UP)
    fast = [c for c in tied if speed(c) >= least_speed]
    enough = min(c.peak_bytes for c in fast) * (1 + PEAK_MARGIN_RATIO)
    small = (c for c in fast if c.peak_bytes <= enough)
    best = min(small, key=lambda c: (*c.complexity, -speed(c), c.number))
    others = sorted((c for c in tied if c is not best), key=lambda c: c.number)
    return Winner(best.result, tuple(c.result for c in others))


def _beats(candidate: _Candidate, other: _Candidate) -> bool:
    """At least as good in both, better in one."""
    mine, theirs = (candidate.speed.value, -candidate.peak_bytes), (other.speed.value, -other.peak_bytes)
    return mine != theirs and mine[0] >= theirs[0] and mine[1] >= theirs[1]


def _front(candidates: Sequence[_Candidate]) -> list[_Candidate]:
    front: list[_Candidate] = []
    for candidate in sorted(candidates, key=_fastest_first):
        least = front[-1] if front else None
        equal = least is not None and (candidate.speed.value, candidate.peak_bytes) == (
            least.speed.value,
            least.peak_bytes,
        )
        if least is None or candidate.peak_bytes < least.peak_bytes or equal:
            front.append(candidate)
    return front


def _by_playoff(candidates: Sequence[_Candidate], playoff: Playoff) -> Sequence[_Candidate]:
    """The candidates with the playoff's speeds for those that took part, in the unit of all others.

    The playoff knows ratios only; their common scale is the one at which the entrants' own speeds agree best (the
    geometric mean of own speed over ratio).
    """
    entrants = sorted((c for c in candidates if c.number in playoff.trials), key=lambda c: c.number)
    if len(entrants) < 2:
        return candidates
    ratios = {c.number: playoff.ratio(c.number, entrants[0].number) for c in entrants}
    values = {number: ratio.value for number, ratio in ratios.items() if ratio is not None}
    scale = math.exp(sum(math.log(c.speed.value / values[c.number]) for c in entrants) / len(entrants))
    return [
        replace(c, speed=replace(c.speed, value=scale * values[c.number])) if c.number in values else c
        for c in candidates
    ]


def _fastest_first(candidate: _Candidate) -> tuple[float, int, int]:
    return (-candidate.speed.value, candidate.peak_bytes, candidate.number)


def _candidates(feasible: Sequence[TrialResult], others: Sequence[TrialResult]) -> list[_Candidate]:
    """Those with a speed and a peak.

    Args:
        others: Feasible results that the unit of the speeds must suit as well.
    """
    return [
        _Candidate(result, speed, result.peak_memory_bytes)
        for result, speed in zip(feasible, ranking_speeds([*feasible, *others]), strict=False)
        if speed is not None and result.peak_memory_bytes is not None
    ]


def _has_relative_speed(result: TrialResult) -> bool:
    speed = result.relative_speed
    return speed is not None and math.isfinite(speed) and speed > 0

"""Which further points a Pareto front needs: the fewest that leave little of the predicted front uncovered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tuner.prediction.placement_features import FloatArray, IntArray

BoolArray = npt.NDArray[np.bool_]
#: Points of a predicted front that are looked at: more would not move a figure of a per cent.
_MOST_POINTS = 300
#: Points that one plan may add.
_MOST_ADDED = 30


@dataclass(frozen=True)
class FillingPlan:
    """Attributes:
    added: Indices of points to measure, the most useful one first; empty where the front is covered.
    covered: Share of the predicted front's hypervolume that the measured points cover now.
    """

    added: tuple[int, ...]
    covered: float


def hypervolume(peaks_bytes: FloatArray, speeds: FloatArray, cap_bytes: float) -> float:
    """Area between the points' staircase and the corner (cap, speed 0); points over the cap count for nothing.

    Args:
        peaks_bytes: Shape (num_points,).
        speeds: Shape (num_points,).
    """
    within = np.flatnonzero(peaks_bytes <= cap_bytes)
    order = within[np.argsort(peaks_bytes[within], kind="stable")]
    best = np.maximum.accumulate(np.concatenate([[0.0], speeds[order]]))
    return float(((best[1:] - best[:-1]) * (cap_bytes - peaks_bytes[order])).sum())


def plan_filling(
    peaks_bytes: FloatArray, speeds: FloatArray, is_measured: BoolArray, *, cap_bytes: float, goal: float
) -> FillingPlan:
    """The fewest unmeasured points that, with the measured ones, cover ``goal`` of the hypervolume of all.

    Exact by dynamic programming over the points of the front, up to the number of points that are looked at.

    Args:
        peaks_bytes: Of all points, measured and predicted, each within the cap; shape (num_points,).
        speeds: Shape as ``peaks_bytes``.
        is_measured: Shape as ``peaks_bytes``.
        goal: Share of the whole hypervolume, below 1.
    """
    front = _front(peaks_bytes, speeds, is_measured)
    peaks, speed, fixed = peaks_bytes[front], speeds[front], is_measured[front]
    whole = hypervolume(peaks_bytes, speeds, cap_bytes)
    measured = np.flatnonzero(is_measured)
    now = hypervolume(peaks_bytes[measured], speeds[measured], cap_bytes) if len(measured) else 0.0
    covered = now / whole if whole > 0 else 1.0
    if covered >= goal:
        return FillingPlan((), covered)
    chosen = front[_fewest(peaks, speed, fixed, cap_bytes=cap_bytes, area=goal * whole)]
    gains = [
        hypervolume(
            np.append(peaks_bytes[measured], peaks_bytes[index]), np.append(speeds[measured], speeds[index]), cap_bytes
        )
        for index in chosen
    ]
    order = np.argsort(-np.array(gains), kind="stable")
    return FillingPlan(tuple(int(chosen[i]) for i in order), covered)


def _front(peaks_bytes: FloatArray, speeds: FloatArray, is_measured: BoolArray) -> IntArray:
    """Indices of the front, peaks and speeds ascending, thinned out evenly where it is long."""
    order = np.lexsort((~is_measured, -speeds, peaks_bytes))
    best = np.maximum.accumulate(speeds[order])
    front: IntArray = order[np.concatenate([[True], speeds[order][1:] > best[:-1]])]
    if len(front) <= _MOST_POINTS:
        return front
    kept = np.linspace(0, len(front) - 1, _MOST_POINTS).astype(np.int64)
    return front[np.union1d(kept, np.flatnonzero(is_measured[front]))]


def _fewest(peaks: FloatArray, speeds: FloatArray, fixed: BoolArray, *, cap_bytes: float, area: float) -> IntArray:
    """Indices of the fewest points that are not fixed and cover the area together with those that are.

    ``best[i]`` is the most area left of point i, with point i taken and so many points added; one more round adds one
    more point. A step from i to j covers ``speeds[i] * (peaks[j] - peaks[i])``, and no fixed point lies between them.
    """
    num_points = len(peaks)
    num_fixed_before = np.concatenate([[0], np.cumsum(fixed)])
    between = num_fixed_before[None, :-1] - num_fixed_before[1:, None]
    allowed = (between == 0) & (np.arange(num_points)[:, None] < np.arange(num_points)[None, :])
    step = np.where(allowed, speeds[:, None] * (peaks[None, :] - peaks[:, None]), -np.inf)
    may_begin = num_fixed_before[:-1] == 0
    may_end = num_fixed_before[-1] == num_fixed_before[1:]
    before = np.full(num_points, -np.inf)
    came_from: list[IntArray] = []
    for added in range(_MOST_ADDED + 1):
        best = np.full(num_points, -np.inf)
        origin = np.full(num_points, -1, dtype=np.int64)
        for j in range(num_points):
            if may_begin[j] and added == (0 if fixed[j] else 1):
                best[j] = 0.0
            # A fixed point is reached within this round, any other one from the round before.
            reached = (best if fixed[j] else before)[:j] + step[:j, j]
            if len(reached) and reached.max() > best[j]:
                origin[j] = int(reached.argmax())
                best[j] = reached[origin[j]]
        came_from.append(origin)
        total = np.where(may_end, best + speeds * (cap_bytes - peaks), -np.inf)
        if total.max() >= area or added == _MOST_ADDED:
            return _walk_back(int(total.argmax()), came_from, fixed)
        before = best
    raise AssertionError("the last round returns")


def _walk_back(last: int, came_from: list[IntArray], fixed: BoolArray) -> IntArray:
    chosen: list[int] = []
    added = len(came_from) - 1
    point = last
    while point >= 0:
        origin = int(came_from[added][point])
        if not fixed[point]:
            chosen.append(point)
            added -= 1
        if added < 0:
            break
        point = origin
    return np.array(chosen[::-1], dtype=np.int64)

"""How studies share one cluster: each claims a share by its weight and keeps to it. A small actor holds the claims."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray

#: Name and namespace of the actor; any study that finds none starts it, and it stays for those to come.
_ACTOR, _NAMESPACE = "recompute-tuner-shares", "recompute-tuner"
#: Seconds after which a study that has not spoken is taken for gone.
CLAIM_LIFETIME_S = 30.0
#: Seconds between two looks at one's share.
_REFRESH_S = 2.0


@dataclass(frozen=True)
class Claim:
    """What a study wants of the cluster.

    Attributes:
        priority: Weight against other studies.
        max_trials: Trials at once that it may run at most; None is no limit of its own.
    """

    priority: float = 1.0
    max_trials: int | None = None


def fair_shares(claims: Mapping[str, Claim], num_slots: int) -> dict[str, int]:
    """Trials that each study may run at once: in proportion to priority, what one cannot use goes to the others.

    Each gets at least one, so more studies than slots wait for one another. Of equal claims the first named gains by
    rounding.
    """
    shares = {name: float(num_slots) for name in claims}
    open_claims = dict(claims)
    left = float(num_slots)
    while open_claims:
        weight = sum(claim.priority for claim in open_claims.values())
        ideal = {name: left * claim.priority / weight for name, claim in open_claims.items()}
        full = {
            n: c.max_trials for n, c in open_claims.items() if c.max_trials is not None and c.max_trials <= ideal[n]
        }
        if not full:
            shares.update(ideal)
            break
        for name, limit in full.items():
            shares[name] = float(limit)
            left -= limit
            del open_claims[name]
    return _in_whole_slots(shares, claims, num_slots)


def _in_whole_slots(shares: Mapping[str, float], claims: Mapping[str, Claim], num_slots: int) -> dict[str, int]:
    whole = {name: max(1, math.floor(share)) for name, share in shares.items()}
    by_remainder = sorted(shares, key=lambda name: math.floor(shares[name]) - shares[name])
    for name in by_remainder:
        limit = claims[name].max_trials
        if sum(whole.values()) < num_slots and (limit is None or whole[name] < limit) and shares[name] > whole[name]:
            whole[name] += 1
    while sum(whole.values()) > max(num_slots, len(whole)):  # Those that were given their one took it from the largest.
        whole[max(whole, key=lambda name: whole[name])] -= 1
    return whole


class ShareBook:
    """Claims of the studies that run now. Lives as an actor; studies that fall silent are forgotten.

    Args:
        lifetime_s: Seconds that a claim holds unless it is renewed.
    """

    def __init__(self, lifetime_s: float = CLAIM_LIFETIME_S) -> None:
        self._lifetime_s = lifetime_s
        self._claims: dict[str, tuple[Claim, float]] = {}

    def claim(self, study: str, claim: Claim, num_slots: int) -> int:
        """Enters or renews a claim; the trials that the study may run at once, of ``num_slots`` that would fit."""
        now = time.monotonic()
        self._claims[study] = claim, now
        self._claims = {name: kept for name, kept in self._claims.items() if now - kept[1] <= self._lifetime_s}
        return fair_shares({name: kept for name, (kept, _) in self._claims.items()}, num_slots)[study]

    def leave(self, study: str) -> None:
        self._claims.pop(study, None)


class ClusterShare:
    """One study's side of the book.

    Args:
        study: Unlike any other study's on the cluster.
    """

    def __init__(self, study: str, claim: Claim) -> None:
        self._study = study
        self._claim = claim
        self._book: Any = None
        self._share: int | None = None
        self._asked_at = -math.inf
        self._num_slots = 0

    def num_trials(self, num_slots: int) -> int:
        """Trials that the study may run at once, of ``num_slots`` that would fit were it alone."""
        limit = num_slots if self._claim.max_trials is None else min(num_slots, self._claim.max_trials)
        now = time.monotonic()
        if self._share is None or num_slots != self._num_slots or now - self._asked_at >= _REFRESH_S:
            self._share = self._ask(num_slots)
            self._asked_at, self._num_slots = now, num_slots
        return min(limit, self._share)

    def leave(self) -> None:
        """Gives the share back; may be called twice."""
        if self._book is not None:
            self._book.leave.remote(self._study)
            self._book = None

    def _ask(self, num_slots: int) -> int:
        try:
            if self._book is None:
                self._book = _find_book()
            share: int = ray.get(self._book.claim.remote(self._study, self._claim, num_slots), timeout=CLAIM_LIFETIME_S)
        except (ray.exceptions.RayError, ValueError):
            # The book's node is gone, or two studies started it at once: found or started anew at the next look.
            self._book = None
            return num_slots if self._share is None else min(self._share, num_slots)
        return share


def _find_book() -> Any:
    book_class: Any = ray.remote(num_cpus=0, max_restarts=-1)(ShareBook)
    return book_class.options(
        name=_ACTOR, namespace=_NAMESPACE, lifetime="detached", get_if_exists=True, max_concurrency=1
    ).remote()

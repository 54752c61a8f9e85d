"""Rigs for policies in turn: one for all that divide the model over its ranks alike."""

from __future__ import annotations

from runners.rig import Rig
from runners.worker_session import WorkerSession
from search_spaces.policy import RecomputePolicy


class RigsByDivision:
    """Makes a rig when a policy comes that none of those before can take."""

    def __init__(self, session: WorkerSession) -> None:
        self._session = session
        self._rigs: list[Rig] = []

    def placed(self, policy: RecomputePolicy) -> Rig:
        """A rig with this policy in force; until the next call, which may place another one on it."""
        rig = next((rig for rig in self._rigs if rig.takes(policy)), None)
        if rig is None:
            rig = self._session.rig(policy)
            self._rigs.append(rig)
        else:
            rig.place(policy)
        return rig

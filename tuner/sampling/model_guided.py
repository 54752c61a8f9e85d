"""An Optuna sampler that measures where its models of time and memory say that it matters most."""

from __future__ import annotations

from collections.abc import Sequence

from optuna.study import Study
from optuna.trial import FrozenTrial

from search_spaces.base import SearchSpace
from search_spaces.parameters import ParameterValue
from search_spaces.policy import RecomputePolicy
from tuner.prediction.next_policy import NextPolicy, NothingToGain, PolicyProposer
from tuner.sampling.policy_sampler import NoGainExpected, PolicySampler
from tuner.sampling.tried_policies import TriedPolicies


class ModelGuidedSampler(PolicySampler):
    """Proposes what a `PolicyProposer` answers.

    Its state is the study: for every trial the models are fitted anew to what the study's trials have measured, those
    in flight included, so a resumed study goes on as if it had not been interrupted, and workers in parallel are given
    different policies.
    """

    def __init__(self, space: SearchSpace, proposer: PolicyProposer, tried: TriedPolicies, *, seed: int) -> None:
        super().__init__(space, seed=seed)
        self._proposer = proposer
        self._tried = tried
        self._next: RecomputePolicy | None = None

    def raise_if_exhausted(self, trials: Sequence[FrozenTrial]) -> None:
        """Settles what the next trial will try; to be called before it is asked for.

        Args:
            trials: All of the study, in order of number.

        Raises:
            NoGainExpected: Nothing is worth another trial, as long as no further result comes in.
        """
        self._taken.update(trials)
        freed = self._taken.freed()
        if freed:
            self._next = freed[0]
            return
        answer = self._answer(trials, len(trials))
        if isinstance(answer, NothingToGain):
            raise NoGainExpected(_reason(answer))
        self._next = answer.policy

    def _untried_point(self, study: Study, trial: FrozenTrial) -> dict[str, ParameterValue]:
        if self._next is None:
            # Asked by plain Optuna, without the question before.
            others = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
            self.raise_if_exhausted(others)
        policy, self._next = self._next, None
        assert policy is not None, "raise_if_exhausted has settled it or raised"
        return self._space.encode(policy)

    def _answer(self, trials: Sequence[FrozenTrial], trial_number: int) -> NextPolicy | NothingToGain:
        tried = self._tried.read(trials)
        return self._proposer.propose(tried, self._taken.__contains__, seed=self._seed_of(trial_number))


def _reason(answer: NothingToGain) -> str:
    if answer.gain is None:
        shared = " without an action or a micro-batch size that only went wrong" if answer.avoids else ""
        return f"no untried placement{shared} is predicted to fit under the cap"
    return (
        f"no further trial is expected to gain: the most promising untried placement would save {answer.gain:.1%} of a "
        f"step, and the measured front covers {answer.front_covered:.1%} of the predicted one"
    )

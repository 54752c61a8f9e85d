"""The axes that a search space has beside its placements: micro-batch, RNG state, sharding, the compiler's budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from search_spaces.choices import DEFAULT_BUDGET, Placements, SearchChoices
from search_spaces.parameters import Choice, Parameter, ParameterValue
from search_spaces.policy import BatchShape, RecomputePolicy

MICRO_BATCH_SIZE = "micro_batch_size"
PRESERVE_RNG_STATE = "preserve_rng_state"
RESHARD_AFTER_FORWARD = "reshard_after_forward"
COMPILE_MEMORY_BUDGET = "compile_memory_budget"


class BatchAxes:
    """All of them that one search has."""

    def __init__(self, choices: SearchChoices) -> None:
        self._choices = choices

    def parameters(self) -> list[Parameter]:
        sizes = tuple(sorted(batch.micro_batch_size for batch in self._choices.batches))
        parameters: list[Parameter] = [Choice(MICRO_BATCH_SIZE, sizes)]
        if len(self._choices.rng_choices) > 1:
            parameters.append(Choice(PRESERVE_RNG_STATE, self._choices.rng_choices))
        if len(self._choices.reshard_choices) > 1:
            parameters.append(Choice(RESHARD_AFTER_FORWARD, (True, False)))
        if len(self._choices.budget_choices) > 1:
            parameters.append(Choice(COMPILE_MEMORY_BUDGET, self._choices.budget_choices))
        return parameters

    def decode(self, values: Mapping[str, ParameterValue], placements: Placements) -> RecomputePolicy:
        """The policy of these placements under the values of the axes; a budget stands in place of all placements."""
        batch = self._choices.batch(int(values[MICRO_BATCH_SIZE]))
        budget = float(values.get(COMPILE_MEMORY_BUDGET, DEFAULT_BUDGET))
        if budget != DEFAULT_BUDGET:
            return self._choices.budget_policy(batch, budget)
        preserve = bool(values.get(PRESERVE_RNG_STATE, self._choices.rng_choices[0]))
        reshard = values.get(RESHARD_AFTER_FORWARD, self._choices.reshard_choices[0])
        return RecomputePolicy(
            batch, placements, preserve, reshard_after_forward=None if reshard is None else bool(reshard)
        ).canonical()

    def encode(self, policy: RecomputePolicy) -> dict[str, ParameterValue]:
        """Values of the axes.

        Raises:
            ValueError: This search does not try the policy's batch, its handling of RNG state, or its sharding.
        """
        values: dict[str, ParameterValue] = {MICRO_BATCH_SIZE: self._allowed_micro_batch_size(policy.batch)}
        if len(self._choices.rng_choices) > 1:
            values[PRESERVE_RNG_STATE] = policy.preserve_rng_state
        elif policy.recomputes and policy.preserve_rng_state not in self._choices.rng_choices:
            raise ValueError(
                f"preserve_rng_state is {policy.preserve_rng_state}; this search tries {self._choices.rng_choices[0]} "
                "only"
            )
        reshard = policy.reshard_after_forward is not False
        if len(self._choices.reshard_choices) > 1:
            values[RESHARD_AFTER_FORWARD] = reshard
        elif reshard is not (self._choices.reshard_choices[0] is not False):
            raise ValueError(f"reshard_after_forward is {reshard}; this search tries {not reshard} only")
        if len(self._choices.budget_choices) > 1:
            values[COMPILE_MEMORY_BUDGET] = self._allowed_budget(policy)
        elif policy.compile_memory_budget is not None:
            raise ValueError(f"compile_memory_budget is {policy.compile_memory_budget:g}; this search tries none")
        return values

    def policies(self, placements: Placements) -> Iterator[RecomputePolicy]:
        """Every distinct policy of these placements.

        Without recompute there is one way to handle RNG state, and the compiler's budgets are tried.
        """
        recomputes = any(of_list.regions for of_list in placements)
        for batch in self._choices.batches:
            for preserve in self._choices.rng_choices if recomputes else (True,):
                for reshard in self._choices.reshard_choices:
                    yield RecomputePolicy(batch, placements, preserve, reshard_after_forward=reshard).canonical()
            for budget in () if recomputes else self._choices.budget_choices[1:]:
                yield self._choices.budget_policy(batch, budget)

    def _allowed_budget(self, policy: RecomputePolicy) -> float:
        budget = DEFAULT_BUDGET if policy.compile_memory_budget is None else policy.compile_memory_budget
        allowed = ", ".join(f"{each:g}" for each in self._choices.budget_choices)
        if budget not in self._choices.budget_choices:
            raise ValueError(f"compile_memory_budget is {budget:g}; this search tries {allowed}")
        if budget != DEFAULT_BUDGET and policy.recomputes:
            raise ValueError(f"compile_memory_budget is {budget:g} beside a placement; this search tries one of both")
        return budget

    def _allowed_micro_batch_size(self, batch: BatchShape) -> int:
        if batch not in self._choices.batches:
            allowed = ", ".join(str(b.micro_batch_size) for b in self._choices.batches)
            raise ValueError(
                f"micro_batch_size is {batch.micro_batch_size} of global_batch_size {batch.global_batch_size} on "
                f"{batch.data_parallel_degree} ranks; this search tries {allowed} of {self._choices.global_batch_size} "
                f"on {self._choices.data_parallel_degree}"
            )
        return batch.micro_batch_size

"""A search space over a list of placements, for searches that may not combine actions freely."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from search_spaces.choices import Placements, SearchChoices
from search_spaces.parameters import Choice, Integer, Parameter, ParameterValue
from search_spaces.policy import NONE, BatchShape, RecomputePolicy
from search_spaces.product_space import MICRO_BATCH_SIZE, PRESERVE_RNG_STATE
from search_spaces.uniform import uniform_placements

PLACEMENT = "placement"


class ListedSpace:
    """Every combination of micro-batch, RNG handling and one of the allowed placements; a :class:`SearchSpace`.

    A placement is named by its position in the list, which begins with those that recompute least: an optimizer can
    make something of that order.
    """

    def __init__(self, choices: SearchChoices) -> None:
        """Stores choices with ``allowed`` placements."""
        assert choices.allowed, "a space of listed placements needs a list"
        self._choices = choices
        self._listed = choices.allowed
        self._index = {placements: index for index, placements in enumerate(self._listed)}

    def parameters(self) -> tuple[Parameter, ...]:
        sizes = tuple(sorted(batch.micro_batch_size for batch in self._choices.batches))
        parameters: list[Parameter] = [Choice(MICRO_BATCH_SIZE, sizes)]
        if len(self._choices.rng_choices) > 1:
            parameters.append(Choice(PRESERVE_RNG_STATE, self._choices.rng_choices))
        if len(self._listed) > 1:
            parameters.append(Integer(PLACEMENT, 0, len(self._listed) - 1))
        return tuple(parameters)

    def decode(self, values: Mapping[str, ParameterValue]) -> RecomputePolicy:
        preserve = bool(values.get(PRESERVE_RNG_STATE, self._choices.rng_choices[0]))
        batch = self._choices.batch(int(values[MICRO_BATCH_SIZE]))
        return RecomputePolicy(batch, self._listed[int(values.get(PLACEMENT, 0))], preserve).canonical()

    def encode(self, policy: RecomputePolicy) -> dict[str, ParameterValue]:
        values: dict[str, ParameterValue] = {MICRO_BATCH_SIZE: self._allowed_micro_batch_size(policy.batch)}
        if len(self._choices.rng_choices) > 1:
            values[PRESERVE_RNG_STATE] = policy.preserve_rng_state
        elif policy.recomputes and policy.preserve_rng_state not in self._choices.rng_choices:
            raise ValueError(
                f"preserve_rng_state is {policy.preserve_rng_state}; this search tries {self._choices.rng_choices[0]} "
                "only"
            )
        index = self._index.get(self._in_order(policy))
        if index is None:
            raise ValueError(
                f"placement {policy.summary()} is none of the {len(self._listed)} placements that this search tries"
            )
        return values if len(self._listed) == 1 else {**values, PLACEMENT: index}

    def policies(self) -> Iterator[RecomputePolicy]:
        """Every distinct policy once: first one action on all blocks, then the others, least recompute first."""
        uniform = dict.fromkeys(uniform_placements(self._choices).values())
        for placements in (*uniform, *(listed for listed in self._listed if listed not in uniform)):
            recomputes = any(of_list.regions for of_list in placements)
            for batch in self._choices.batches:
                for preserve in self._choices.rng_choices if recomputes else (True,):
                    yield RecomputePolicy(batch, placements, preserve).canonical()

    def count_up_to(self, limit: int) -> int:
        """The number of distinct policies, or ``limit`` where there are more."""
        num_plain = sum(not any(of_list.regions for of_list in listed) for listed in self._listed)
        per_batch = num_plain + (len(self._listed) - num_plain) * len(self._choices.rng_choices)
        return min(limit, per_batch * len(self._choices.batches))

    def _allowed_micro_batch_size(self, batch: BatchShape) -> int:
        if batch not in self._choices.batches:
            allowed = ", ".join(str(b.micro_batch_size) for b in self._choices.batches)
            raise ValueError(
                f"micro_batch_size is {batch.micro_batch_size} of global_batch_size {batch.global_batch_size} on "
                f"{batch.data_parallel_degree} ranks; this search tries {allowed} of {self._choices.global_batch_size} "
                f"on {self._choices.data_parallel_degree}"
            )
        return batch.micro_batch_size

    def _in_order(self, policy: RecomputePolicy) -> Placements:
        """The policy's placements in the order of the model's lists; those it does not place are plain ones."""
        by_path = {placement.blocks: placement.canonical() for placement in policy.placement}
        plain = {
            of_list.blocks.path: of_list.place([NONE] * of_list.num_modules) for of_list in self._choices.block_lists
        }
        unknown = sorted(by_path.keys() - plain.keys())
        if unknown:
            raise ValueError(
                f"placement: {unknown[0]} is no list of this model; place exactly {', '.join(plain) or 'nothing'}"
            )
        return tuple(by_path.get(path, of_list) for path, of_list in plain.items())

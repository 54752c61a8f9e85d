"""What every encoding of policies must hold, tried on each one that the registry knows."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.ablation import plain_policies
from search_spaces.choices import SearchChoices, every_micro_batch_size
from search_spaces.model_shape import BlockList, ModelShape
from search_spaces.parameters import Choice, Integer, Parameter, ParameterValue
from search_spaces.product_space import ProductSpace
from search_spaces.registry import ENCODINGS, make_space

UNITS = (("attention", "attn"), ("mlp", "mlp"))
ACTIONS = ("none", "attention", "mlp", "attention+mlp", "block", "segment")


@st.composite
def block_lists(draw: st.DrawFn, path: str) -> BlockList:
    num_blocks = draw(st.integers(1, 7))
    units = draw(st.sampled_from([(), UNITS[:1], UNITS]))
    refusal = draw(st.sampled_from([None, "code runs between its blocks"]))
    positions = st.lists(st.integers(0, num_blocks - 1), min_size=2, max_size=3, unique=True).map(tuple)
    aliases = draw(st.lists(positions, max_size=1)) if num_blocks > 1 else []
    return BlockList(path, "Block", num_blocks, units, tuple(aliases), refusal)


@st.composite
def searches(draw: st.DrawFn) -> SearchChoices:
    num_lists = draw(st.integers(0, 2))
    shape = ModelShape(1000, tuple(draw(block_lists(f"stage{i}.blocks")) for i in range(num_lists)))
    compiled = draw(st.sampled_from([None, "model", "blocks"] if num_lists else [None, "model"]))
    budgets = st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=2, unique=True).map(tuple)
    return SearchChoices(
        shape,
        global_batch_size=36,
        micro_batch_sizes=tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3, unique=True))),
        actions=tuple(draw(st.lists(st.sampled_from(ACTIONS), min_size=1, unique=True))),
        segment_sizes=draw(st.none() | st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)),
        preserve_rng_state=draw(st.sampled_from([True, False, "search"])),
        data_parallel_degree=draw(st.sampled_from([1, 3])),
        compile=compiled,
        compile_memory_budgets=() if compiled is None else draw(budgets),
    )


def allowed_values(parameter: Parameter) -> tuple[ParameterValue, ...]:
    return tuple(range(parameter.low, parameter.high + 1)) if isinstance(parameter, Integer) else parameter.choices


@st.composite
def points(draw: st.DrawFn) -> tuple[SearchChoices, dict[str, dict[str, ParameterValue]]]:
    """A search, and for each encoding values of its parameters."""
    search = draw(searches())
    values = {
        encoding: {p.name: draw(st.sampled_from(allowed_values(p))) for p in make_space(encoding, search).parameters()}
        for encoding in ENCODINGS
    }
    return search, values


def decode_everything(space: ProductSpace) -> set[str]:
    parameters = space.parameters()
    names = [p.name for p in parameters]
    return {
        space.decode(dict(zip(names, values, strict=True))).key
        for values in product(*(allowed_values(p) for p in parameters))
    }


def num_combinations(space: ProductSpace) -> int:
    return math.prod(len(allowed_values(p)) for p in space.parameters())


@pytest.mark.parametrize("encoding", ENCODINGS)
class TestEveryEncoding:
    @settings(deadline=None, max_examples=100, derandomize=True)
    @given(point=points())
    def test_every_combination_of_values_is_a_canonical_policy_that_encodes_back(
        self, encoding: str, point: tuple[SearchChoices, dict[str, dict[str, ParameterValue]]]
    ) -> None:
        search, values = point
        space = make_space(encoding, search)
        policy = space.decode(values[encoding])
        assert policy == policy.canonical()
        encoded = space.encode(policy)
        assert space.decode(encoded) == policy
        allowed = {p.name: allowed_values(p) for p in space.parameters()}
        assert encoded.keys() == allowed.keys()
        assert all(value in allowed[name] for name, value in encoded.items())

    @settings(deadline=None, max_examples=100, derandomize=True)
    @given(point=points())
    def test_positions_of_one_module_get_one_action(
        self, encoding: str, point: tuple[SearchChoices, dict[str, dict[str, ParameterValue]]]
    ) -> None:
        search, values = point
        policy = make_space(encoding, search).decode(values[encoding])
        actions = {placement.blocks: placement.actions() for placement in policy.placement}
        for blocks in search.shape.block_lists:
            for group in blocks.aliases:
                assert len({actions[blocks.path][position] for position in group}) == 1

    @settings(deadline=None, max_examples=25, derandomize=True)
    @given(search=searches())
    def test_policies_are_distinct_and_exactly_what_decodes(self, encoding: str, search: SearchChoices) -> None:
        space = make_space(encoding, search)
        keys = [policy.key for policy in islice(space.policies(), 600)]
        assert len(keys) == len(set(keys))
        assert space.count_up_to(600) == len(keys)
        if num_combinations(space) <= 1500:
            assert set(keys) == decode_everything(space)

    @pytest.mark.parametrize("actions", [("none", "block", "segment"), ("segment", "mlp")], ids="-".join)
    @pytest.mark.parametrize("segment_sizes", [(2,), (3,), (1, 2), (2, 3)], ids=str)
    @pytest.mark.parametrize("num_blocks", range(1, 6))
    def test_segments_meet_their_neighbours_without_repeats(
        self, encoding: str, num_blocks: int, segment_sizes: tuple[int, ...], actions: tuple[str, ...]
    ) -> None:
        shape = ModelShape(1, (BlockList("h", "Block", num_blocks, UNITS),))
        space = make_space(encoding, SearchChoices(shape, 1, (1,), actions, segment_sizes))
        policies = list(space.policies())
        assert len({policy.key for policy in policies}) == len(policies) == space.count_up_to(10_000)
        assert {policy.key for policy in policies} == decode_everything(space)
        assert all(space.decode(space.encode(policy)) == policy for policy in policies)

    @settings(deadline=None, max_examples=25, derandomize=True)
    @given(search=searches())
    def test_policies_come_in_one_order_and_all_encode(self, encoding: str, search: SearchChoices) -> None:
        first = list(islice(make_space(encoding, search).policies(), 200))
        space = make_space(encoding, search)
        assert list(islice(space.policies(), 200)) == first
        assert all(space.decode(space.encode(policy)) == policy for policy in first[:50])

    @settings(deadline=None, max_examples=25, derandomize=True)
    @given(search=searches())
    def test_plain_policies_are_points_of_the_space(self, encoding: str, search: SearchChoices) -> None:
        space = make_space(encoding, search)
        for policy in plain_policies(search):
            assert space.decode(space.encode(policy)) == policy

    def test_parameters_are_the_same_ones_each_time(self, encoding: str) -> None:
        space = make_space(encoding, deep_search())
        assert space.parameters() == space.parameters()
        names = [p.name for p in space.parameters()]
        assert len(names) == len(set(names))
        assert all(len(p.choices) == len(set(p.choices)) for p in space.parameters() if isinstance(p, Choice))

    def test_four_deep_lists_are_enumerated_lazily(self, encoding: str) -> None:
        space = make_space(encoding, deep_search())
        assert len({policy.key for policy in islice(space.policies(), 500)}) == 500
        assert space.count_up_to(500) == 500

    def test_uniform_placements_come_first_at_every_micro_batch(self, encoding: str) -> None:
        search = deep_search()
        first = list(islice(make_space(encoding, search).policies(), 6 * len(search.micro_batch_sizes)))
        assert [policy.batch.micro_batch_size for policy in first[:4]] == [8, 4, 2, 1]
        assert not any(policy.recomputes for policy in first[:4])
        for policy in first:
            assert len({action for placement in policy.placement for action in placement.actions()}) == 1

    def test_a_policy_of_another_model_is_refused_by_name(self, encoding: str) -> None:
        other = SearchChoices(
            ModelShape(1, (BlockList("encoder.layer", "Layer", 4, UNITS),)), 8, (8,), ACTIONS, segment_sizes=(2,)
        )
        policy = next(make_space(encoding, other).policies())
        space = make_space(encoding, deep_search())
        with pytest.raises(ValueError, match=r"placement: encoder\.layer is no list of this model; place exactly"):
            space.encode(policy)

    def test_a_micro_batch_that_is_not_tried_is_refused_with_those_that_are(self, encoding: str) -> None:
        policy = next(make_space(encoding, small_search((8,))).policies())
        with pytest.raises(ValueError, match=r"micro_batch_size is 8 .* this search tries 4, 2 of 8"):
            make_space(encoding, small_search((2, 4))).encode(policy)

    def test_budgets_of_the_compiler_stand_in_place_of_placements(self, encoding: str) -> None:
        search = replace(small_search((4, 8)), compile="model", compile_memory_budgets=(0.25, 0.5))
        policies = list(make_space(encoding, search).policies())
        within = [policy for policy in policies if policy.compile_memory_budget is not None]
        assert [(p.batch.micro_batch_size, p.compile_memory_budget) for p in within] == [
            (8, 0.5),
            (8, 0.25),
            (4, 0.5),
            (4, 0.25),
        ]
        assert not any(policy.recomputes for policy in within)
        assert len(policies) == len(list(make_space(encoding, small_search((4, 8))).policies())) + len(within)

    def test_budgets_that_are_not_tried_are_refused(self, encoding: str) -> None:
        search = replace(small_search((8,)), compile="model", compile_memory_budgets=(0.5,))
        space = make_space(encoding, search)
        plain = search.policy(search.batches[0], search.plain_placements)
        everywhere = next(policy for policy in space.policies() if policy.recomputes)
        for policy, said in (
            (replace(plain, compile="model", compile_memory_budget=0.2), r"is 0\.2; this search tries 1, 0\.5"),
            (replace(everywhere, compile="model", compile_memory_budget=0.5), "is 0.5 beside a placement"),
        ):
            with pytest.raises(ValueError, match=f"^compile_memory_budget {said}"):
                space.encode(policy)
        with pytest.raises(ValueError, match=r"^compile_memory_budget is 0\.5; this search tries none"):
            make_space(encoding, small_search((8,))).encode(search.budget_policy(search.batches[0], 0.5))

    def test_an_action_that_is_not_tried_is_refused_with_its_first_block(self, encoding: str) -> None:
        policy = list(make_space(encoding, small_search((8,), actions=("none", "mlp"))).policies())[-1]
        with pytest.raises(ValueError, match=r"h: block \d has action mlp; this search tries none, block"):
            make_space(encoding, small_search((8,), actions=("none", "block"))).encode(policy)


def deep_search() -> SearchChoices:
    """Like a large vision model: four lists of unequal depth."""
    shape = ModelShape(1, tuple(BlockList(f"stage{i}", "Block", n, UNITS) for i, n in enumerate((3, 24, 36, 126))))
    return SearchChoices(shape, 8, every_micro_batch_size(8), ACTIONS)


def small_search(micro_batch_sizes: tuple[int, ...], actions: tuple[str, ...] = ACTIONS) -> SearchChoices:
    return SearchChoices(ModelShape(1, (BlockList("h", "Block", 4, UNITS),)), 8, micro_batch_sizes, actions)


def test_an_unknown_encoding_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="encoding 'two_actions' is unknown; known are two_action, per_block"):
        make_space("two_actions", small_search((8,)))


@settings(deadline=None, max_examples=25, derandomize=True)
@given(search=searches())
def test_per_block_can_say_whatever_two_action_can(search: SearchChoices) -> None:
    superset = make_space("per_block", search)
    for policy in islice(make_space("two_action", search).policies(), 40):
        assert superset.decode(superset.encode(policy)) == policy

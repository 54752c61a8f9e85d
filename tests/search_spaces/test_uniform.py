from __future__ import annotations

from search_spaces.choices import SearchChoices
from search_spaces.model_shape import BlockList, ModelShape
from search_spaces.policy import Region
from search_spaces.uniform import uniform_placements

UNITS = (("attention", "attn"), ("mlp", "mlp"))


def test_a_list_that_cannot_take_the_action_keeps_everything() -> None:
    lists = (BlockList("encoder", "Layer", 4, UNITS), BlockList("stem", "Stage", 2))
    placements = uniform_placements(SearchChoices(ModelShape(1, lists), 8, (8,), ("none", "mlp", "block")))
    assert list(placements) == ["none", "mlp", "block"]
    assert [placement.regions for placement in placements["mlp"]] == [(Region(0, 3, "mlp"),), ()]
    assert [placement.regions for placement in placements["block"]] == [
        (Region(0, 3, "block"),),
        (Region(0, 1, "block"),),
    ]


def test_an_action_that_no_list_can_take_is_left_out() -> None:
    lists = (BlockList("stem", "Stage", 2),)
    assert list(uniform_placements(SearchChoices(ModelShape(1, lists), 8, (8,), ("none", "mlp")))) == ["none"]


def test_each_list_takes_segments_of_about_the_root_of_its_depth() -> None:
    lists = (BlockList("encoder", "Layer", 16), BlockList("decoder", "Layer", 4))
    placements = uniform_placements(SearchChoices(ModelShape(1, lists), 8, (8,), ("none", "segment")))
    assert [p.regions[0].segment_size for p in placements["segment"]] == [4, 2]

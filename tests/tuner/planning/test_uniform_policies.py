from __future__ import annotations

from search_spaces.choices import SearchChoices
from search_spaces.model_shape import BlockList, ModelShape
from tuner.planning.uniform_policies import uniform_policies

UNITS = (("attention", "attn"), ("mlp", "mlp"))


def choices(*lists: BlockList, **changes: object) -> SearchChoices:
    actions = ("none", "attention", "block", "segment")
    arguments: dict[str, object] = {"micro_batch_sizes": (1, 2), "actions": actions, "segment_sizes": (2, 3)}
    return SearchChoices(ModelShape(1, lists), global_batch_size=2, **{**arguments, **changes})  # type: ignore[arg-type]


def summaries(searched: SearchChoices) -> dict[str, list[str]]:
    return {action: [p.summary() for p in policies] for action, policies in uniform_policies(searched).items()}


def test_each_action_and_each_size_of_segment_at_each_micro_batch() -> None:
    assert summaries(choices(BlockList("h", "Block", 4, UNITS))) == {
        "none": ["none @2x1", "none @1x2"],
        "attention": ["attention @2x1", "attention @1x2"],
        "block": ["block @2x1", "block @1x2"],
        "segment(2)": ["segment(2) @2x1", "segment(2) @1x2"],
        "segment(3)": ["segment(3) @2x1", "segment(3) @1x2"],
    }


def test_a_list_that_cannot_take_an_action_keeps_everything() -> None:
    without_units = BlockList("g", "Other", 2, (), segment_refusal="it skips")
    found = summaries(choices(BlockList("h", "Block", 4, UNITS), without_units, micro_batch_sizes=(2,)))
    assert found["attention"] == ["h: attention @2x1"]
    assert found["segment(2)"] == ["h: segment(2) @2x1"]


def test_a_list_takes_the_possible_size_nearest_to_the_wanted_one() -> None:
    found = summaries(choices(BlockList("h", "Block", 4, UNITS), BlockList("g", "Other", 2, UNITS)))
    assert found["segment(3)"][0] == "g: segment(2); h: segment(3) @2x1"

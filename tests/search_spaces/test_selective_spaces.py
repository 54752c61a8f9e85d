from __future__ import annotations

from itertools import islice

import pytest

from search_spaces.choices import SearchChoices
from search_spaces.model_shape import BlockList, KeepSet, ModelShape
from search_spaces.registry import ENCODINGS, make_space

KEEP_SETS = (
    KeepSet("selective", ("aten.mm.default[0]",)),
    KeepSet("selective", ("aten.bmm.default", "aten.mm.default")),
)
UNITS = (("activation", "mlp..mlp.down"), ("attention", "attn"))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_policies_with_keep_sets_and_inner_units_encode_back(encoding: str) -> None:
    blocks = BlockList("h", "Block", 3, UNITS, keep_sets=KEEP_SETS)
    actions = ("none", "activation+attention", "selective", "selective:aten.add.Tensor", "block", "segment")
    space = make_space(encoding, SearchChoices(ModelShape(1, (blocks,)), 2, (1, 2), actions))
    policies = list(islice(space.policies(), 300))
    assert all(space.decode(space.encode(policy)) == policy for policy in policies)
    assert {region.keep for policy in policies for p in policy.placement for region in p.regions} == {
        (),
        ("aten.mm.default[0]",),
        ("aten.bmm.default", "aten.mm.default"),
        ("aten.add.Tensor",),
    }

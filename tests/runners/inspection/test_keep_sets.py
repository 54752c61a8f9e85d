from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from runners.inspection.keep_sets import find_keep_sets, sets_worth_keeping
from runners.inspection.operator_profile import OperatorCall, OperatorProfile, profile_operators
from search_spaces.model_shape import KeepSet

WIDTH = 16
ROWS = 8
ROW_BYTES = WIDTH * 4


def call(
    name: str, number: int = 0, *, mib: int = 1, ms: float = 1.0, rebuilt: bool = True, fresh: bool = True
) -> OperatorCall:
    name = f"aten.{name}.default"
    return OperatorCall(name, number, mib * 2**20, ms / 1e3, rebuilt, fresh, is_product=False, is_attention=False)


def worth(*calls: OperatorCall, saved_mib: int = 100) -> list[set[str]]:
    profile = OperatorProfile(calls, saved_mib * 2**20)
    return [{f"{each.name.split('.')[1]}{each.call}" for each in chosen} for chosen in sets_worth_keeping(profile)]


class TestSetsWorthKeeping:
    def test_take_operators_in_order_of_time_per_byte(self) -> None:
        sets = worth(
            call("cheap", mib=10, ms=1),
            call("dear", mib=1, ms=8),
            call("wide", mib=16, ms=8),
            call("fair", mib=4, ms=8),
        )
        # Of 25 ms: 8 is a share of 0.32, 16 of 0.64, 24 of 0.96.
        assert sets == [{"dear0"}, {"dear0", "fair0"}, {"dear0", "fair0", "wide0"}]

    def test_leave_out_what_no_rebuild_runs_and_what_cannot_be_kept(self) -> None:
        assert worth(call("mm"), call("last", ms=9, rebuilt=False), call("view", ms=9, fresh=False)) == [{"mm0"}]

    def test_leave_out_what_takes_next_to_no_time(self) -> None:
        assert worth(call("mm", ms=10), call("add", ms=0.05)) == [{"mm0"}]

    def test_stop_where_too_much_is_kept(self) -> None:
        assert worth(call("mm", 0, mib=4), call("mm", 1, mib=5), saved_mib=10) == [{"mm0"}]

    def test_are_none_where_nothing_is_worth_it(self) -> None:
        assert worth(call("view", fresh=False)) == []


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        wide = F.relu(self.up(x), inplace=True)
        narrowed: torch.Tensor = self.down(wide)
        return narrowed


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def profile_of(model: nn.Module) -> OperatorProfile:
    profile = profile_operators(model.blocks[1], lambda: model(torch.randn(2, ROWS, WIDTH)))  # type: ignore[index, arg-type]
    assert profile is not None
    return profile


class TestProfile:
    def test_bytes_are_those_of_new_outputs(self) -> None:
        products = [each for each in profile_of(Stack()).calls if each.is_product]
        assert [each.num_bytes for each in products] == [2 * ROWS * ROW_BYTES * factor for factor in (3, 4, 1)]

    def test_the_last_product_is_never_rebuilt(self) -> None:
        products = [each for each in profile_of(Stack()).calls if each.is_product]
        assert [each.is_rebuilt for each in products] == [True, True, False]

    def test_what_is_edited_later_cannot_be_kept(self) -> None:
        products = [each for each in profile_of(Stack()).calls if each.is_product]
        assert [each.can_be_kept for each in products] == [True, False, True]

    def test_nothing_of_the_model_is_changed(self) -> None:
        model = Stack()
        profile_of(model)
        assert [name for name, module in model.named_modules() if "forward" in vars(module)] == []

    def test_a_block_without_gradients_has_none(self) -> None:
        model = Stack()
        with torch.no_grad():
            assert profile_operators(model.blocks[1], lambda: model(torch.randn(2, ROWS, WIDTH))) is None

    def test_without_data_the_products_are_the_dearest(self) -> None:
        with FakeTensorMode():
            model = Stack()
            profile = profile_of(model)
        times = {(each.name.split(".")[1], each.call): each.time_s for each in profile.calls}
        assert times["addmm", 1] > times["addmm", 0] > times["add", 0] > 0


ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu.default"


@pytest.mark.parametrize(
    ("asked", "keep"),
    [
        ("selective:matmuls", ("aten.addmm.default",)),
        ("selective:every_second_matmul", ("aten.addmm.default[::2]",)),
        ("selective:attention", (ATTENTION,)),
        ("selective:attention+matmuls", (ATTENTION, "aten.addmm.default")),
    ],
)
def test_presets_name_the_operators_of_this_device(asked: str, keep: tuple[str, ...]) -> None:
    model = Stack()
    blocks = list(model.blocks)
    found = find_keep_sets(blocks, lambda: model(torch.randn(2, ROWS, WIDTH)), [asked])
    assert found == (KeepSet(asked, keep),)


def test_the_products_of_experts_whose_weights_are_stacked_are_matmuls() -> None:
    transformers = pytest.importorskip("transformers", reason="the model is its own")
    config = transformers.AutoConfig.for_model(
        "mixtral",
        num_hidden_layers=1,
        hidden_size=16,
        intermediate_size=32,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=4,
        vocab_size=32,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, experts_implementation="grouped_mm").train()
    ids = torch.randint(0, 32, (2, 8))
    (found,) = find_keep_sets(
        list(model.model.layers), lambda: model(input_ids=ids, labels=ids), ("selective:matmuls",)
    )
    assert "aten._grouped_mm.default" in found.keep


def test_found_sets_hold_nothing_that_cannot_be_kept() -> None:
    model = Stack()
    found = find_keep_sets(list(model.blocks), lambda: model(torch.randn(2, 64, WIDTH)), ["selective"])
    assert found
    kept = {rule for each in found for rule in each.keep}
    assert kept <= {ATTENTION, "aten.addmm.default[0]", "aten.add.Tensor", "aten.clone.default"}

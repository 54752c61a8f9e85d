from __future__ import annotations

import copy
import inspect
import io
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from placed_gpt import (
    NUM_BLOCKS,
    Recomputes,
    assert_same,
    gradients,
    make_batch,
    make_model,
    make_policy,
    placements,
    surface,
)
from torch import nn

from runners.apply_policy import apply_policy
from runners.workloads.gpt import GPT
from search_spaces.policy import BatchShape, BlockListPlacement, PolicyError, RecomputePolicy, Region


class TestSameTraining:
    @placements
    def test_gradients_equal_those_of_plain_training_to_the_last_bit(self, regions: tuple[Region, ...]) -> None:
        model = make_model()
        batch = make_batch(model)
        plain = gradients(model, batch)
        apply_policy(model, make_policy(*regions))
        assert_same(gradients(model, batch), plain)

    @placements
    def test_random_stream_afterwards_is_that_of_plain_training(self, regions: tuple[Region, ...]) -> None:
        model = make_model()
        batch = make_batch(model)
        gradients(model, batch)
        plain = torch.rand(3)
        apply_policy(model, make_policy(*regions))
        gradients(model, batch)
        assert torch.equal(torch.rand(3), plain)

    def test_gradients_differ_where_dropout_is_not_replayed(self) -> None:
        model = make_model()
        batch = make_batch(model)
        plain = gradients(model, batch)
        apply_policy(model, make_policy(Region(0, 4, "block"), rng=False))
        other = gradients(model, batch)
        distance = torch.cat([(plain[name] - other[name]).flatten() for name in plain]).norm()
        assert distance > 0.1 * torch.cat([g.flatten() for g in plain.values()]).norm()

    def test_gradients_are_equal_without_replay_where_nothing_is_random(self) -> None:
        model = make_model(dropout=0.0)
        batch = make_batch(model)
        plain = gradients(model, batch)
        apply_policy(model, make_policy(Region(0, 4, "block"), rng=False))
        assert_same(gradients(model, batch), plain)

    def test_tied_weights_stay_tied_and_keep_their_whole_gradient(self) -> None:
        model = make_model()
        batch = make_batch(model)
        plain = gradients(model, batch)
        apply_policy(model, make_policy(Region(0, 4, "block")))
        assert model.head.weight is model.token_embedding.weight
        assert_same(gradients(model, batch), plain)


@st.composite
def any_regions(draw: st.DrawFn) -> tuple[Region, ...]:
    """Any placement on the model's blocks: gaps, units, blocks and segments of every length."""
    regions, first = [], 0
    while first < NUM_BLOCKS:
        last = draw(st.integers(first, NUM_BLOCKS - 1))
        action = draw(st.sampled_from(["none", "attention", "mlp", "attention+mlp", "block", "segment"]))
        if action != "none":
            size = draw(st.integers(1, NUM_BLOCKS)) if action == "segment" else None
            regions.append(Region(first, last, action, size))
        first = last + 1
    return tuple(regions)


@settings(max_examples=40, deadline=None)
@given(any_regions())
def test_any_placement_trains_as_plain_training_does_to_the_last_bit(regions: tuple[Region, ...]) -> None:
    model = make_model()
    batch = make_batch(model)
    plain = gradients(model, batch)
    applied = apply_policy(model, make_policy(*regions))
    assert_same(gradients(model, batch), plain)
    applied.undo()
    assert_same(gradients(model, batch), plain)


class TestSurface:
    @placements
    def test_names_objects_modes_and_state_are_untouched_before_and_after_undo(
        self, regions: tuple[Region, ...]
    ) -> None:
        model = make_model()
        model.blocks[1].eval()
        before = surface(model)
        applied = apply_policy(model, make_policy(*regions))
        assert surface(model) == before
        applied.undo()
        assert surface(model) == before
        assert all("forward" not in vars(module) for module in model.modules())

    def test_state_saved_under_one_policy_loads_under_another(self) -> None:
        model, other = make_model(), make_model()
        with torch.no_grad():
            other.token_embedding.weight.zero_()
        apply_policy(model, make_policy(Region(0, 4, "block")))
        apply_policy(other, make_policy(Region(0, 4, "segment", 3)))
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        other.load_state_dict(torch.load(file), strict=True)
        assert_same(gradients(other, make_batch(other)), gradients(make_model(), make_batch(model)))

    @placements
    def test_deep_copy_recomputes_with_its_own_parameters(self, regions: tuple[Region, ...]) -> None:
        model = make_model()
        batch = make_batch(model)
        apply_policy(model, make_policy(*regions))
        twin = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        assert_same(gradients(twin, batch), gradients(make_model(), batch))
        assert all(parameter.grad is None for parameter in model.parameters())

    @placements
    def test_pickled_model_trains_the_same(self, regions: tuple[Region, ...]) -> None:
        model = make_model()
        batch = make_batch(model)
        apply_policy(model, make_policy(*regions))
        assert_same(gradients(pickle.loads(pickle.dumps(model)), batch), gradients(make_model(), batch))

    @placements
    def test_recomputed_forward_keeps_its_signature_and_name(self, regions: tuple[Region, ...]) -> None:
        model = make_model()
        before = [inspect.signature(block.forward) for block in model.blocks]
        apply_policy(model, make_policy(*regions))
        assert [inspect.signature(block.forward) for block in model.blocks] == before
        assert [block.forward.__name__ for block in model.blocks] == ["forward"] * NUM_BLOCKS


class TestModes:
    def test_nothing_is_recomputed_under_no_grad(self) -> None:
        model = make_model()
        recomputes, calls = Recomputes(), []
        for block in model.blocks:
            block.attn.register_forward_hook(lambda *_: calls.append(1))
        apply_policy(model, make_policy(Region(0, 2, "block"), Region(3, 4, "segment", 2)), observer=recomputes)
        with torch.no_grad():
            loss = model(**make_batch(model))
        assert not loss.requires_grad
        assert len(calls) == NUM_BLOCKS
        assert recomputes.names == []

    @placements
    def test_output_under_no_grad_is_the_plain_one(self, regions: tuple[Region, ...]) -> None:
        model = make_model().eval()
        batch = make_batch(model)
        with torch.no_grad():
            plain = model(**batch)
            apply_policy(model, make_policy(*regions))
            assert torch.equal(model(**batch), plain)

    def test_eval_mode_with_gradients_recomputes_and_gives_the_same_gradients(self) -> None:
        model = make_model().eval()
        batch = make_batch(model)
        plain, recomputes = gradients(model, batch), Recomputes()
        apply_policy(model, make_policy(Region(0, 2, "block"), Region(3, 4, "segment", 2)), observer=recomputes)
        assert_same(gradients(model, batch), plain)
        assert not model.training
        assert sorted(recomputes.names) == ["blocks.0", "blocks.1", "blocks.2", "blocks.3 to blocks.4"]

    def test_a_block_in_eval_mode_among_training_ones_is_recomputed_in_eval_mode(self) -> None:
        model = make_model(dropout=0.5)
        model.blocks[2].eval()
        batch = make_batch(model)
        plain = gradients(model, batch)
        apply_policy(model, make_policy(Region(0, 4, "block")))
        assert_same(gradients(model, batch), plain)

    def test_accumulated_gradients_equal_those_of_plain_training(self) -> None:
        def accumulated(model: GPT) -> dict[str, torch.Tensor]:
            batch = make_batch(model)
            torch.manual_seed(2)
            for _ in range(3):
                model(**batch).backward()
            return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

        model = make_model()
        apply_policy(model, make_policy(Region(0, 4, "segment", 2)))
        assert_same(accumulated(model), accumulated(make_model()))

    def test_two_forward_passes_before_one_backward_are_told_apart(self) -> None:
        def joint(model: GPT) -> dict[str, torch.Tensor]:
            batch = make_batch(model)
            flipped = {name: tensor.flip(0) + 0 for name, tensor in batch.items()}
            torch.manual_seed(2)
            (model(**batch) + 2 * model(**flipped)).backward()
            return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

        model = make_model()
        apply_policy(model, make_policy(Region(0, 2, "block"), Region(3, 4, "segment", 2)))
        assert_same(joint(model), joint(make_model()))


class TestUndo:
    def test_second_undo_has_no_effect(self) -> None:
        model = make_model()
        applied = apply_policy(model, make_policy(Region(0, 4, "block")))
        applied.undo()
        applied.undo()
        assert "forward" not in vars(model.blocks[0])

    def test_forward_that_the_user_had_replaced_is_put_back(self) -> None:
        model = make_model()
        own = model.blocks[0].forward
        model.blocks[0].forward = own
        applied = apply_policy(model, make_policy(Region(0, 4, "block")))
        assert model.blocks[0].forward is not own
        applied.undo()
        assert model.blocks[0].forward is own

    def test_undo_is_refused_after_somebody_else_replaced_a_forward(self) -> None:
        model = make_model()
        applied = apply_policy(model, make_policy(Region(0, 4, "block")))
        model.blocks[3].forward = model.blocks[3].forward.original
        with pytest.raises(RuntimeError, match=r"GPTBlock\.forward was replaced again after the policy was applied"):
            applied.undo()
        assert "forward" in vars(model.blocks[0])

    def test_another_policy_may_follow_an_undone_one(self) -> None:
        model, recomputes = make_model(), Recomputes()
        batch = make_batch(model)
        plain = gradients(model, batch)
        apply_policy(model, make_policy(Region(0, 4, "segment", 2))).undo()
        apply_policy(model, make_policy(Region(4, 4, "mlp")), observer=recomputes)
        assert_same(gradients(model, batch), plain)
        assert recomputes.names == ["blocks.4.mlp"]


class Refusing(nn.Module):
    """A list with one module at two positions, and two blocks that share a part."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.sum()


class SharedPartBlock(nn.Module):
    def __init__(self, attn: nn.Module, width: int = 4) -> None:
        super().__init__()
        self.attn = attn
        self.mlp = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(torch.tanh(self.attn(x)))


class TestAliases:
    def make_aliased(self) -> Refusing:
        torch.manual_seed(0)
        first, second = (SharedPartBlock(nn.Linear(4, 4)) for _ in range(2))
        return Refusing([first, second, first, second])

    def test_one_module_at_several_positions_is_recomputed_at_each(self) -> None:
        model, recomputes = self.make_aliased(), Recomputes()
        batch = {"x": torch.randn(3, 4)}
        plain = gradients(model, batch)
        apply_policy(model, make_policy(Region(0, 3, "block"), num_blocks=4), observer=recomputes)
        assert_same(gradients(model, batch), plain)
        assert len(recomputes.names) == 4

    def test_one_module_cannot_take_two_actions(self) -> None:
        model = self.make_aliased()
        with pytest.raises(PolicyError, match="positions 0 and 2 hold one module, but the policy gives them block and"):
            apply_policy(model, make_policy(Region(0, 1, "block"), num_blocks=4))
        assert all("forward" not in vars(block) for block in model.blocks)

    def test_a_segment_cannot_hold_one_module_twice(self) -> None:
        model = self.make_aliased()
        with pytest.raises(PolicyError, match="are one module; a segment cannot hold it twice"):
            apply_policy(model, make_policy(Region(0, 3, "segment", 4), num_blocks=4))
        assert all("forward" not in vars(block) for block in model.blocks)


class TestRefusals:
    @pytest.mark.parametrize(
        ("policy", "message"),
        [
            pytest.param(
                make_policy(Region(0, 3, "block"), num_blocks=4),
                "placement of blocks is for 4 blocks, but the model has 5; tune this model anew",
                id="other number of blocks",
            ),
            pytest.param(
                make_policy(Region(0, 4, "block"), path="layers"),
                "placement names blocks 'layers', which GPT does not have",
                id="unknown path",
            ),
            pytest.param(
                RecomputePolicy(
                    BatchShape(2, 1, 1, 2),
                    (BlockListPlacement("blocks", 5, (("mlp", "ffn"),), (Region(0, 3, "block"), Region(4, 4, "mlp"))),),
                ),
                r"placement names unit 'blocks\.4\.ffn', which the model does not have",
                id="unknown unit",
            ),
            pytest.param(
                RecomputePolicy(
                    BatchShape(2, 1, 1, 2),
                    (BlockListPlacement("blocks", 5, (("mlp", "feed()"),), (Region(0, 4, "mlp"),)),),
                ),
                r"placement names unit 'blocks\.0\.feed\(\)', which the model does not have",
                id="unknown method",
            ),
        ],
    )
    def test_policy_of_another_model_is_refused_and_the_model_left_alone(
        self, policy: RecomputePolicy, message: str
    ) -> None:
        model = make_model()
        before = surface(model)
        with pytest.raises(PolicyError, match=message):
            apply_policy(model, policy)
        assert surface(model) == before
        assert all("forward" not in vars(module) for module in model.modules())

    @pytest.mark.parametrize("second", ["block", "attention", "mlp"])
    def test_a_second_policy_is_refused_while_the_first_is_in_force(self, second: str) -> None:
        model = make_model()
        apply_policy(model, make_policy(Region(0, 4, "mlp")))
        with pytest.raises(PolicyError, match="is already recomputed or compiled by a policy; undo that one first"):
            apply_policy(model, make_policy(Region(0, 4, second)))
        assert "forward" not in vars(model.blocks[0])


class OddBlock(nn.Module):
    """Takes keywords that checkpoint itself knows, returns a dict, and has a unit that is a method."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def feed(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return torch.tanh(self.linear(x)) * scale

    def forward(self, x: torch.Tensor, *, context_fn: float, use_reentrant: bool, debug: Any = None) -> dict[str, Any]:
        return {"hidden": x + self.feed(x, scale=context_fn), "extras": [use_reentrant, debug]}


class OddModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict({"a": OddBlock(), "b": OddBlock()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks.values():
            output = block(x, context_fn=0.5, use_reentrant=True, debug={"x": x})
            assert isinstance(output, dict)
            assert output["extras"][0] is True
            x = output["hidden"]
        return x.square().sum()


class TestOddBlocks:
    @pytest.mark.parametrize("action", ["block", "feed"])
    def test_keywords_return_types_and_methods_pass_through(self, action: str) -> None:
        torch.manual_seed(0)
        model, recomputes = OddModel(), Recomputes()
        batch = {"x": torch.randn(3, 4)}
        plain = gradients(model, batch)
        placement = BlockListPlacement("blocks", 2, (("feed", "feed()"),), (Region(0, 1, action),))
        apply_policy(model, RecomputePolicy(BatchShape(2, 1, 1, 2), (placement,)), observer=recomputes)
        assert_same(gradients(model, batch), plain)
        suffix = "" if action == "block" else ".feed()"
        assert sorted(recomputes.names) == [f"blocks.0{suffix}", f"blocks.1{suffix}"]

    def test_frozen_input_and_frozen_blocks_keep_trainable_parameters_learning(self) -> None:
        model = make_model()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("mlp.down" in name)
        batch = make_batch(model)
        plain = gradients(model, batch)
        assert len(plain) == 2 * NUM_BLOCKS
        apply_policy(model, make_policy(Region(0, 4, "segment", 2)))
        assert_same(gradients(model, batch), plain)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from runners.apply_policy import apply_policy
from runners.regions.segment import SegmentError
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region

Parent = Callable[[list[nn.Module], torch.Tensor], torch.Tensor]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, scale: float = 1.0) -> torch.Tensor:
        y = self.dropout(torch.tanh(self.linear(x))) * scale
        return x + (y if mask is None else y * mask)


class TupleBlock(Block):
    def forward(self, hidden: torch.Tensor, flag: bool = False) -> Any:
        return super().forward(hidden), flag


class Model(nn.Module):
    def __init__(self, parent: Parent, block_type: type[nn.Module] = Block) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block_type() for _ in range(4))
        self.parent = parent

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.parent(list(self.blocks), x)


def segmented(parent: Parent, block_type: type[nn.Module] = Block, size: int = 4) -> Model:
    model = plain(parent, block_type)
    placement = BlockListPlacement("blocks", 4, regions=(Region(0, 3, "segment", size),))
    apply_policy(model, RecomputePolicy(BatchShape(3, 1, 1, 3), (placement,)))
    return model


def plain(parent: Parent, block_type: type[nn.Module] = Block) -> Model:
    torch.manual_seed(0)
    return Model(parent, block_type)


def train(model: Model, x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(1)
    loss = model(x).square().sum()
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def assert_same_training(parent: Parent, block_type: type[nn.Module] = Block, size: int = 4) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    ours = train(segmented(parent, block_type, size), x)
    theirs = train(plain(parent, block_type), x)
    assert len(ours) == len(theirs)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def as_chain(blocks: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    for block in blocks:
        x = block(x)
    return x


def with_shared_arguments(blocks: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(3, 1)
    for block in blocks:
        x = block(x, mask, scale=0.5)
    return x


def with_hidden_by_name(blocks: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    for block in blocks:
        x, flag = block(hidden=x, flag=True)
        assert flag is True
    return x


def with_collected_states(blocks: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    states = [x]
    for block in blocks:
        states.append(block(states[-1]))
    return torch.stack([state * weight for weight, state in enumerate(states, start=1)])


def with_a_shared_container(blocks: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    options = {"scale": 0.5}
    for block in blocks:
        x = block(x, **options)
    return x


class TestChains:
    @pytest.mark.parametrize("size", [2, 3, 4])
    @pytest.mark.parametrize(
        "parent", [as_chain, with_shared_arguments, with_collected_states, with_a_shared_container]
    )
    def test_trains_as_without_recompute(self, parent: Parent, size: int) -> None:
        assert_same_training(parent, size=size)

    def test_blocks_that_return_tuples_and_take_the_hidden_state_by_name(self) -> None:
        assert_same_training(with_hidden_by_name, TupleBlock)

    def test_parent_sees_the_true_output_of_every_block(self) -> None:
        seen: list[list[torch.Tensor]] = []

        def parent(blocks: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
            states = [x]
            for block in blocks:
                states.append(block(states[-1]))
            seen.append([state.detach().clone() for state in states])
            return states[-1]

        x = torch.randn(3, 4)
        train(segmented(parent), x)
        train(plain(parent), x)
        ours, theirs = seen
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))

    def test_last_output_may_be_edited_in_place_after_the_segment(self) -> None:
        assert_same_training(lambda blocks, x: as_chain(blocks, x).add_(1.0))

    def test_code_between_two_segments_is_free(self) -> None:
        def parent(blocks: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
            return as_chain(blocks[2:], as_chain(blocks[:2], x) * 2.0)

        assert_same_training(parent, size=2)

    def test_pass_that_broke_off_leaves_the_next_one_right(self) -> None:
        breaks_off = True

        def parent(blocks: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
            for position, block in enumerate(blocks):
                x = block(x)
                if breaks_off and position == 1:
                    raise KeyError("the user's own")
            return x

        x = torch.randn(3, 4)
        model = segmented(parent)
        with pytest.raises(KeyError, match="the user's own"):
            model(x)
        breaks_off = False
        with torch.no_grad():
            model(x)
        ours = train(model, x)
        theirs = train(plain(as_chain), x)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def changed(blocks: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    return as_chain(blocks[2:], as_chain(blocks[:2], x) + 0.0)


def edited_in_place(blocks: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    return as_chain(blocks[2:], as_chain(blocks[:2], x).add_(1.0))


def other_keyword_value(blocks: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    for position, block in enumerate(blocks):
        x = block(x, scale=1.0 + position)
    return x


def other_keyword_name(blocks: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    return blocks[3](blocks[2](blocks[1](blocks[0](x), scale=1.0)))


def other_position(blocks: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    for block in blocks:
        x = block(x, torch.ones(3, 1))
    return x


def more_arguments(blocks: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    return blocks[3](blocks[2](blocks[1](blocks[0](x), None)))


def argument_edited_in_place(blocks: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(3, 1)
    for block in blocks:
        x = block(x, mask)
        mask.mul_(0.5)
    return x


def one_left_out(blocks: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    return as_chain([blocks[0], blocks[1], blocks[3]], x)


def last_left_out(blocks: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    return as_chain(blocks[:3], x)


def first_left_out(blocks: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    return as_chain(blocks[1:], x)


def one_called_twice(blocks: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    return as_chain([blocks[0], blocks[1], blocks[1], blocks[2], blocks[3]], x)


def reversed_order(blocks: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    return as_chain([blocks[0], blocks[2], blocks[1], blocks[3]], x)


def all_on_one_input(blocks: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    return torch.stack([block(x) for block in blocks])


def last_under_no_grad(blocks: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    x = as_chain(blocks[:3], x)
    with torch.no_grad():
        frozen = blocks[3](x)
    return x + frozen


def first_under_no_grad(blocks: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        x = blocks[0](x)
    return as_chain(blocks[1:], x)


class TestWhatIsNoChain:
    @pytest.mark.parametrize(
        ("parent", "message"),
        [
            (changed, r"blocks\.2 does not receive the output of blocks\.1 unchanged, so they cannot be one segment"),
            (edited_in_place, r"the output of blocks\.1 was edited in place before blocks\.2"),
            (other_keyword_value, r"blocks\.1 receives another scale than blocks\.0"),
            (other_keyword_name, r"blocks\.1 receives another set of keyword arguments than blocks\.0"),
            (other_position, r"blocks\.1 receives another argument 2 than blocks\.0"),
            (more_arguments, r"blocks\.1 receives another number of arguments than blocks\.0"),
            (argument_edited_in_place, r"an argument of blocks\.1 was edited in place before it"),
            (one_left_out, r"blocks\.3 was called out of turn inside the segment blocks\.0 to blocks\.3"),
            (last_left_out, r"blocks\.3 was not called after blocks\.0, so they cannot be one segment"),
            (first_left_out, r"blocks\.1 was called before blocks\.0, which starts its segment"),
            (one_called_twice, r"blocks\.1 was called out of turn inside the segment blocks\.0 to blocks\.3"),
            (reversed_order, r"blocks\.2 was called out of turn inside the segment"),
            (all_on_one_input, r"blocks\.1 does not receive the output of blocks\.0 unchanged"),
            (last_under_no_grad, r"blocks\.3 is called under no_grad and blocks\.2 is not"),
            (first_under_no_grad, r"blocks\.1 was called before blocks\.0, which starts its segment"),
        ],
        ids=lambda value: value.__name__ if callable(value) else "",
    )
    def test_is_found_out_in_the_first_step(self, parent: Parent, message: str) -> None:
        with pytest.raises(SegmentError, match=message):
            train(segmented(parent), torch.randn(3, 4))

    def test_block_that_returns_no_tensor(self) -> None:
        class DictBlock(Block):
            def forward(self, x: Any) -> Any:
                return {"x": super().forward(x["x"] if isinstance(x, dict) else x)}

        with pytest.raises(SegmentError, match=r"blocks\.0 returns dict and no tensor, so it cannot be part of a"):
            train(segmented(lambda blocks, x: as_chain(blocks, x)["x"], DictBlock), torch.randn(3, 4))

    @pytest.mark.parametrize("parent", [one_left_out, other_keyword_value, last_left_out])
    def test_runs_plainly_where_no_gradient_is_recorded(self, parent: Parent) -> None:
        x = torch.randn(3, 4)
        with torch.no_grad():
            ours, theirs = segmented(parent).eval()(x), plain(parent).eval()(x)
        assert torch.equal(ours, theirs)

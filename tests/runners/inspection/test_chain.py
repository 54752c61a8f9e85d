from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from runners.inspection.call_trace import traced_calls
from runners.inspection.chain import alias_groups, segment_refusal

Parent = Callable[[list[nn.Module], torch.Tensor], object]


class Block(nn.Module):
    """Takes whatever further arguments it is given, and edits a list or tensor among them if there is one."""

    def forward(self, hidden: torch.Tensor, mask: Any = None, *, bias: Any = None) -> Any:
        if isinstance(bias, list):
            bias.append(0)
        return hidden + 1


class TupleBlock(Block):
    def forward(self, hidden: torch.Tensor, mask: Any = None, *, bias: Any = None) -> Any:
        return (hidden + 1, "extra")


class DictBlock(Block):
    def forward(self, hidden: torch.Tensor, mask: Any = None, *, bias: Any = None) -> Any:
        return {"hidden": hidden + 1}


def refusal(parent: Parent, blocks: list[nn.Module] | None = None) -> str | None:
    blocks = [Block(), Block(), Block()] if blocks is None else blocks
    names = [f"h.{index}" for index in range(len(blocks))]
    with traced_calls((block, "forward") for block in blocks) as trace:
        parent(blocks, torch.zeros(2, 2))
    return segment_refusal(names, blocks, trace.calls)


def chain(blocks: list[nn.Module], x: torch.Tensor) -> None:
    for block in blocks:
        x = block(x)


def chain_of_tuples(blocks: list[nn.Module], x: torch.Tensor) -> None:
    for block in blocks:
        x = block(x)[0]


def chain_by_keyword(blocks: list[nn.Module], x: torch.Tensor) -> None:
    mask = torch.ones(2)
    for block in blocks:
        x = block(hidden=x, mask=mask)


def same_plain_arguments(blocks: list[nn.Module], x: torch.Tensor) -> None:
    for block in blocks:
        x = block(x, 0.5, bias="none")


def same_tensors_in_new_tuples(blocks: list[nn.Module], x: torch.Tensor) -> None:
    cos, sin = torch.ones(1), torch.ones(1)
    for block in blocks:
        x = block(x, (cos, sin), bias={"cos": cos})


def shared_list(blocks: list[nn.Module], x: torch.Tensor) -> None:
    seen: list[int] = []
    for block in blocks:
        x = block(x, bias=seen)


@pytest.mark.parametrize(
    "parent", [chain, chain_by_keyword, same_plain_arguments, same_tensors_in_new_tuples, shared_list]
)
def test_unchanged_output_and_same_arguments_are_a_chain(parent: Parent) -> None:
    assert refusal(parent) is None


def test_the_first_element_of_a_tuple_is_what_is_handed_on() -> None:
    assert refusal(chain_of_tuples, [TupleBlock(), TupleBlock()]) is None


def other_tensor(blocks: list[nn.Module], x: torch.Tensor) -> None:
    for block in blocks:
        x = block(x, torch.ones(2))


def other_keyword_tensor(blocks: list[nn.Module], x: torch.Tensor) -> None:
    for block in blocks:
        x = block(x, bias=torch.ones(2))


def other_number(blocks: list[nn.Module], x: torch.Tensor) -> None:
    for index, block in enumerate(blocks):
        x = block(x, index)


def one_argument_more(blocks: list[nn.Module], x: torch.Tensor) -> None:
    x = blocks[0](x)
    for block in blocks[1:]:
        x = block(x, None)


def mask_edited_between(blocks: list[nn.Module], x: torch.Tensor) -> None:
    mask = torch.ones(2)
    for block in blocks:
        x = block(x, mask)
        mask.mul_(2)


def output_edited_between(blocks: list[nn.Module], x: torch.Tensor) -> None:
    for block in blocks:
        x = block(x).add_(1)


def output_of_the_one_before(blocks: list[nn.Module], x: torch.Tensor) -> None:
    first = blocks[0](x)
    blocks[2](blocks[1](first) + first)


def backwards(blocks: list[nn.Module], x: torch.Tensor) -> None:
    chain(blocks[::-1], x)


def second_left_out(blocks: list[nn.Module], x: torch.Tensor) -> None:
    chain([blocks[0], *blocks[2:]], x)


def twice_around(blocks: list[nn.Module], x: torch.Tensor) -> None:
    chain(blocks + blocks, x)


@pytest.mark.parametrize(
    "parent, reason",
    [
        (other_tensor, "h.1 receives another mask than h.0"),
        (other_keyword_tensor, "h.1 receives another bias than h.0"),
        (other_number, "h.1 receives another mask than h.0"),
        (one_argument_more, "h.1 is called with other arguments than h.0"),
        (mask_edited_between, "mask is edited in place between h.0 and h.1"),
        (output_edited_between, "the output of h.0 is edited in place before or after h.1 reads it"),
        (output_of_the_one_before, "h.2 receives something else than the output of h.1"),
        (backwards, "h.1 was called before h.0"),
        (second_left_out, "h.1 was not called"),
        (twice_around, "h.0 was called 2 times in one forward pass"),
    ],
)
def test_the_first_pair_that_is_no_chain_is_named_with_the_reason(parent: Parent, reason: str) -> None:
    assert refusal(parent) == reason


def test_outputs_without_a_tensor_in_front_are_refused() -> None:
    def parent(blocks: list[nn.Module], x: torch.Tensor) -> None:
        for block in blocks:
            x = block(x)["hidden"]

    assert refusal(parent, [DictBlock(), DictBlock()]) == "h.0 returns a dict and no tensor"


def test_aliases_are_refused_and_grouped() -> None:
    shared = Block()
    blocks: list[nn.Module] = [shared, Block(), shared]
    assert refusal(chain, blocks) == "one module stands at positions 0, 2"
    assert alias_groups(blocks) == ((0, 2),)


def test_a_single_block_is_a_chain_of_one() -> None:
    assert refusal(chain, [Block()]) is None

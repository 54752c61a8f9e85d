from __future__ import annotations

import pytest
import torch
from tool_candidates import Candidate, existing_tools, our_candidate

from runners.measure.flops import count_step_flops
from runners.measure.phases import PhaseSwitch
from runners.workloads.gpt import GPT, gpt
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy


def small_gpt() -> GPT:
    torch.manual_seed(0)
    return gpt(n_layer=4, n_embd=16, n_head=2, vocab_size=32, max_sequence_length=16)


def flops_and_gradients(model: GPT, batch: dict[str, torch.Tensor]) -> tuple[int, list[torch.Tensor]]:
    torch.manual_seed(2)
    flops = count_step_flops(lambda: model(**batch).backward(), PhaseSwitch()).plain
    return flops, [p.grad for p in model.parameters() if p.grad is not None]


CANDIDATES = [each for each in existing_tools(["blocks"], (2,), with_compiler=False)]


@pytest.mark.parametrize("candidate", CANDIDATES, ids=lambda each: each.name)
def test_each_way_trains_as_the_plain_model_does(candidate: Candidate) -> None:
    plain, placed = small_gpt(), small_gpt()
    batch = plain.example_batch(2, 8)
    candidate.put_on(placed)
    _, expected = flops_and_gradients(plain, batch)
    _, gradients = flops_and_gradients(placed, batch)
    assert all(map(torch.equal, gradients, expected))


def test_what_is_kept_is_not_run_again() -> None:
    flops = {}
    for candidate in CANDIDATES:
        model = small_gpt()
        batch = model.example_batch(2, 8)
        candidate.put_on(model)
        flops[candidate.setting if "keep" in candidate.setting else candidate.tool], _ = flops_and_gradients(
            model, batch
        )
    plain = flops["no recompute"]
    assert flops["keep matmuls and attention"] == plain
    assert plain < flops["every second block"] < flops["every block"]
    assert plain < flops["keep every second matmul"] < flops["keep attention alone"] < flops["every block"]


def test_each_compiled_budget_is_measured_against_what_keeps_everything() -> None:
    compiled = [each for each in existing_tools(["blocks"], (4, 2), with_compiler=True) if "compile" in each.tool]
    assert {each.trains_as for each in compiled if "blocks" in each.tool} == {
        None,
        "torch.compile, blocks: budget 1 @4",
    }
    names = {each.name for each in existing_tools(["blocks"], (4, 2), with_compiler=True)}
    assert {each.trains_as for each in compiled} - {None} <= names


@pytest.mark.parametrize("compiled", [None, "blocks", "model"])
def test_ours_is_measured_against_what_is_compiled_alike_and_recomputes_nothing(compiled: str | None) -> None:
    policy = RecomputePolicy(BatchShape(2, 2, 1, 4), (BlockListPlacement("blocks", 4),), compile=compiled)
    plain = "no recompute: micro-batch alone" if compiled is None else f"torch.compile, {compiled}: budget 1"
    expected = f"{plain} @2"
    assert our_candidate(policy).trains_as == expected
    assert expected in {each.name for each in existing_tools(["blocks"], (4, 2), with_compiler=True)}

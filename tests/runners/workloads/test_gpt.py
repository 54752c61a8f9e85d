from __future__ import annotations

from typing import Any

import pytest
import torch

from runners.base import WorkloadError
from runners.inspect_model import inspect_model
from runners.trial import WorkloadSpec
from runners.workloads.base import Workload
from runners.workloads.gpt import gpt
from runners.workloads.load import load_workload

SMALL = {"n_layer": 3, "n_embd": 16, "n_head": 2, "vocab_size": 32, "max_sequence_length": 8}


def load(sequence_length: int | None = 8, **args: Any) -> Workload:
    spec = WorkloadSpec(
        model_factory="runners.workloads.gpt:gpt", model_args={**SMALL, **args}, sequence_length=sequence_length
    )
    return load_workload(spec)


def test_it_learns_a_batch_by_heart() -> None:
    workload = load(dropout=0.0)
    model, batch = workload.build_model(), workload.make_batch(2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(60):
        loss = workload.loss_of(model(**batch))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(torch.log(torch.tensor(32.0)).item(), rel=0.05)
    assert losses[-1] < 0.2 * losses[0]


def test_its_blocks_and_units_are_found_and_form_a_chain() -> None:
    workload = load()
    model, batch = workload.build_model(), workload.make_batch(2)
    (blocks,) = inspect_model(model, run_step=lambda: model(**batch)).shape.block_lists
    assert (blocks.path, blocks.kind, blocks.num_blocks) == ("blocks", "GPTBlock", 3)
    assert blocks.units == (("attention", "attn"), ("mlp", "mlp"))
    assert blocks.can_segment


def test_the_head_is_tied_unless_asked_otherwise() -> None:
    tied, untied = gpt(**SMALL), gpt(**SMALL, tied_head=False)
    assert tied.head.weight is tied.token_embedding.weight
    sizes = [sum(parameter.numel() for parameter in model.parameters()) for model in (tied, untied)]
    assert sizes[1] - sizes[0] == 32 * 16


def test_no_token_sees_those_after_it() -> None:
    model = gpt(**SMALL, dropout=0.0)
    logits: list[torch.Tensor] = []
    model.head.register_forward_hook(lambda module, args, output: logits.append(output))
    tokens = torch.randint(0, 32, (1, 8))
    changed = tokens.clone()
    changed[0, -1] = (changed[0, -1] + 1) % 32
    model(tokens, tokens)
    model(changed, changed)
    assert torch.equal(logits[0][:, :-1], logits[1][:, :-1])
    assert not torch.equal(logits[0][:, -1], logits[1][:, -1])


def test_dropout_is_alive_in_training_and_silent_in_eval() -> None:
    model, tokens = gpt(**SMALL, dropout=0.5), torch.randint(0, 32, (1, 8))
    assert not torch.equal(model(tokens, tokens), model(tokens, tokens))
    model.eval()
    assert torch.equal(model(tokens, tokens), model(tokens, tokens))


def test_a_sequence_that_is_too_long_or_missing_is_refused() -> None:
    too_long, missing = load(sequence_length=9), load(sequence_length=None)
    too_long.build_model()
    missing.build_model()
    with pytest.raises(WorkloadError, match=r"sequence_length is 9, but the model has positions for 8 tokens"):
        too_long.make_batch(1)
    with pytest.raises(WorkloadError, match=r"GPT.example_batch cannot be called .+set batch.sequence_length"):
        missing.make_batch(1)


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"n_embd is 10, which n_head 4 does not divide"):
        gpt(n_embd=10, n_head=4)

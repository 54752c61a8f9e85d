"""Policies beside what others put on a model: hooks, torch.compile, DDP and FSDP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from placed_gpt import NUM_BLOCKS, PLACEMENTS, assert_same, gradients, make_batch, make_model, make_policy, placements
from torch import nn

from runners.apply_policy import apply_policy
from runners.workloads.gpt import GPT
from search_spaces.policy import Region


class TestHooks:
    @placements
    def test_forward_hooks_fire_once_per_step_with_the_plain_outputs(self, regions: tuple[Region, ...]) -> None:
        def outputs(model: GPT) -> list[torch.Tensor]:
            seen: list[torch.Tensor] = []
            for block in model.blocks:
                block.register_forward_hook(lambda _m, _args, output: seen.append(output.detach().clone()))
            gradients(model, make_batch(model))
            return seen

        model = make_model()
        apply_policy(model, make_policy(*regions))
        ours, plain = outputs(model), outputs(make_model())
        assert len(ours) == NUM_BLOCKS
        assert all(torch.equal(a, b) for a, b in zip(ours, plain, strict=True))

    @pytest.mark.parametrize("action", ["block", "attention+mlp"])
    def test_backward_hooks_fire_once_per_step_with_the_plain_gradients(self, action: str) -> None:
        def seen_gradients(model: GPT) -> list[torch.Tensor]:
            seen: list[torch.Tensor] = []
            for block in model.blocks:
                block.register_full_backward_hook(lambda _m, _gi, output: seen.append(output[0].clone()))
                block.mlp.register_full_backward_hook(lambda _m, _gi, output: seen.append(output[0].clone()))
            gradients(model, make_batch(model))
            return seen

        model = make_model()
        apply_policy(model, make_policy(Region(0, 4, action)))
        ours, plain = seen_gradients(model), seen_gradients(make_model())
        assert len(ours) == 2 * NUM_BLOCKS
        assert all(torch.equal(a, b) for a, b in zip(ours, plain, strict=True))

    def test_tensor_hooks_on_outputs_inside_a_segment_see_the_plain_gradients(self) -> None:
        def seen_gradients(model: GPT) -> list[torch.Tensor]:
            seen: list[torch.Tensor] = []

            def watch(_module: nn.Module, _args: Any, output: torch.Tensor) -> None:
                output.register_hook(lambda gradient: seen.append(gradient.clone()))

            for block in model.blocks:
                block.register_forward_hook(watch)
            gradients(model, make_batch(model))
            return seen

        model = make_model()
        apply_policy(model, make_policy(Region(0, 4, "segment", 3)))
        ours, plain = seen_gradients(model), seen_gradients(make_model())
        assert len(ours) == NUM_BLOCKS
        assert all(torch.equal(a, b) for a, b in zip(ours, plain, strict=True))


class TestBeforeOtherWrappers:
    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore::UserWarning:torch")
    def test_compiled_afterwards(self) -> None:
        model = make_model()
        batch = make_batch(model)
        plain = gradients(model, batch)
        apply_policy(model, make_policy(Region(0, 0, "block"), Region(1, 1, "mlp"), Region(2, 4, "segment", 3)))
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        model.zero_grad()
        torch.manual_seed(2)
        try:
            compiled(**batch).backward()
        finally:
            torch._dynamo.reset()
        assert_same({name: p.grad for name, p in model.named_parameters() if p.grad is not None}, plain)


@pytest.fixture
def process_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
class TestBeforeDistributedWrappers:
    @placements
    def test_ddp_afterwards(self, regions: tuple[Region, ...]) -> None:
        model = make_model()
        batch = make_batch(model)
        plain = gradients(model, batch)
        apply_policy(model, make_policy(*regions))
        model.zero_grad()
        wrapped = nn.parallel.DistributedDataParallel(model)
        torch.manual_seed(2)
        wrapped(**batch).backward()
        assert_same({name: p.grad for name, p in model.named_parameters() if p.grad is not None}, plain)

    @pytest.mark.parametrize("regions", [PLACEMENTS["block"], PLACEMENTS["both units"]], ids=["block", "units"])
    def test_every_block_fully_sharded_afterwards(self, regions: tuple[Region, ...]) -> None:
        self.assert_sharded_training_is_plain(regions, [[index] for index in range(NUM_BLOCKS)])

    def test_every_segment_fully_sharded_as_one_group_afterwards(self) -> None:
        self.assert_sharded_training_is_plain((Region(0, 4, "segment", 3),), [[0, 1, 2], [3, 4]])

    def assert_sharded_training_is_plain(self, regions: tuple[Region, ...], groups: list[list[int]]) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        model = make_model()
        batch = make_batch(model)
        plain = gradients(model, batch)
        apply_policy(model, make_policy(*regions))
        model.zero_grad()
        mesh = init_device_mesh("cpu", (1,))
        for group in groups:
            fully_shard([model.blocks[index] for index in group], mesh=mesh)
        fully_shard(model, mesh=mesh)
        torch.manual_seed(2)
        model(**batch).backward()
        sharded: dict[str, Any] = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        assert_same({name: gradient.full_tensor() for name, gradient in sharded.items()}, plain)

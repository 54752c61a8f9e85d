from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from runners.dry_run.fake_values import FakeValues, NoDryRunError
from runners.dry_run.live_memory import LiveMemory
from runners.dry_run.stand_ins import taken_for_real
from runners.measure.allocation_trace import AllocationRecorder


def test_a_storage_counts_once_and_until_its_last_view_is_gone() -> None:
    memory = LiveMemory()
    with FakeTensorMode(), memory:
        matrix = torch.empty(10, 10)
        row = matrix[0]
        assert memory.live_bytes == 400
        del matrix
        assert memory.live_bytes == 400
        del row
        assert memory.live_bytes == 0


def test_what_the_graph_saves_counts_until_backward() -> None:
    memory = LiveMemory()
    with FakeTensorMode(), memory:
        x = torch.empty(100, requires_grad=True)
        loss = x.exp().sum()
        assert memory.live_bytes == 400 + 400 + 4
        loss.backward()
        assert memory.live_bytes == 400 + 4 + 400


def test_a_cut_tells_what_happened_since_the_one_before() -> None:
    memory = LiveMemory()
    with FakeTensorMode(), memory:
        left, right = torch.empty(3, 4), torch.empty(4, 5)
        memory.cut()
        product = left @ right
        del product
        cut = memory.cut()
        assert (cut.live_bytes, cut.highest_bytes) == (48 + 80, 48 + 80 + 60)
        assert (cut.flops, cut.num_operations) == (2 * 3 * 4 * 5, 1)
        assert memory.cut().num_operations == 0


def test_what_is_left_out_stays_so_in_every_view() -> None:
    memory = LiveMemory()
    with FakeTensorMode():
        data = torch.empty(50)
        memory.leave_out(data)
        with memory:
            part = data[:10].clone()
            assert data[10:].shape == (40,)
            assert memory.live_bytes == part.nbytes == 40


def test_states_of_the_random_generator_count_while_they_are_kept() -> None:
    memory = LiveMemory()
    with taken_for_real(memory):
        state = torch.get_rng_state()
        assert memory.live_bytes == state.nbytes > 0
        del state
        assert memory.live_bytes == 0


class TestFakeValues:
    def test_claims_about_all_elements_hold(self) -> None:
        with FakeTensorMode(), FakeValues():
            assert bool((torch.empty(3) > 0).all())
            claims = torch.empty(3, dtype=torch.bool)
            assert bool(claims.all())
            assert bool(claims.sum() == claims.numel())

    def test_other_values_are_refused(self) -> None:
        with FakeTensorMode(), FakeValues():
            with pytest.raises(NoDryRunError, match="asks for the value of a tensor"):
                bool((torch.empty(3) > 0).any())
            with pytest.raises(NoDryRunError, match="asks for the value of a tensor"):
                float(torch.empty(()))

    def test_draws_that_come_out_one_way_are_answered(self) -> None:
        with FakeTensorMode(), FakeValues():
            assert not bool(torch.rand([]) < 0.0)
            assert bool(torch.rand([]) < 1.0)
            with pytest.raises(NoDryRunError, match="asks for the value of a tensor"):
                bool(torch.rand([]) < 0.1)

    def test_values_that_are_known_are_given(self) -> None:
        with FakeTensorMode(allow_non_fake_inputs=True), FakeValues():
            assert torch.tensor(7).item() == 7

    def test_whoever_computes_with_a_value_is_given_one(self) -> None:
        with FakeTensorMode(), FakeValues() as values:
            values.guesses = True
            assert torch.empty(()).item() == 1.0
            assert torch.empty((), dtype=torch.int64).item() == 1


def used_often(x: torch.Tensor) -> torch.Tensor:
    shared = x.exp()
    return shared.sin() + shared.cos() + shared.tanh() + shared.sigmoid()


def tied_to_an_embedding(weight: torch.Tensor) -> torch.Tensor:
    hidden = torch.nn.functional.embedding(torch.zeros(1, 4, dtype=torch.int64), weight)
    return torch.nn.functional.linear(hidden.exp(), weight)


def taken_in_by_two_projections(x: torch.Tensor) -> torch.Tensor:
    hidden = x.exp().unflatten(0, (2, -1))
    left, right = (torch.ones(2, x.shape[1], requires_grad=True) for _ in range(2))
    return torch.nn.functional.linear(hidden, left) + torch.nn.functional.linear(hidden, right)


@pytest.mark.parametrize("use", [used_often, tied_to_an_embedding, taken_in_by_two_projections])
def test_gradients_are_added_up_in_place_only_where_the_first_is_no_view(
    use: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    def run(x: torch.Tensor) -> None:
        x.grad = torch.zeros_like(x)  # As of an earlier micro-batch.
        use(x).sum().backward()

    recorder = AllocationRecorder()
    x = torch.zeros(2**10, 2**6, requires_grad=True)
    with recorder.recording():
        run(x)
    memory = LiveMemory()
    with FakeTensorMode(), memory:
        x = torch.zeros(2**10, 2**6, requires_grad=True)
        memory.cut()
        before_bytes = memory.live_bytes
        run(x)
        seen = memory.cut().highest_bytes - before_bytes
    assert seen == pytest.approx(recorder.trace().peak()[0], abs=64)

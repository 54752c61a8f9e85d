from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from runners.devices.cpu import CpuDevice
from runners.proof.randomness import seed_everything, silenced, stream_digests

DRAWS: dict[str, tuple[Callable[[int], torch.Tensor], float]] = {
    "dropout": (lambda n: nn.functional.dropout(torch.ones(n, 4), 0.5), 2.0),
    "channel dropout": (lambda n: nn.functional.dropout2d(torch.ones(n, 4, 1, 1), 0.5), 2.0),
    "rand": (lambda n: torch.rand(n, 4), 0.5),
    "rand_like": (lambda n: torch.rand_like(torch.ones(n, 4)), 0.5),
    "randn": (lambda n: torch.randn(n, 4), 0.0),
    "randn_like": (lambda n: torch.randn_like(torch.ones(n, 4)), 0.0),
    "own generator": (lambda n: torch.randn(n, 4, generator=torch.Generator().manual_seed(5)), 0.0),
    "normal around 3": (lambda n: torch.normal(3.0, 1.0, (n, 4)), 3.0),
    "normal around a tensor": (lambda n: torch.normal(torch.full((n, 4), 2.0), 1.0), 2.0),
    "normal_": (lambda n: torch.empty(n, 4).normal_(7.0), 7.0),
    "uniform_ from 5 to 7": (lambda n: torch.empty(n, 4).uniform_(5.0, 7.0), 6.0),
    "bernoulli": (lambda n: torch.bernoulli(torch.full((n, 4), 0.3)), 1.0),
    "bernoulli_": (lambda n: torch.empty(n, 1).bernoulli_(0.9), 1.0),
    "exponential_": (lambda n: torch.empty(n, 4).exponential_(), 1.0),
    "randint": (lambda n: torch.randint(9, (n, 4)), 0.0),
    "randint from 3": (lambda n: torch.randint(3, 9, (n, 4)), 3.0),
    "randint_like from 3": (lambda n: torch.randint_like(torch.ones(n, 4), 3, 9), 3.0),
    "random_": (lambda n: torch.empty(n, 4).random_(9), 0.0),
    "random_ from 2": (lambda n: torch.empty(n, 4).random_(2, 9), 2.0),
}


class TestSilenced:
    @pytest.mark.parametrize(("draw", "value"), DRAWS.values(), ids=DRAWS.keys())
    def test_every_draw_is_one_number_whatever_the_batch(
        self, draw: Callable[[int], torch.Tensor], value: float
    ) -> None:
        with silenced() as unsilenced:
            drawn = torch.cat([draw(8), draw(2)])
        assert unsilenced == set()
        assert torch.equal(drawn.double(), torch.full(drawn.shape, value, dtype=torch.float64))

    def test_permutation_is_in_order(self) -> None:
        with silenced() as unsilenced:
            assert torch.randperm(5).tolist() == [0, 1, 2, 3, 4]
        assert unsilenced == set()

    def test_draws_are_random_again_afterwards(self) -> None:
        with silenced():
            torch.rand(4)
        assert torch.rand(4).unique().numel() == 4

    @pytest.mark.parametrize("by_name", [False, True], ids=["by position", "by name"])
    def test_dropout_of_fused_attention_is_taken_out(self, by_name: bool) -> None:
        q, k, v = (torch.randn(2, 2, 5, 4, requires_grad=True) for _ in range(3))
        attention = nn.functional.scaled_dot_product_attention
        with silenced() as unsilenced:
            drawn = attention(q, k, v, dropout_p=0.5) if by_name else attention(q, k, v, None, 0.5)
            drawn.sum().backward()
        assert unsilenced == set()
        assert torch.allclose(drawn, attention(q, k, v))

    @pytest.mark.parametrize("need_weights", [False, True])
    def test_dropout_within_torchs_own_attention_module_is_taken_out(self, need_weights: bool) -> None:
        attention, x = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True), torch.randn(2, 5, 8)
        stream = torch.get_rng_state()
        with silenced() as unsilenced:
            drawn, _ = attention(x, x, x, need_weights=need_weights)
        assert unsilenced == set()
        assert torch.equal(torch.get_rng_state(), stream), "fused kernels draw without any operator that shows it"
        assert torch.allclose(drawn, attention.eval()(x, x, x)[0], atol=1e-6)

    def test_recurrent_dropout_is_taken_out(self) -> None:
        lstm = nn.LSTM(3, 3, num_layers=2, dropout=0.5, batch_first=True)
        x = torch.randn(4, 5, 3)
        with silenced() as unsilenced:
            whole, part = lstm(x)[0], lstm(x[:2])[0]
        assert unsilenced == set()
        assert torch.allclose(whole[:2], part)

    def test_draw_without_a_fixed_answer_is_named(self) -> None:
        with silenced() as unsilenced:
            torch.multinomial(torch.ones(4), 2)
        assert unsilenced == {"aten.multinomial.default"}


class TestStreams:
    @pytest.mark.parametrize(
        ("name", "draw"),
        [
            ("torch CPU", lambda: torch.rand(1)),
            ("Python random", random.random),
            ("NumPy", lambda: np.random.rand()),
        ],
        ids=["torch", "python", "numpy"],
    )
    def test_a_draw_moves_its_own_stream_only(self, name: str, draw: Callable[[], object]) -> None:
        seed_everything(3)
        before = stream_digests(CpuDevice())
        draw()
        after = stream_digests(CpuDevice())
        assert [stream for stream in before if before[stream] != after[stream]] == [name]

    def test_same_seed_gives_the_same_streams(self) -> None:
        seed_everything(3)
        before = stream_digests(CpuDevice())
        torch.rand(1), random.random(), np.random.rand()
        seed_everything(3)
        assert stream_digests(CpuDevice()) == before

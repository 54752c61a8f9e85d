from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from runners.base import WorkloadError
from runners.inspect_model import inspect_model
from search_spaces.model_shape import BlockList, ModelShape

transformers = pytest.importorskip("transformers", reason="the models are its own")

SMALL: dict[str, dict[str, Any]] = {
    "gpt2": {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 32, "n_positions": 16},
    "llama": {
        "num_hidden_layers": 2,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": 32,
    },
    "bert": {
        "num_hidden_layers": 2,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "vocab_size": 32,
    },
}
FOUND = {
    "gpt2": ("mlp..mlp.c_proj", "ln_1..attn.c_attn; ln_2..mlp.c_fc"),
    "llama": (
        "mlp..mlp.down_proj",
        "input_layernorm..self_attn.q_proj,self_attn.k_proj,self_attn.v_proj; "
        "post_attention_layernorm..mlp.gate_proj,mlp.up_proj",
    ),
    "bert": ("..output.dense", "attention.output.LayerNorm..intermediate.dense"),
}


def inspect(model: nn.Module, batch: dict[str, torch.Tensor], **options: Any) -> ModelShape:
    options = {"inner_units": ("activation", "norm"), **options}
    return inspect_model(model, run_step=lambda: model(**batch), **options).shape


def inspect_transformer(kind: str, **options: Any) -> ModelShape:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **SMALL[kind])
    auto = transformers.AutoModelForMaskedLM if kind == "bert" else transformers.AutoModelForCausalLM
    ids = torch.randint(0, 32, (2, 8))
    return inspect(auto.from_config(config).train(), {"input_ids": ids, "labels": ids}, **options)


@pytest.mark.parametrize("kind", SMALL)
def test_units_of_transformers_are_found(kind: str) -> None:
    (blocks,) = inspect_transformer(kind).block_lists
    activation, norm = FOUND[kind]
    units = dict(blocks.units)
    assert (units["activation"], units["norm"]) == (activation, norm)
    assert {"attention", "mlp"} < units.keys()
    assert ("activation", "mlp") in blocks.overlaps


def test_units_are_looked_for_only_where_they_are_wanted() -> None:
    (blocks,) = inspect_transformer("gpt2", inner_units=()).block_lists
    assert dict(blocks.units).keys() == {"attention", "mlp"}


class Block(nn.Module):
    def __init__(self, norm: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.up = nn.Linear(8, 16)
        self.activation = activation
        self.down = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        narrowed: torch.Tensor = self.down(self.activation(self.up(self.norm(x))))
        return x + narrowed


class Twice(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(super().forward(x))


class Stack(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def inspect_blocks(*blocks: nn.Module, **options: Any) -> tuple[BlockList, str]:
    shape = inspect(Stack(*blocks), {"x": torch.randn(4, 8)}, **options)
    return shape.block_lists[0], " ".join(shape.notes)


def test_a_block_that_is_an_mlp_itself_is_its_own_head() -> None:
    blocks, _ = inspect_blocks(*(Block(nn.LayerNorm(8), nn.GELU()) for _ in range(2)))
    assert dict(blocks.units) == {"activation": "..down", "norm": "norm..up"}


@pytest.mark.parametrize(
    ("block", "missing"),
    [
        pytest.param(lambda: Block(nn.BatchNorm1d(8), nn.GELU()), "activation", id="statistics"),
        pytest.param(lambda: Block(nn.BatchNorm1d(8), nn.GELU()), "norm", id="a norm over the batch"),
        pytest.param(lambda: Block(nn.LayerNorm(8), nn.ReLU(inplace=True)), "activation", id="in place"),
        pytest.param(lambda: Block(nn.LayerNorm(8), nn.Identity()), "activation", id="no activation"),
        pytest.param(lambda: Twice(nn.LayerNorm(8), nn.GELU()), "activation", id="called twice"),
        pytest.param(lambda: Twice(nn.LayerNorm(8), nn.GELU()), "norm", id="norm called twice"),
    ],
)
def test_what_cannot_be_rebuilt_safely_is_left_out_with_a_reason(block: Any, missing: str) -> None:
    blocks, notes = inspect_blocks(block(), block())
    assert missing not in blocks.unit_names
    assert f"blocks: unit {missing} is left out: no " in notes


def test_blocks_that_differ_have_no_unit_in_common() -> None:
    other = Block(nn.LayerNorm(8), nn.GELU())
    other.activation = nn.Sequential(nn.GELU(), nn.Linear(16, 16), nn.GELU())
    blocks, notes = inspect_blocks(Block(nn.LayerNorm(8), nn.GELU()), other)
    assert dict(blocks.units) == {"activation": "..down", "norm": "norm..up"}
    other.down = nn.Sequential(nn.Linear(16, 8))  # type: ignore[assignment]
    blocks, notes = inspect_blocks(Block(nn.LayerNorm(8), nn.GELU()), other)
    assert "activation" not in blocks.unit_names
    assert "unit activation is left out: it would begin or end elsewhere in each block" in notes


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        narrowed: torch.Tensor = self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        return narrowed


class Mixture(nn.Module):
    """Sends every token to one of its experts, never to the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 3)
        self.experts = nn.ModuleList(Expert() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).max(-1)
        mixed = torch.zeros_like(x)
        for index in chosen.unique().tolist():
            is_sent = chosen == index
            mixed[is_sent] = weights[is_sent, None] * self.experts[index](x[is_sent])
        return x + mixed


def test_the_activation_of_every_expert_is_one_unit_whichever_of_them_a_pass_calls() -> None:
    torch.manual_seed(1)
    blocks, _ = inspect_blocks(*(Mixture() for _ in range(3)))
    path = dict(blocks.units)["activation"]
    assert path == "; ".join(f"experts.{index}..experts.{index}.down" for index in range(4))


class Stacked(nn.Module):
    """The same with the experts' weights in two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.experts = StackedExperts()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.experts(x, self.router(x).softmax(-1))
        return x + mixed


class StackedExperts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(4, 8, 16)), nn.Parameter(torch.randn(4, 16, 8))

    def forward(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return torch.einsum("te,etd->td", weights, nn.functional.gelu(x @ self.up) @ self.down)


def test_experts_that_are_slices_of_a_parameter_have_no_such_unit_and_the_note_says_what_does_the_same() -> None:
    blocks, notes = inspect_blocks(Stacked(), Stacked())
    assert "activation" not in blocks.unit_names
    assert "unit activation is left out: the experts are slices of the parameters of experts, so no module" in notes
    assert "selective:matmuls keeps their products" in notes


class StackedBesideShared(Stacked):
    """With one more expert, for all tokens, that is a module."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = Expert()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shared: torch.Tensor = self.shared(x)
        return super().forward(x) + shared


def test_the_activation_of_a_shared_expert_alone_is_said_not_to_be_that_of_all() -> None:
    blocks, notes = inspect_blocks(StackedBesideShared(), StackedBesideShared())
    assert dict(blocks.units)["activation"] == "shared..shared.down"
    assert "unit activation is not of every part: the experts are slices of the parameters of experts, so" in notes


def test_named_spans_are_taken_where_the_model_runs_them_so() -> None:
    units = {"gelu": "..down", "first_norm": "norm..up"}
    blocks, _ = inspect_blocks(*(Block(nn.LayerNorm(8), nn.GELU()) for _ in range(2)), units=units, inner_units=())
    assert dict(blocks.units) == units


def test_a_named_span_that_is_none_is_left_out_with_a_reason() -> None:
    blocks, notes = inspect_blocks(
        *(Block(nn.LayerNorm(8), nn.GELU()) for _ in range(2)), units={"late": "norm..down"}, inner_units=()
    )
    assert blocks.units == ()
    assert (
        "unit late is left out: norm..down is not run once, head around or right before tails, by each block" in notes
    )


def test_a_named_span_of_modules_that_are_not_there_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"placement\.units names norm\.\.wide as late, which blocks\.0"):
        inspect_blocks(*(Block(nn.LayerNorm(8), nn.GELU()) for _ in range(2)), units={"late": "norm..wide"})

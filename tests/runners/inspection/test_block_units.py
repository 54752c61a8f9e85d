from __future__ import annotations

import pytest
import torch
from torch import nn

from runners.inspection.block_units import has_unit, known_paths, unit_candidates


def linears() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))


class CausalSelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(4, 4)
        self.value = nn.Linear(4, 4)


class CrossAttention(CausalSelfAttention):
    pass


class PreNorm(nn.Module):
    def __init__(self, fn: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.fn = fn


def block(**parts: nn.Module) -> nn.Module:
    made = nn.Module()
    for name, part in parts.items():
        made.add_module(name, part)
    return made


@pytest.mark.parametrize(
    "parts, expected",
    [
        ({"attn": CausalSelfAttention(), "mlp": linears()}, {"attention": ["attn"], "mlp": ["mlp"]}),
        ({"first": CausalSelfAttention(), "second": linears()}, {"attention": ["first"], "mlp": ["second"]}),
        ({"self_attn": nn.MultiheadAttention(4, 2), "ff": linears()}, {"attention": ["self_attn"], "mlp": ["ff"]}),
        ({"mix": nn.MultiheadAttention(4, 2)}, {"attention": ["mix"]}),
        (
            {"self_attn": CausalSelfAttention(), "encoder_attn": CausalSelfAttention()},
            {"attention": ["self_attn"], "cross_attention": ["encoder_attn"]},
        ),
        ({"a": CausalSelfAttention(), "b": CrossAttention()}, {"attention": ["a"], "cross_attention": ["b"]}),
        ({"a": PreNorm(CausalSelfAttention()), "b": PreNorm(linears())}, {"attention": ["a"], "mlp": ["b"]}),
        (
            {"layer": nn.ModuleList([CausalSelfAttention(), linears()])},
            {"attention": ["layer.0"], "mlp": ["layer.1"]},
        ),
        ({"attention": nn.Sequential(nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 1), nn.Sigmoid())}, {}),
        ({"attn_norm": nn.LayerNorm(4), "attn_gate": nn.Linear(4, 1), "mlp_dropout": nn.Dropout()}, {}),
        ({"intermediate": nn.Linear(4, 8), "output": nn.Linear(8, 4)}, {"mlp": ["intermediate"]}),
    ],
)
def test_units_are_found_by_name_class_or_content(parts: dict[str, nn.Module], expected: dict[str, list[str]]) -> None:
    assert unit_candidates([block(**parts)]) == expected


def test_only_paths_that_every_block_has_are_units() -> None:
    both = [block(attn=CausalSelfAttention(), mlp=linears()), block(mixer=nn.Linear(4, 4), mlp=linears())]
    assert unit_candidates(both) == {"mlp": ["mlp"]}


def test_methods_of_torchs_own_layers_come_before_their_modules() -> None:
    assert unit_candidates([nn.TransformerDecoderLayer(4, 2, 8)]) == {
        "attention": ["_sa_block()", "self_attn"],
        "cross_attention": ["_mha_block()", "multihead_attn"],
        "mlp": ["_ff_block()"],
    }


def test_known_paths_name_modules_and_methods() -> None:
    class WithMethod(PreNorm):
        def feed(self, x: torch.Tensor) -> torch.Tensor:
            return x

    layer = WithMethod(linears())
    assert {"norm", "fn", "fn.0", "feed()"} <= set(known_paths(layer))
    assert has_unit(layer, "feed()")
    assert has_unit(layer, "fn.0")
    assert not has_unit(layer, "fn.9")
    assert not has_unit(layer, "norm.bias()")

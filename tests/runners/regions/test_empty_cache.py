from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from runners.apply_policy import apply_policy
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region

TOKENS = torch.randint(3, 60, (2, 12), generator=torch.Generator().manual_seed(0))


class Cache:
    """Grows with each update, as that of a decoder in generation."""

    def __init__(self) -> None:
        self.stored: dict[int, torch.Tensor] = {}

    def get_seq_length(self, layer: int) -> int:
        return self.stored[layer].shape[1] if layer in self.stored else 0

    def update(self, new: torch.Tensor, layer: int) -> torch.Tensor:
        self.stored[layer] = torch.cat([self.stored[layer], new], 1) if layer in self.stored else new
        return self.stored[layer]


class Block(nn.Module):
    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer_idx = layer
        self.linear = nn.Linear(8, 8)
        self.made: list[weakref.ref[torch.Tensor]] = []

    def forward(self, x: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        keys = torch.tanh(self.linear(x))
        if not torch.compiler.is_compiling():
            self.made.append(weakref.ref(keys))
        if cache is not None:
            keys = cache.update(keys, self.layer_idx)
        return torch.tanh(x + keys.mean(1, keepdim=True))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(layer) for layer in range(4))

    def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, cache=cache)
        return x.square().sum()


def recomputed(model: nn.Module, path: str, *regions: Region) -> nn.Module:
    apply_policy(model, RecomputePolicy(BatchShape(2, 1, 1, 2), (BlockListPlacement(path, 4, (), regions),)))
    return model


def decoder(*regions: Region) -> Decoder:
    torch.manual_seed(0)
    model = Decoder()
    if regions:
        recomputed(model, "blocks", *regions)
    return model


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("region", [Region(0, 3, "block"), Region(0, 3, "segment", 2)], ids=["block", "segment"])
def test_a_cache_does_not_grow_with_each_rebuild(region: Region) -> None:
    x, plain, placed = torch.randn(2, 5, 8), decoder(), decoder(region)
    plain(x, Cache()).backward()
    cache = Cache()
    placed(x, cache).backward()
    assert all(map(torch.equal, gradients(placed), gradients(plain)))
    assert not cache.stored


def test_a_cache_does_not_break_the_graph_of_a_model_that_is_compiled_whole() -> None:
    x, plain, placed = torch.randn(2, 5, 8), decoder(), decoder(Region(0, 3, "block"))
    plain(x, Cache()).backward()
    cache = Cache()
    torch.compile(placed, backend="eager", fullgraph=True)(x, cache).backward()
    torch.testing.assert_close(gradients(placed), gradients(plain))
    assert not cache.stored


def test_blocks_that_are_not_recomputed_fill_the_cache_as_before() -> None:
    cache = Cache()
    decoder(Region(1, 2, "block"))(torch.randn(2, 5, 8), cache).backward()
    assert sorted(cache.stored) == [0, 3]


def test_nothing_of_a_rebuild_outlives_its_block() -> None:
    placed, x = decoder(Region(0, 3, "block")), torch.randn(2, 5, 8)
    alive: list[int] = []
    last, first = placed.blocks[3], placed.blocks[0]
    first.register_full_backward_hook(lambda *_: alive.append(sum(made() is not None for made in last.made)))
    cache = Cache()
    placed(x.requires_grad_(), cache).backward()
    assert len(last.made) == 2
    assert alive == [0]


def test_what_a_cache_holds_from_before_is_input_and_stays() -> None:
    def prefix() -> Cache:
        cache = Cache()
        cache.stored = {layer: torch.full((2, 3, 8), 0.1 * layer) for layer in range(4)}
        return cache

    placed, plain, x = decoder(Region(0, 3, "block")), decoder(), torch.randn(2, 5, 8)
    assert placed(x, prefix()).item() == plain(x, prefix()).item() != plain(x, Cache()).item()


def test_without_gradients_the_cache_is_filled() -> None:
    cache = Cache()
    with torch.no_grad():
        decoder(Region(0, 3, "block"))(torch.randn(2, 5, 8), cache)
    assert [cache.get_seq_length(layer) for layer in range(4)] == [5] * 4


@pytest.mark.parametrize(
    ("name", "path"), [("LlamaForCausalLM", "model.layers"), ("T5ForConditionalGeneration", "decoder.block")]
)
def test_decoders_of_transformers_train_the_same_with_their_cache_on(name: str, path: str) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra huggingface")
    sizes: dict[str, Any] = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 4}
    if name.startswith("T5"):
        sizes = {"vocab_size": 64, "d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 4, "decoder_start_token_id": 0}

    def run(*regions: Region) -> tuple[SimpleNamespace, nn.Module]:
        torch.manual_seed(0)
        architecture = getattr(transformers, name)
        model = architecture(architecture.config_class(**sizes, num_heads=4, num_attention_heads=4)).train()
        assert model.config.use_cache
        if regions:
            recomputed(model, path, *regions)
        output = model(input_ids=TOKENS, labels=TOKENS)
        output.loss.backward()
        return output, model

    (given, plain), (found, placed) = run(), run(Region(0, 3, "block"))
    assert (given.past_key_values.get_seq_length(0), found.past_key_values.get_seq_length(0)) == (12, 0)
    assert all(map(torch.equal, gradients(placed), gradients(plain)))

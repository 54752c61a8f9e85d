from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from inspected_model import WIDTH, Attention, Block, FeedForward, Model, inspect, only_list
from torch import nn
from torch.utils.checkpoint import checkpoint

from search_spaces.model_shape import BlockList


def test_lecture_style_gpt_is_found_with_both_units_and_is_a_chain() -> None:
    assert only_list(Model()) == BlockList("blocks", "Block", 4, (("attention", "sa"), ("mlp", "ffwd")))


def test_a_model_that_was_inspected_is_unchanged() -> None:
    model = Model()
    before = [(name, dict(vars(module))) for name, module in model.named_modules()]
    inspect(model)
    assert [(name, dict(vars(module))) for name, module in model.named_modules()] == before


def test_parameters_that_are_tied_count_once() -> None:
    model = Model()
    untied = inspect(model).shape.num_parameters
    model.blocks[1].ffwd.up.weight = model.blocks[0].ffwd.up.weight
    assert inspect(model).shape.num_parameters == untied - 4 * WIDTH * WIDTH


def test_torch_transformer_has_two_lists_in_the_order_they_run() -> None:
    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.transformer = nn.Transformer(WIDTH, 2, 2, 3, 32, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.transformer(x, x).mean()

    encoder, decoder = inspect(Translator()).shape.block_lists
    assert (encoder.path, encoder.num_blocks) == ("transformer.encoder.layers", 2)
    assert (decoder.path, decoder.num_blocks) == ("transformer.decoder.layers", 3)
    assert decoder.units == (
        ("attention", "_sa_block()"),
        ("cross_attention", "_mha_block()"),
        ("mlp", "_ff_block()"),
    )


def test_experts_inside_a_block_are_no_list_of_blocks() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(WIDTH, 3)
            self.experts = nn.ModuleList(FeedForward() for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            choice = self.router(x).argmax(dim=-1)
            y = torch.zeros_like(x)
            for index, expert in enumerate(self.experts):
                y[choice == index] = expert(x[choice == index])
            return y

    class ExpertBlock(Block):
        def __init__(self) -> None:
            super().__init__()
            self.ffwd = Experts()  # type: ignore[assignment]

    found = only_list(Model(nn.ModuleList(ExpertBlock() for _ in range(2))))
    assert found == BlockList("blocks", "ExpertBlock", 2, (("attention", "sa"), ("mlp", "ffwd")))


def test_two_lists_may_share_parts_but_not_blocks() -> None:
    class TwoLists(Model):
        def __init__(self, more: nn.ModuleList) -> None:
            super().__init__()
            self.more = more

        def run_blocks(self, x: torch.Tensor) -> torch.Tensor:
            for block in [*self.blocks, *self.more]:
                x = block(x)
            return x

    sharing_a_part = TwoLists(nn.ModuleList(Block() for _ in range(2)))
    sharing_a_part.more[0].ffwd = sharing_a_part.blocks[0].ffwd
    assert [found.path for found in inspect(sharing_a_part).shape.block_lists] == ["blocks", "more"]
    first = Block()
    sharing_a_block = TwoLists(nn.ModuleList([first, Block()]))
    sharing_a_block.blocks[0] = first
    assert only_list(sharing_a_block).path == "blocks"


def test_heads_that_all_read_the_same_tensor_are_no_blocks() -> None:
    class ManyHeads(Model):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.ModuleList(FeedForward() for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.run_blocks(x)
            return torch.stack([head(x) for head in self.heads]).mean()

    assert only_list(ManyHeads()).path == "blocks"


def test_lists_of_plain_layers_and_of_tiny_parts_are_no_blocks() -> None:
    class Adapter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[..., :1] * self.scale

    class WithSmallParts(Model):
        def __init__(self) -> None:
            super().__init__()
            self.inlets = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
            self.adapters = nn.ModuleList(Adapter() for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.inlets:
                x = layer(x)
            x = self.run_blocks(x)[..., :1]
            for adapter in self.adapters:
                x = adapter(x)
            return x.mean()

    assert only_list(WithSmallParts()).path == "blocks"


def test_stages_give_way_to_the_blocks_they_hold() -> None:
    class Stage(nn.Module):
        def __init__(self, depth: int) -> None:
            super().__init__()
            self.shrink = nn.Linear(WIDTH, WIDTH)
            self.blocks = nn.Sequential(*(Block() for _ in range(depth)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.blocks(self.shrink(x))

    lists = inspect(Model(nn.ModuleList([Stage(2), Stage(3)]))).shape.block_lists
    assert [(found.path, found.num_blocks) for found in lists] == [("blocks.0.blocks", 2), ("blocks.1.blocks", 3)]


def test_a_residual_block_of_alike_layers_stays_one_block() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(FeedForward(), FeedForward())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.layers(x)

    assert only_list(Model(nn.Sequential(Residual(), Residual()))).path == "blocks"


def test_layers_that_a_block_of_convolutions_runs_in_a_row_are_no_blocks() -> None:
    class Convolutions(nn.Module):
        def __init__(self, adds: bool) -> None:
            super().__init__()
            self.adds = adds
            self.layers = nn.Sequential(
                *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU()) for _ in range(3))
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.layers(x) if self.adds else self.layers(x)

    assert only_list(Model(nn.Sequential(Convolutions(adds=False), Convolutions(adds=True)))).path == "blocks"


def test_a_residual_added_in_place_makes_no_stage() -> None:
    class InPlaceResidual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(FeedForward(), FeedForward())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layers(x)
            y += x
            return y

    assert only_list(Model(nn.Sequential(InPlaceResidual(), InPlaceResidual()))).path == "blocks"


def test_a_stage_that_returns_a_view_of_its_last_block_is_still_a_stage() -> None:
    class Stage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(Block(), Block())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.blocks(x).transpose(0, 1).transpose(0, 1)

    lists = inspect(Model(nn.ModuleList([Stage(), Stage()]))).shape.block_lists
    assert [found.path for found in lists] == ["blocks.0.blocks", "blocks.1.blocks"]


def test_a_stage_of_transformer_blocks_is_a_stage_whatever_comes_after_them() -> None:
    class Stage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(Block(), Block())
            self.norm = nn.LayerNorm(WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.blocks(x))

    lists = inspect(Model(nn.ModuleList([Stage(), Stage()]))).shape.block_lists
    assert [found.path for found in lists] == ["blocks.0.blocks", "blocks.1.blocks"]


def test_a_list_of_embeddings_is_no_list_of_blocks() -> None:
    class Embeds(Model):
        def __init__(self) -> None:
            super().__init__()
            self.patch_embeddings = nn.ModuleList(FeedForward() for _ in range(2))

        def run_blocks(self, x: torch.Tensor) -> torch.Tensor:
            return super().run_blocks(self.patch_embeddings[1](self.patch_embeddings[0](x)))

    assert only_list(Embeds()).path == "blocks"


def test_a_wide_head_does_not_hide_the_blocks() -> None:
    model = Model()
    model.head = nn.Linear(WIDTH, 100_000)
    assert only_list(model).path == "blocks"


def test_a_list_of_a_single_block_is_found() -> None:
    found = only_list(Model(nn.ModuleList([Block()])))
    assert (found.num_blocks, found.can_segment) == (1, True)


def test_attention_and_mlp_in_the_same_wrapper_are_no_alike_blocks() -> None:
    class Residual(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.inner(self.norm(x))

    def block() -> nn.Sequential:
        return nn.Sequential(Residual(Attention()), Residual(FeedForward()))

    found = only_list(Model(nn.Sequential(block(), block(), block())))
    assert found == BlockList("blocks", "Sequential", 3, (("attention", "0"), ("mlp", "1")))


def test_wrappers_around_different_parts_in_one_flat_list_are_blocks() -> None:
    class Residual(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.inner(x)

    flat = nn.ModuleList([Residual(Attention()), Residual(FeedForward()), Residual(Attention())])
    assert only_list(Model(flat)) == BlockList("blocks", "Residual", 3)


def test_a_sequence_of_stages_and_joints_gives_way_to_its_stages() -> None:
    class Hierarchy(Model):
        def run_blocks(self, x: torch.Tensor) -> torch.Tensor:
            return self.blocks(x)

    def stage(depth: int) -> nn.Sequential:
        return nn.Sequential(*(Block() for _ in range(depth)))

    features = nn.Sequential(nn.Linear(WIDTH, WIDTH), stage(2), nn.LayerNorm(WIDTH), stage(4))
    assert [found.path for found in inspect(Hierarchy(features)).shape.block_lists] == ["blocks.1", "blocks.3"]


def test_a_convolutional_net_has_blocks_without_units_and_says_so() -> None:
    class Convolution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stages = nn.ModuleList(
                nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU()) for _ in range(3)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for stage in self.stages:
                x = stage(x)
            return x.mean()

    shape = inspect(Convolution(), x=torch.randn(2, 3, 8, 8)).shape
    assert shape.block_lists == (BlockList("stages", "Sequential", 3, keeps_statistics=True),)
    assert shape.notes == (
        "stages: not every block has a unit attention and mlp (Sequential: 0, 1, 2). If there is one, name it in "
        "search.yaml: placement.units: {attention: PATH}.",
    )


def test_several_kinds_in_one_list_are_joined() -> None:
    class OtherBlock(Block):
        pass

    found = only_list(Model(nn.ModuleList([Block(), OtherBlock(), Block()])))
    assert (found.kind, found.units) == ("Block|OtherBlock", (("attention", "sa"), ("mlp", "ffwd")))


def test_one_module_at_several_positions_is_reported_and_cannot_be_a_segment() -> None:
    shared = Block()
    shape = inspect(Model(nn.ModuleList([shared, Block(), shared]))).shape
    (found,) = shape.block_lists
    assert found.aliases == ((0, 2),)
    assert found.segment_refusal == "one module stands at positions 0, 2"
    assert "blocks: positions 0, 2 hold one module; they are given one choice." in shape.notes


def test_a_block_that_is_looped_over_is_reported() -> None:
    class Looped(Model):
        def run_blocks(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                x = super().run_blocks(x)
            return x

    shape = inspect(Looped(nn.ModuleList([Block(), Block()]))).shape
    assert shape.block_lists[0].segment_refusal == "blocks.0 was called 3 times in one forward pass"
    assert any("6 calls of 2 block(s) in one forward pass" in note for note in shape.notes)


def test_blocks_skipped_at_random_break_chains_and_nothing_else() -> None:
    class LayerDrop(Model):
        def run_blocks(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                if not self.training or torch.rand(()) > 0.5:
                    x = block(x)
            return x

    torch.manual_seed(0)
    model = LayerDrop(nn.ModuleList(Block() for _ in range(8)))
    found = only_list(model)
    assert (found.num_blocks, found.unit_names) == (8, ("attention", "mlp"))
    assert found.segment_refusal is not None
    assert found.segment_refusal.endswith("was not called")
    assert only_list(model.eval()).can_segment


def test_frozen_blocks_without_a_gradient_are_not_offered() -> None:
    class FrozenTower(Model):
        def __init__(self) -> None:
            super().__init__()
            self.tower = nn.Sequential(*(Block() for _ in range(3))).requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(self.tower(x))

    assert only_list(FrozenTower()).path == "blocks"
    shape = inspect(FrozenTower(), blocks=["tower"]).shape
    assert "tower: no gradient flows through its blocks, so recompute there changes nothing." in shape.notes


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recompute_of_the_models_own_is_found(use_reentrant: bool) -> None:
    class OwnRecompute(Model):
        def run_blocks(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=use_reentrant)
            return x

    found = inspect(OwnRecompute())
    assert found.has_own_recompute
    assert any("the baseline is the model as given" in note for note in found.shape.notes)
    assert not inspect(Model()).has_own_recompute


def test_a_model_in_eval_mode_is_pointed_out_and_left_in_it() -> None:
    model = Model().eval()
    assert any("The model is in eval mode as built" in note for note in inspect(model).shape.notes)
    assert not any(module.training for module in model.modules())


def test_a_model_without_blocks_says_how_to_name_them() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x).mean()

    shape = inspect(Flat()).shape
    assert shape.block_lists == ()
    assert shape.notes == (
        "No list of alike blocks that run one after another was found, so nothing can be recomputed. If there is one, "
        "name it in search.yaml: placement.blocks: [PATH]. Containers in the model: net.",
    )
    assert only_list(Flat(), blocks=["net"]).num_blocks == 3


def test_lists_of_parts_that_are_never_called_are_explained() -> None:
    class PairsOfParts(Model):
        def run_blocks(self, x: torch.Tensor) -> torch.Tensor:
            for attention, mlp in self.blocks:
                x = x + attention(x)
                x = x + mlp(x)
            return x

    pairs = nn.ModuleList(nn.ModuleList([Attention(), FeedForward()]) for _ in range(3))
    (note,) = inspect(PairsOfParts(pairs)).shape.notes
    assert note.startswith("blocks holds lists of parts, which are never called themselves")


def _code_between(x: torch.Tensor, block: nn.Module) -> torch.Tensor:
    return x + block(x)


def _view_between(x: torch.Tensor, block: nn.Module) -> torch.Tensor:
    return block(x).view_as(x)


def _edit_between(x: torch.Tensor, block: nn.Module) -> torch.Tensor:
    return block(x).mul_(2)


@pytest.mark.parametrize(
    "step, refusal",
    [
        (_code_between, "blocks.1 receives something else than the output of blocks.0"),
        (_view_between, "blocks.1 receives something else than the output of blocks.0"),
        (_edit_between, "the output of blocks.0 is edited in place before or after blocks.1 reads it"),
    ],
)
def test_code_between_blocks_refuses_segments_and_keeps_the_rest(
    step: Callable[[torch.Tensor, nn.Module], torch.Tensor], refusal: str
) -> None:
    class Between(Model):
        def run_blocks(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = step(x, block)
            return x

    found = only_list(Between())
    assert found.segment_refusal == refusal
    assert found.unit_names == ("attention", "mlp")


@pytest.mark.parametrize(
    ("name", "is_told"), [("GPT2LMHeadModel", True), ("T5ForConditionalGeneration", True), ("BertForMaskedLM", False)]
)
def test_a_cache_for_generation_is_said_to_take_memory_where_blocks_get_one(name: str, is_told: bool) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra huggingface")
    architecture = getattr(transformers, name)
    sizes = {"vocab_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "decoder_start_token_id": 0}
    config_class = architecture.config_class
    config = config_class(**sizes, hidden_size=8, intermediate_size=16)
    if name.startswith("T5"):
        config = config_class(vocab_size=16, d_model=8, d_kv=4, d_ff=16, decoder_start_token_id=0)
    # The default of both kinds: it says nothing of encoders.
    assert config.use_cache
    tokens = torch.zeros(2, 4, dtype=torch.int64)

    def is_said() -> bool:
        found = inspect(architecture(config).train(), input_ids=tokens, labels=tokens)
        return any("config with use_cache: false" in note for note in found.shape.notes)

    assert is_said() is is_told
    config.use_cache = False
    assert not is_said()

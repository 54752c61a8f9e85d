from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from runners.base import WorkloadError
from runners.inspect_model import inspect_model
from runners.trial import WorkloadSpec
from runners.workloads.base import Workload
from runners.workloads.load import load_workload

pytest.importorskip("transformers", reason='needs transformers: pip install "recompute-tuner[huggingface]"')

WIDTH = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
LLAMA = {**WIDTH, "vocab_size": 64, "num_hidden_layers": 3, "num_key_value_heads": 2}
BERT = {**WIDTH, "vocab_size": 64, "num_hidden_layers": 3}
OPT = {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3, "ffn_dim": 64}
GPT2 = {"vocab_size": 64, "n_embd": 32, "n_head": 4, "n_layer": 3}
BART = {
    "vocab_size": 64,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}
SPEECH = {**WIDTH, "num_hidden_layers": 2, "conv_dim": [8] * 7, "num_conv_pos_embedding_groups": 2}
BOTH = (("attention", "self_attn"), ("mlp", "mlp"))
Expected = dict[str, tuple[int, tuple[tuple[str, str], ...]]]


def load(name: str, args: dict[str, Any], **options: Any) -> Workload:
    options.setdefault("sequence_length", 16)
    return load_workload(WorkloadSpec(model_factory=f"huggingface:{name}", model_args=args, **options))


@pytest.mark.parametrize(
    "name, args, model_class, lists",
    [
        ("gpt2", GPT2, "GPT2LMHeadModel", {"transformer.h": (3, (("attention", "attn"), ("mlp", "mlp")))}),
        ("llama", LLAMA, "LlamaForCausalLM", {"model.layers": (3, BOTH)}),
        ("qwen2", LLAMA, "Qwen2ForCausalLM", {"model.layers": (3, BOTH)}),
        ("mistral", LLAMA, "MistralForCausalLM", {"model.layers": (3, BOTH)}),
        ("gemma2", {**LLAMA, "head_dim": 8}, "Gemma2ForCausalLM", {"model.layers": (3, BOTH)}),
        ("phi", LLAMA, "PhiForCausalLM", {"model.layers": (3, BOTH)}),
        ("mixtral", {**LLAMA, "num_local_experts": 4}, "MixtralForCausalLM", {"model.layers": (3, BOTH)}),
        (
            "qwen2_moe",
            {**LLAMA, "num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
            "Qwen2MoeForCausalLM",
            {"model.layers": (3, BOTH)},
        ),
        (
            "gpt_neox",
            BERT,
            "GPTNeoXForCausalLM",
            {"gpt_neox.layers": (3, (("attention", "attention"), ("mlp", "mlp")))},
        ),
        (
            "falcon",
            {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3},
            "FalconForCausalLM",
            {"transformer.h": (3, (("attention", "self_attention"), ("mlp", "mlp")))},
        ),
        (
            "bloom",
            {"vocab_size": 64, "hidden_size": 32, "n_head": 4, "n_layer": 3},
            "BloomForCausalLM",
            {"transformer.h": (3, (("attention", "self_attention"), ("mlp", "mlp")))},
        ),
        (
            "opt",
            {**OPT, "word_embed_proj_dim": 32},
            "OPTForCausalLM",
            {"model.decoder.layers": (3, (("attention", "self_attn"),))},
        ),
        (
            "mamba",
            {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 3, "state_size": 4},
            "MambaForCausalLM",
            {"backbone.layers": (3, ())},
        ),
        (
            "bert",
            BERT,
            "BertForMaskedLM",
            {"bert.encoder.layer": (3, (("attention", "attention"), ("mlp", "feed_forward_chunk()")))},
        ),
        (
            "roberta",
            BERT,
            "RobertaForMaskedLM",
            {"roberta.encoder.layer": (3, (("attention", "attention"), ("mlp", "feed_forward_chunk()")))},
        ),
        (
            "deberta-v2",
            BERT,
            "DebertaV2ForMaskedLM",
            {"deberta.encoder.layer": (3, (("attention", "attention"), ("mlp", "intermediate")))},
        ),
        (
            "distilbert",
            {"vocab_size": 64, "dim": 32, "n_heads": 4, "hidden_dim": 64, "n_layers": 3},
            "DistilBertForMaskedLM",
            {"distilbert.transformer.layer": (3, (("attention", "attention"), ("mlp", "ffn")))},
        ),
        (
            "albert",
            {**BERT, "embedding_size": 16},
            "AlbertForMaskedLM",
            {
                "albert.encoder.albert_layer_groups.0.albert_layers": (
                    1,
                    (("attention", "attention"), ("mlp", "ff_chunk()")),
                )
            },
        ),
        (
            "t5",
            {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "num_layers": 3}
            | {"num_decoder_layers": 2},
            "T5ForConditionalGeneration",
            {
                "encoder.block": (3, (("attention", "layer.0"), ("mlp", "layer.1"))),
                "decoder.block": (2, (("attention", "layer.0"), ("cross_attention", "layer.1"), ("mlp", "layer.2"))),
            },
        ),
        (
            "bart",
            BART,
            "BartForConditionalGeneration",
            {
                "model.encoder.layers": (2, (("attention", "self_attn"),)),
                "model.decoder.layers": (3, (("attention", "self_attn"), ("cross_attention", "encoder_attn"))),
            },
        ),
        (
            "whisper",
            {**BART, "max_source_positions": 20, "num_mel_bins": 8},
            "WhisperForConditionalGeneration",
            {
                "model.encoder.layers": (2, (("attention", "self_attn"),)),
                "model.decoder.layers": (3, (("attention", "self_attn"), ("cross_attention", "encoder_attn"))),
            },
        ),
        (
            "vit",
            {**WIDTH, "num_hidden_layers": 3, "image_size": 32, "patch_size": 8},
            "ViTForImageClassification",
            {"vit.layers": (3, (("attention", "attention"), ("mlp", "mlp")))},
        ),
        (
            "swin",
            {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "image_size": 32, "patch_size": 2}
            | {"window_size": 4},
            "SwinForImageClassification",
            {
                "swin.encoder.layers.0.blocks": (2, (("attention", "attention"), ("mlp", "mlp"))),
                "swin.encoder.layers.1.blocks": (2, (("attention", "attention"), ("mlp", "mlp"))),
            },
        ),
        (
            "convnext",
            {"hidden_sizes": [8, 16, 24, 32], "depths": [2, 2, 3, 2], "image_size": 64},
            "ConvNextForImageClassification",
            {f"convnext.encoder.stages.{stage}.layers": (depth, ()) for stage, depth in enumerate([2, 2, 3, 2])},
        ),
        (
            "wav2vec2",
            SPEECH,
            "Wav2Vec2ForSequenceClassification",
            {
                "wav2vec2.feature_extractor.conv_layers": (7, ()),
                "wav2vec2.encoder.layers": (2, (("attention", "attention"), ("mlp", "feed_forward"))),
            },
        ),
    ],
)
def test_a_model_type_trains_and_its_blocks_and_units_are_found(
    name: str, args: dict[str, Any], model_class: str, lists: Expected
) -> None:
    workload = load(name, args, sequence_length=None if name == "wav2vec2" else 16)
    model, batch = workload.build_model(), workload.make_batch(2)
    assert type(model).__name__ == model_class
    assert all(module.training for module in model.modules())
    loss = workload.loss_of(model(**batch))
    loss.backward()
    assert torch.isfinite(loss)
    assert all(tensor.shape[0] == 2 for tensor in batch.values())
    found = inspect_model(model, run_step=lambda: model(**batch))
    assert {each.path: (each.num_blocks, each.units) for each in found.shape.block_lists} == lists
    assert not found.has_own_recompute


def test_t5_hands_its_position_bias_on_so_its_blocks_are_no_segments() -> None:
    args = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "num_layers": 2}
    workload = load("t5", args)
    model, batch = workload.build_model(), workload.make_batch(1)
    encoder, decoder = inspect_model(model, run_step=lambda: model(**batch)).shape.block_lists
    assert encoder.segment_refusal == "encoder.block.1 receives another position_bias than encoder.block.0"
    assert decoder.segment_refusal == "decoder.block.1 receives another position_bias than decoder.block.0"


@pytest.mark.parametrize("name, args", [("gpt2", GPT2), ("llama", LLAMA), ("bert", BERT), ("mixtral", LLAMA)])
def test_blocks_of_plain_decoders_and_encoders_are_chains(name: str, args: dict[str, Any]) -> None:
    workload = load(name, args)
    model, batch = workload.build_model(), workload.make_batch(1)
    (blocks,) = inspect_model(model, run_step=lambda: model(**batch)).shape.block_lists
    assert blocks.can_segment


def test_checkpointing_switched_on_in_transformers_is_found() -> None:
    workload = load("gpt2", GPT2)
    model: Any = workload.build_model()
    batch = workload.make_batch(1)
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    found = inspect_model(model, run_step=lambda: model(**batch))
    assert found.has_own_recompute
    assert found.shape.block_lists[0].units == (("attention", "attn"), ("mlp", "mlp"))


def test_the_same_seed_builds_the_same_model_and_the_dtype_is_the_parameters() -> None:
    workload = load("llama", LLAMA, dtype="bfloat16")
    first, second = workload.build_model(), workload.build_model()
    assert {parameter.dtype for parameter in first.parameters()} == {torch.bfloat16}
    assert {buffer.dtype for buffer in first.buffers()} == {torch.float32}
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, second.get_parameter(name)), name


def test_what_users_leave_out_fits_the_vocabulary_and_the_cache_is_off() -> None:
    config: Any = load("gpt2", GPT2).build_model().config
    assert (config.bos_token_id, config.eos_token_id, config.use_cache) == (63, 63, False)
    asked: Any = load("gpt2", {**GPT2, "use_cache": True, "attn_implementation": "eager"}).build_model().config
    assert asked.use_cache is True
    assert asked._attn_implementation == "eager"


def test_tokens_are_never_padding() -> None:
    workload = load("bert", {**BERT, "vocab_size": 3})
    workload.build_model()
    assert set(workload.make_batch(8)["input_ids"].flatten().tolist()) == {1, 2}


def test_text_has_the_length_that_was_asked_for_and_images_have_none() -> None:
    assert load("gpt2", GPT2).tokens_per_sample == 16
    vit = load("vit", {**WIDTH, "num_hidden_layers": 1, "image_size": [16, 32], "patch_size": 8, "num_channels": 1})
    vit.build_model()
    assert vit.tokens_per_sample is None
    assert vit.make_batch(3)["pixel_values"].shape == (3, 1, 16, 32)


def test_a_classifier_with_one_output_learns_a_value() -> None:
    workload = load("vit", {**WIDTH, "num_hidden_layers": 1, "image_size": 16, "patch_size": 8, "num_labels": 1})
    model, batch = workload.build_model(), workload.make_batch(2)
    assert batch["labels"].is_floating_point()
    assert torch.isfinite(workload.loss_of(model(**batch)))


def test_a_folder_with_a_config_is_built_and_its_fields_can_be_changed(tmp_path: Path) -> None:
    load("gpt2", GPT2).build_model().config.save_pretrained(tmp_path / "small")  # type: ignore[operator]  # a config
    workload = load("small", {"n_layer": 1}, base_dir=str(tmp_path))
    model: Any = workload.build_model()
    assert (model.config.n_layer, model.config.n_embd) == (1, 32)
    with pytest.raises(WorkloadError, match=r"model.args.n_layers is set, but huggingface:small has no such setting"):
        load("small", {"n_layers": 1}, base_dir=str(tmp_path))


@pytest.mark.parametrize(
    "name, args, message",
    [
        ("gpt3", {}, r"huggingface:gpt3, which is neither a model type .+ nor a folder; did you mean .*gpt2"),
        ("openai-community/gpt2", {}, r"there is no folder \S+; models are built from their config without network"),
        ("empty", {}, r"the folder \S+empty holds no config.json"),
        ("broken", {}, r"model.factory is huggingface:broken, whose config.json failed"),
        ("gpt2", {"n_layers": 3}, r"model.args.n_layers is set, but huggingface:gpt2 has no such setting; .*n_layer"),
        ("gpt2", {"hidden_size": 8, "n_embd": 8}, r"model.args.hidden_size and model.args.n_embd are one setting"),
        ("gpt2", {"dtype": "float16"}, r"model.args.dtype is set; the parameters' type is set by model.dtype"),
        ("gpt2", {"n_layer": "three"}, r"model.args do not make a config of huggingface:gpt2: .+n_layer"),
        ("clip", {"vision_config": {"layers": 3}}, r"model.args.vision_config.layers is set, but huggingface:clip"),
        ("clap", {}, r"no class of the installed transformers computes a loss for model type clap"),
    ],
)
def test_wrong_types_and_arguments_are_refused_by_name(
    tmp_path: Path, name: str, args: dict[str, Any], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    with pytest.raises(WorkloadError, match=message) as caught:
        load(name, args, base_dir=str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "args, length, message",
    [
        ({**GPT2, "n_embd": 30}, 16, r"huggingface:gpt2, which with these model.args failed: ValueError: .+divisible"),
        ({**GPT2, "attn_implementation": "flash"}, 16, r"failed: ValueError: .+attn_implementation"),
        ({**GPT2, "n_positions": 8}, 16, r"positions for 8 tokens \(transformer.wpe\); lower it, or set n_positions"),
    ],
)
def test_arguments_that_build_no_model_for_the_batch_are_refused(
    args: dict[str, Any], length: int, message: str
) -> None:
    with pytest.raises(WorkloadError, match=message):
        load("gpt2", args, sequence_length=length).build_model()


@pytest.mark.parametrize(
    "name, args, limit",
    [
        ("roberta", {**BERT, "max_position_embeddings": 10}, 8),
        ("opt", {**OPT, "word_embed_proj_dim": 32, "max_position_embeddings": 10}, 10),
        ("bart", {**BART, "max_position_embeddings": 10}, 10),
    ],
)
def test_reserved_rows_of_a_position_table_are_not_counted(name: str, args: dict[str, Any], limit: int) -> None:
    workload = load(name, args, sequence_length=limit)
    model = workload.build_model()
    model(**workload.make_batch(1))
    with pytest.raises(WorkloadError, match=rf"positions for {limit} tokens"):
        load(name, args, sequence_length=limit + 1).build_model()


def test_computed_positions_have_no_limit() -> None:
    workload = load("llama", {**LLAMA, "max_position_embeddings": 4}, sequence_length=8)
    model = workload.build_model()
    assert torch.isfinite(workload.loss_of(model(**workload.make_batch(1))))


def test_text_without_a_length_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"batch.sequence_length is not set, and huggingface:gpt2 reads text"):
        load("gpt2", GPT2, sequence_length=None)


def test_a_function_that_returns_a_model_of_transformers_gets_its_batches(tmp_path: Path) -> None:
    (tmp_path / "tagger.py").write_text(
        "from transformers import BertConfig, BertForTokenClassification\n"
        "def build():\n"
        "    return BertForTokenClassification(BertConfig(vocab_size=64, hidden_size=32, num_attention_heads=4,\n"
        "        intermediate_size=64, num_hidden_layers=1, num_labels=5))\n"
    )
    spec = WorkloadSpec(model_factory="tagger.py:build", base_dir=str(tmp_path), sequence_length=16)
    workload = load_workload(spec)
    model, batch = workload.build_model(), workload.make_batch(2)
    assert batch["labels"].shape == (2, 16)
    assert int(batch["labels"].max()) < 5
    workload.loss_of(model(**batch)).backward()


def test_without_transformers_the_extra_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    message = r'huggingface:gpt2, which needs transformers: .+pip install "recompute-tuner\[huggingface\]"'
    with pytest.raises(WorkloadError, match=message):
        load("gpt2", GPT2)


@pytest.mark.slow
def test_building_says_nothing_and_opens_no_connection(tmp_path: Path) -> None:
    code = (
        "import socket\n"
        "def refuse(*args): raise SystemExit('a connection was opened')\n"
        "socket.socket.connect = refuse\n"
        "from runners.trial import WorkloadSpec\n"
        "from runners.workloads.load import load_workload\n"
        "args = dict(n_layer=1, n_embd=8, n_head=2, vocab_size=16)\n"
        "spec = WorkloadSpec(model_factory='huggingface:gpt2', model_args=args, sequence_length=4)\n"
        "workload = load_workload(spec)\n"
        "model = workload.build_model()\n"
        "workload.loss_of(model(**workload.make_batch(2))).backward()\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

"""Values that are refused, each with what is allowed."""

from __future__ import annotations

import re

import pytest
from search_texts import refusal
from search_texts import with_sections as _with


@pytest.mark.usefixtures("folder")
class TestValues:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (
                _with(study="2024"),
                "4: study is 2024; allowed: text such as gpt2-12l; put it in quotes if text is meant",
            ),
            (_with(study="a/b"), "4: study is 'a/b'; allowed: at most 80 letters"),
            (
                _with(model="huggingface:gpt2"),
                "1: model is 'huggingface:gpt2'; allowed: a mapping with factory, args",
            ),
            (_with(model="{factory: gpt2}"), "1: model.factory is 'gpt2'; allowed: huggingface:TYPE_OR_DIR"),
            (
                _with(model="{factory: no.py:f}"),
                "1: model.factory is 'no.py:f', but there is no file no.py; name a file",
            ),
            (
                _with(model="{factory: 'timm:x', dtype: float23}"),
                "1: model.dtype is 'float23'; allowed: .*mean float32",
            ),
            (
                _with(model="{factory: 'timm:x', dtype: fp32}"),
                "1: model.dtype is 'fp32'; allowed: float32, bfloat16",
            ),
            (_with(model="{factory: 'timm:x', args: [1]}"), r"1: model.args is \[1\]; allowed: a mapping"),
            (
                _with(model="{factory: 'timm:x', compile: block}"),
                "1: model.compile is 'block'; allowed: blocks, model",
            ),
            (
                _with(batch="{global_batch_size: '8'}"),
                "2: batch.global_batch_size is '8'; .*; remove the quotes",
            ),
            (
                _with(batch="{global_batch_size: true}"),
                "2: batch.global_batch_size is true; allowed: a whole number",
            ),
            (
                _with(batch="{global_batch_size: 8.0}"),
                "2: batch.global_batch_size is 8.0; allowed: a whole number",
            ),
            (
                _with(batch="{global_batch_size: 1e2}"),
                "2: batch.global_batch_size is 1e2; allowed: a whole number",
            ),
            (
                _with(batch="{global_batch_size: 010}"),
                "2: batch.global_batch_size is '010', which is one number, another",
            ),
            (
                _with(batch="{global_batch_size: 1_0}"),
                "2: batch.global_batch_size is '1_0', which is one number, another",
            ),
            (
                _with(batch="{global_batch_size: 0}"),
                "2: batch.global_batch_size is 0; allowed: a whole number from 1 to",
            ),
            (
                _with(batch="{global_batch_size: 8, sequence_length: [64, 128, 64]}"),
                r"2: batch.sequence_length\[2\] is 64, as batch.sequence_length\[0\] is already; name each once",
            ),
            (
                _with(batch="{global_batch_size: 8, sequence_length: [64, 0]}"),
                r"2: batch.sequence_length\[1\] is 0; allowed: a whole number of at least 1",
            ),
            (
                _with(batch="{global_batch_size: 8, sequence_length: []}"),
                "2: batch.sequence_length is an empty list; allowed: a whole number of at least 1 or null or a list",
            ),
            (
                _with(batch="{global_batch_size: 8, sequence_length: true}"),
                "2: batch.sequence_length is true; allowed: a whole number of at least 1 or null or a list, each entry",
            ),
            (
                _with(batch="{global_batch_size: 8, sequence_length: '64'}"),
                "2: batch.sequence_length is '64'; allowed: .+; remove the quotes",
            ),
            (
                _with(batch="{global_batch_size: 8, factory: data}"),
                "2: batch.factory is 'data'; allowed: package.module:f",
            ),
            (_with(optimizer="{name: adma}"), "4: optimizer.name is 'adma'; allowed: .*; did you mean adam"),
            (_with(optimizer="{name: lbfgs}"), "4: optimizer.name is 'lbfgs'; allowed: adadelta"),
            (
                _with(optimizer="{args: {fused: off}}"),
                "4: optimizer.args.fused is 'off', which some readers .* true or false",
            ),
            (
                _with(optimizer="{args: {x: [1:30]}}"),
                r"4: optimizer.args.x\[0\] is '1:30', .* others for a number; write",
            ),
            (
                _with(optimizer="{args: {x: 2024-01-31}}"),
                "4: optimizer.args.x is '2024-01-31', .* a date; put it in quotes",
            ),
            (
                _with(memory_cap="16000"),
                "3: memory_cap is '16000', a number without a unit; write 16000GiB or 16000GB",
            ),
            (_with(memory_cap="0.9"), "3: memory_cap is '0.9', a number without a unit"),
            (_with(memory_cap="16Gb"), "3: memory_cap is '16Gb', which are bits"),
            (_with(memory_cap="-1GiB"), "3: memory_cap is '-1GiB', which is not more than zero"),
            (_with(memory_cap="true"), "3: memory_cap is true; allowed: text such as 80GiB, 24GB, 90%"),
            (
                _with(placement="{blocks: transformer.h}"),
                "4: placement.blocks is 'transformer.h'; .*; put it in brackets",
            ),
            (_with(placement="{blocks: atuo}"), "4: placement.blocks is 'atuo'; .*; did you mean auto"),
            (
                _with(placement="{blocks: ['a b']}"),
                r"4: placement.blocks\[0\] is 'a b'; allowed: a path below the model",
            ),
            (_with(placement="{units: {a+b: x}}"), "4: placement.units names a unit 'a.b'; allowed: letters"),
            (
                _with(placement="{units: [attn]}"),
                r"4: placement.units is \['attn'\]; allowed: auto or a mapping",
            ),
            (_with(placement="{actions: []}"), "4: placement.actions is an empty list; allowed: a list"),
            (
                _with(placement="{actions: block}"),
                "4: placement.actions is 'block'; allowed: a list, .*; put it in brackets",
            ),
            (
                _with(placement="{actions: ['selective:mm']}"),
                r"4: placement.actions\[0\] is 'selective:mm': 'mm' names no operator; .* with one of matmuls,",
            ),
            (
                _with(placement="{actions: [offload+mlp]}"),
                r"4: placement.actions\[0\] is 'offload\+mlp'; allowed: none, block, segment, selective, offload",
            ),
            (
                _with(placement="{actions: [atention]}"),
                r"4: placement.actions\[0\] is 'atention', .*; did you mean attention",
            ),
            (
                _with(placement="{actions: [mlp+mlp]}"),
                r"4: placement.actions\[0\] is 'mlp.mlp'; allowed: none, block",
            ),
            (
                _with(placement="{segment_sizes: [0]}"),
                r"4: placement.segment_sizes\[0\] is 0; allowed: a whole number of at",
            ),
            (
                _with(placement="{segment_sizes: ['2']}"),
                r"4: placement.segment_sizes\[0\] is '2'; .*; remove the quotes",
            ),
            (
                _with(placement="{segment_sizes: [2.5]}"),
                r"4: placement.segment_sizes\[0\] is 2.5; allowed: a whole number",
            ),
            (_with(placement="{segment_sizes: 2}"), "4: placement.segment_sizes is 2; allowed: auto or a list"),
            (
                _with(placement="{preserve_rng_state: serach}"),
                "4: placement.preserve_rng_state is 'serach'; .*mean search",
            ),
            (
                _with(placement="{preserve_rng_state: off}"),
                "4: placement.preserve_rng_state is 'off'; .*; write false",
            ),
            (
                _with(placement="{target: megatrn}"),
                "4: placement.target is 'megatrn'; allowed: policy, .* or null; did you mean megatron",
            ),
            (
                _with(placement="{target: accelerate, preserve_rng_state: true}"),
                "4: placement.preserve_rng_state is true, but placement.target accelerate can say false only; remove",
            ),
            (
                _with(search="{sampler: tpee}"),
                "4: search.sampler is 'tpee'; allowed: model_guided, tpe, gp, nsga2, random, grid; did you mean t",
            ),
            (
                _with(search="{time_limit: 10}"),
                "4: search.time_limit is '10', a number without a unit; write 10s or 10m",
            ),
            (
                _with(search="{time_limit: 1:30}"),
                "4: search.time_limit is '1:30'; allowed: a length of time such as 90s",
            ),
            (_with(search="{seed: -1}"), "4: search.seed is -1; allowed: a whole number from 0 to 4294967295"),
            (
                _with(search=""),
                "4: search is empty .null.; allowed: a mapping with num_trials, .*; give it a key, or remove it",
            ),
            (
                _with(measurement="{verify: yes}"),
                "4: measurement.verify is 'yes'; allowed: true or false; write true",
            ),
            (
                _with(measurement="{verify: N}"),
                "4: measurement.verify is 'N'; allowed: true or false; write false",
            ),
            (_with(measurement="{verify: 1}"), "4: measurement.verify is 1; allowed: true or false"),
            (
                _with(measurement="{relative_spread: .nan}"),
                r"4: measurement.relative_spread is .nan; allowed: a number above 0",
            ),
            (
                _with(measurement="{relative_spread: '1e-2'}"),
                "4: measurement.relative_spread is '1e-2'; .*remove the quotes",
            ),
            (
                _with(runner="{device: gpu}"),
                "4: runner.device is 'gpu'; allowed: auto, cpu, cuda, npu; did you mean",
            ),
            (
                _with(runner="{resources_per_trial: {gpu: 1}}"),
                "4: runner.resources_per_trial names 'gpu'; .*; write GPU",
            ),
            (
                _with(runner="{resources_per_trial: {CPU: 0}}"),
                "4: runner.resources_per_trial.CPU is 0; allowed: a number above",
            ),
            (
                _with(runner="{data_parallel_degree: 2}"),
                "4: runner.data_parallel_degree is 2, but runner.strategy none has 1 rank; set the second to ddp or",
            ),
            (
                _with(runner="{data_parallel_degree: 3, strategy: ddp}"),
                "4: runner.data_parallel_degree is 3, which does not divide batch.global_batch_size 8; "
                "allowed: 1, 2, 4, 8; change one of the two",
            ),
            (
                _with(
                    batch="{global_batch_size: 8, micro_batch_sizes: [8]}",
                    runner="{data_parallel_degree: 2, strategy: ddp}",
                ),
                r"micro_batch_sizes\[0\] is 8, which does not divide batch.global_batch_size 4, the part of each of 2",
            ),
            (
                _with(runner="{data_parallel_degree: 0}"),
                "4: runner.data_parallel_degree is 0; allowed: a whole",
            ),
            (
                _with(runner="{strategy: fsdp}"),
                "4: runner.strategy is 'fsdp'; allowed: none, ddp, fsdp2, pipeline; did you",
            ),
            (
                _with(runner="{pipeline_stages: 2}"),
                "4: runner.pipeline_stages is 2, but runner.strategy is none; allowed: 2 or more with pipeline, 1 with",
            ),
            (
                _with(runner="{strategy: pipeline}"),
                "4: runner.pipeline_stages is 1, but runner.strategy is pipeline; allowed: 2 or more with pipeline",
            ),
            (
                _with(runner="{strategy: pipeline, pipeline_stages: 9}"),
                "4: runner.pipeline_stages is 9, but batch.global_batch_size is 8, .*; allowed: from 2 to 8; lower",
            ),
            (
                _with(
                    batch="{global_batch_size: 8, micro_batch_sizes: [4]}",
                    runner="{strategy: pipeline, pipeline_stages: 4}",
                ),
                r"micro_batch_sizes\[0\] is 4, which divides batch.global_batch_size 8 into 2, .*; allowed: 1, 2;",
            ),
            (
                _with(runner="{strategy: pipeline, pipeline_stages: 2, data_parallel_degree: 2}"),
                "4: runner.data_parallel_degree is 2, but runner.strategy is pipeline, .*; allowed: 1; change one",
            ),
            (
                _with(runner="{strategy: pipeline, pipeline_stages: 2}", placement="{target: megatron}"),
                "placement.target is megatron, but runner.strategy is pipeline, .*; allowed: null or policy",
            ),
            (
                _with(runner="{strategy: pipeline, pipeline_stages: 2}", placement="{actions: [none, offload]}"),
                r"placement.actions\[1\] is offload, but runner.strategy is pipeline, .*; allowed: any other action",
            ),
            (
                _with(
                    batch="{global_batch_size: 8, sequence_length: [8, 16]}",
                    runner="{strategy: pipeline, pipeline_stages: 2}",
                ),
                "batch.sequence_length is a list, but runner.strategy is pipeline, .*; allowed: a single length",
            ),
            (
                _with(runner="{strategy: ddp, reshard_after_forward: false}"),
                "4: runner.reshard_after_forward is false, but runner.strategy ddp divides no blocks; allowed: true",
            ),
            (_with(runner="{isolation: thread}"), "4: runner.isolation is 'thread'; allowed: worker, process"),
            (_with(runner="{ray_address: ''}"), "4: runner.ray_address is ''; allowed: HOST:PORT such as"),
            (_with(storage="study.db"), "4: storage is 'study.db'; allowed: .*; write sqlite:///study.db"),
            (_with(tracking="{uri: ./mlruns}"), "4: tracking.uri is './mlruns'; .*; write sqlite:///mlflow.db"),
            (_with(output_dir=r'"a\nb"'), r"4: output_dir is 'a\\nb'; allowed: text of one line"),
        ],
    )
    def test_a_wrong_value_is_named_with_what_is_allowed(self, text: str, message: str) -> None:
        lines = refusal(text)
        assert len(lines) == 1, lines
        assert re.match(rf"search\.yaml:.*{message}", lines[0]), lines[0]

    def test_messages_are_one_printable_line_each(self) -> None:
        lines = refusal(
            _with(placement=r'{actions: ["a\nb", "\x1b[0m"]}', storage=r'"\x1b[0m"', model=r'{factory: "a\nb.py"}')
        )
        assert len(lines) == 4
        assert all(line.isprintable() for line in lines)

    @pytest.mark.parametrize(
        "text",
        [
            _with(storage="mysql://me:secret@host/db"),
            _with(storage="[postgresql://me:secret@host/db]"),
            _with(tracking="{uri: 'ftp://me:secret@host/db'}"),
            _with(tracking="{uri: 'me:secret@host'}"),
            _with(runner="{device: 'ray://me:secret@host'}"),
            _with(output_dir="[{a: 'https://me:secret@host'}]"),
            "https://me:secret@host: 1\n",
        ],
    )
    def test_credentials_are_in_no_message(self, text: str) -> None:
        assert "secret" not in "\n".join(refusal(text))

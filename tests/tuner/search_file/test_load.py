from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.strict_yaml import parse_yaml
from tuner.config import SearchConfig
from tuner.search_file.load import MAX_LINES, ConfigError, load_search_file, resolved_yaml
from tuner.search_file.schema import known_keys

_SMALLEST = "model: {factory: huggingface:gpt2}\nbatch: {global_batch_size: 8}\nmemory_cap: 600MiB\n"

_WHOLE = """\
study: gpt2-12l
model:
  factory: huggingface:gpt2
  args: {n_layer: 12, n_embd: 256, n_head: 8, vocab_size: 4096}
  dtype: float32
  autocast: null
  compile: null
  compile_memory_budget: null
batch:
  global_batch_size: 8
  micro_batch_sizes: auto
  sequence_length: 256
  factory: null
optimizer: {name: adamw, args: {lr: 0.0001}}
memory_cap: 600MiB
placement:
  blocks: auto
  units: auto
  actions: [none, attention, mlp, attention+mlp, block, segment]
  segment_sizes: auto
  preserve_rng_state: true
  target: null
search: {num_trials: 30, time_limit: 10m, sampler: tpe, seed: 0}
measurement: {warmup_steps: 2, min_steps: 5, max_steps: 50, relative_spread: 0.02, verify: true}
runner:
  device: auto
  ray_address: null
  ship_code: true
  accelerator_type: null
  max_parallel_trials: null
  priority: 1.0
  resources_per_trial: auto
  data_parallel_degree: 1
  strategy: none
  pipeline_stages: 1
  reshard_after_forward: true
  trial_timeout: 10m
  isolation: worker
storage: null
tracking: {uri: null, experiment: null}
output_dir: runs
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is also the current one, so that files are named as a user names them."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text: str | bytes, name: str = "search.yaml") -> SearchConfig:
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_search_file(name)


def refusal(text: str | bytes) -> list[str]:
    with pytest.raises(ConfigError, match=r"^search\.yaml(:\d+)?: ") as caught:
        load(text)
    assert str(caught.value).splitlines() == list(caught.value.lines)
    return list(caught.value.lines)


@pytest.mark.usefixtures("folder")
class TestAGoodFile:
    def test_the_documented_file_is_read(self) -> None:
        config = load(_WHOLE)
        assert (config.study, config.batch.sequence_length, config.model.args["n_layer"]) == ("gpt2-12l", 256, 12)

    def test_the_documented_file_has_every_key(self) -> None:
        top = known_keys(())
        written = {line.split(":")[0] for line in _WHOLE.splitlines() if not line.startswith(" ")}
        assert written == set(top)
        for section in top:
            assert all(f"{key}:" in _WHOLE for key in known_keys((section,)))

    def test_three_options_are_enough(self) -> None:
        config = load(_SMALLEST, "my gpt.yaml")
        assert config.study == "my-gpt"
        assert config.search.num_trials == 30

    def test_relative_files_start_from_the_folder_of_the_search_file(self, folder: Path) -> None:
        (folder / "sub").mkdir()
        (folder / "sub" / "net.py").touch()
        config = load(_SMALLEST.replace("huggingface:gpt2", "net.py:build"), "sub/search.yaml")
        assert config.base_dir == Path("sub")
        assert load_search_file(folder / "sub" / "search.yaml").base_dir == folder / "sub"

    def test_merge_keys_and_anchors_work(self) -> None:
        text = "memory_cap: &cap 1GiB\nmodel: {factory: huggingface:gpt2, args: &args {n_layer: 2, n_head: 4}}\n"
        config = load(text + "batch: {global_batch_size: 8}\noptimizer: {args: {<<: *args, n_head: 8}}\nstudy: *cap\n")
        assert config.optimizer.args == {"n_layer": 2, "n_head": 8}
        assert config.study == "1GiB"

    @pytest.mark.parametrize(
        ("line", "path", "value"),
        [
            ("optimizer: {args: {lr: 1e-4}}", "optimizer.args", {"lr": 1e-4}),
            ("optimizer: {args: {lr: 1E5}}", "optimizer.args", {"lr": 1e5}),
            ("measurement: {relative_spread: 1e-2}", "measurement.relative_spread", 0.01),
            ("tracking: {experiment: off}", "tracking.experiment", "off"),
            ("tracking: {experiment: 2024-01-31}", "tracking.experiment", "2024-01-31"),
            ("placement: {units: {y: on, mlp: no}}", "placement.units", {"y": "on", "mlp": "no"}),
            ("study: 'on'", "study", "on"),
            ("study: no", "study", "no"),
        ],
    )
    def test_yaml_traps_are_read_as_meant(self, line: str, path: str, value: Any) -> None:
        read: Any = load(_SMALLEST + line)
        for part in path.split("."):
            read = getattr(read, part)
        assert (read, type(read)) == (value, type(value))


@pytest.mark.usefixtures("folder")
class TestTheResolvedFile:
    def test_it_shows_every_default(self) -> None:
        assert resolved_yaml(load(_WHOLE.replace("  sequence_length: 256\n", "")), credentials="kept") == resolved_yaml(
            load(_WHOLE.replace("256\n  factory", "null\n  factory")), credentials="kept"
        )

    def test_it_loads_as_the_same_config(self) -> None:
        config = load(
            _SMALLEST + "optimizer: {args: {lr: 1e-4, note: '1e-4', word: 'off'}}\n"
            "runner: {resources_per_trial: {GPU: 2, CPU: 0.5}, ray_address: 'ray://u:p@h:1'}\n"
            "storage: postgresql://u:p@h/db\nplacement: {units: {mlp: 'no', attention: '010'}, segment_sizes: [2, 3]}\n"
        )
        text = resolved_yaml(config, credentials="kept")
        assert load(text, "again.yaml") == config
        assert resolved_yaml(load(text, "again.yaml"), credentials="kept") == text
        assert "resources_per_trial: {GPU: 2, CPU: 0.5}" in text

    def test_credentials_are_hidden_where_asked(self) -> None:
        config = load(
            _SMALLEST + "storage: postgresql://me:secret@h/db\n"
            "tracking: {uri: 'https://me:secret@h'}\nrunner: {ray_address: 'ray://me:secret@h:1'}\n"
        )
        text = resolved_yaml(config, credentials="hidden")
        assert "secret" not in text
        assert "storage: postgresql://***@h/db" in text
        assert load(text).storage == "postgresql://***@h/db"

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(st.data())
    def test_any_free_arguments_come_back(self, data: st.DataObject) -> None:
        keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
        values = st.recursive(
            st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | keys,
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        )
        args = data.draw(st.dictionaries(keys, values, max_size=4))
        config = SearchConfig.model_validate(
            {
                "model": {"factory": "huggingface:gpt2", "args": args},
                "batch": {"global_batch_size": 8},
                "memory_cap": "1GiB",
            }
        )
        again = load(resolved_yaml(config, credentials="kept"))
        assert repr(again.model.args) == repr(args)
        assert again == config


def _mistyped(word: str) -> Iterator[str]:
    """The word with two neighbouring letters exchanged, or one letter changed."""
    for index in range(len(word) - 1):
        yield word[:index] + word[index + 1] + word[index] + word[index + 2 :]
    for index in range(len(word)):
        yield word[:index] + "q" + word[index + 1 :]


_KEYS = [(key,) for key in known_keys(())] + [
    (section, key) for section in known_keys(()) for key in known_keys((section,))
]


@pytest.mark.usefixtures("folder")
class TestKeys:
    @pytest.mark.parametrize("path", _KEYS, ids=".".join)
    def test_a_mistyped_key_is_refused_with_its_line_and_the_right_name(self, path: tuple[str, ...]) -> None:
        """B35: no key is dropped on the way."""
        number = parse_yaml(_WHOLE, where="search.yaml").lines[path]
        for wrong in set(_mistyped(path[-1])) - set(known_keys(path[:-1])):
            lines = _WHOLE.splitlines()
            lines[number - 1] = re.sub(rf"\b{path[-1]}:", f"{wrong}:", lines[number - 1], count=1)
            start = f"search.yaml:{number}: {'.'.join((*path[:-1], wrong))} is no known key; allowed "
            answers = [line for line in refusal("\n".join(lines)) if line.startswith(start)]
            assert len(answers) == 1, wrong
            assert answers[0].endswith(f"; did you mean {path[-1]}?"), wrong

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            (
                "num_trials: 3",
                "num_trials is no known key; allowed at the top level: study, model, .*mean search.num_trials",
            ),
            (
                "search: {memory_cap: 1GiB}",
                "search.memory_cap is no known key; allowed in search: .*; did you mean memory_cap",
            ),
            ("sequence_len: 8", "sequence_len is no known key; .*; did you mean batch.sequence_length"),
            ("micro_batch_size: 2", "micro_batch_size is no known key; .*; did you mean batch.micro_batch_sizes"),
            ("search: {zzz: 1}", "search.zzz is no known key; allowed in search: num_trials, .*, seed; remove it"),
            ("'a b': 1", "'a b' is no known key"),
            ('"<list>": 1', "'<list>' is no known key"),
            ('"a\\x1bb": 1', r"'a\\x1bb' is no known key"),
            ("polices: 1", "polices is no known key"),
        ],
    )
    def test_an_unknown_key_is_answered_with_the_known_ones(self, line: str, message: str) -> None:
        with pytest.raises(ConfigError, match=rf"^search\.yaml:4: {message}"):
            load(_SMALLEST + line)

    def test_keys_that_stand_twice_are_refused_with_both_lines(self) -> None:
        """B29."""
        text = _SMALLEST + "search: {seed: 1}\n" + "# more\n" * 40 + "memory_cap: 1GiB\nsearch:\n  seed: 2\n"
        assert refusal(text) == [
            "search.yaml:45: memory_cap stands twice, on lines 3 and 45; remove one of the two",
            "search.yaml:46: search stands twice, on lines 4 and 46; remove one of the two",
        ]

    @pytest.mark.parametrize(
        ("text", "missing"),
        [
            ("study: x", ["1: model.factory", "1: batch.global_batch_size", "1: memory_cap"]),
            (
                "memory_cap: 1GiB\nmodel: {dtype: float32}\nbatch:\n  sequence_length: 2",
                ["2: model.factory", "3: batch.global_batch_size"],
            ),
        ],
    )
    def test_missing_options_are_named(self, text: str, missing: list[str]) -> None:
        lines = refusal(text)
        assert [line.split(" is missing; allowed: ")[0] for line in lines] == [
            f"search.yaml:{item}" for item in missing
        ]
        assert all(line.endswith("; add it") for line in lines)


def _with(**changes: str) -> str:
    """The smallest file with other lines for the named sections."""
    sections = {
        "model": "{factory: huggingface:gpt2}",
        "batch": "{global_batch_size: 8}",
        "memory_cap": "600MiB",
        **changes,
    }
    return "".join(f"{key}: {value}\n" for key, value in sections.items())


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
            (_with(model="huggingface:gpt2"), "1: model is 'huggingface:gpt2'; allowed: a mapping with factory, args"),
            (_with(model="{factory: gpt2}"), "1: model.factory is 'gpt2'; allowed: huggingface:TYPE_OR_DIR"),
            (
                _with(model="{factory: no.py:f}"),
                "1: model.factory is 'no.py:f', but there is no file no.py; name a file",
            ),
            (
                _with(model="{factory: 'timm:x', dtype: float23}"),
                "1: model.dtype is 'float23'; allowed: .*mean float32",
            ),
            (_with(model="{factory: 'timm:x', dtype: fp32}"), "1: model.dtype is 'fp32'; allowed: float32, bfloat16"),
            (_with(model="{factory: 'timm:x', args: [1]}"), r"1: model.args is \[1\]; allowed: a mapping"),
            (
                _with(model="{factory: 'timm:x', compile: block}"),
                "1: model.compile is 'block'; allowed: blocks, model",
            ),
            (_with(batch="{global_batch_size: '8'}"), "2: batch.global_batch_size is '8'; .*; remove the quotes"),
            (_with(batch="{global_batch_size: true}"), "2: batch.global_batch_size is true; allowed: a whole number"),
            (_with(batch="{global_batch_size: 8.0}"), "2: batch.global_batch_size is 8.0; allowed: a whole number"),
            (_with(batch="{global_batch_size: 1e2}"), "2: batch.global_batch_size is 1e2; allowed: a whole number"),
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
            (_with(memory_cap="16000"), "3: memory_cap is '16000', a number without a unit; write 16000GiB or 16000GB"),
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
            (_with(placement="{units: [attn]}"), r"4: placement.units is \['attn'\]; allowed: auto or a mapping"),
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
            (_with(placement="{actions: [mlp+mlp]}"), r"4: placement.actions\[0\] is 'mlp.mlp'; allowed: none, block"),
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
            (_with(placement="{preserve_rng_state: off}"), "4: placement.preserve_rng_state is 'off'; .*; write false"),
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
            (_with(measurement="{verify: yes}"), "4: measurement.verify is 'yes'; allowed: true or false; write true"),
            (_with(measurement="{verify: N}"), "4: measurement.verify is 'N'; allowed: true or false; write false"),
            (_with(measurement="{verify: 1}"), "4: measurement.verify is 1; allowed: true or false"),
            (
                _with(measurement="{relative_spread: .nan}"),
                r"4: measurement.relative_spread is .nan; allowed: a number above 0",
            ),
            (
                _with(measurement="{relative_spread: '1e-2'}"),
                "4: measurement.relative_spread is '1e-2'; .*remove the quotes",
            ),
            (_with(runner="{device: gpu}"), "4: runner.device is 'gpu'; allowed: auto, cpu, cuda, npu; did you mean"),
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
            (_with(runner="{data_parallel_degree: 0}"), "4: runner.data_parallel_degree is 0; allowed: a whole"),
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


@pytest.mark.usefixtures("folder")
class TestContradictions:
    @pytest.mark.parametrize(
        ("text", "lines"),
        [
            (
                _with(batch="{global_batch_size: 12, micro_batch_sizes: [5, 6,\n 8]}"),
                [
                    "2: batch.micro_batch_sizes[0] is 5, which does not divide batch.global_batch_size 12; "
                    "allowed: 1, 2, 3, 4, 6, 12; change one of the two",
                    "3: batch.micro_batch_sizes[2] is 8, which does not divide batch.global_batch_size 12; "
                    "allowed: 1, 2, 3, 4, 6, 12; change one of the two",
                ],
            ),
            (
                _with(measurement="{min_steps: 9, max_steps: 8}"),
                [
                    "4: measurement.min_steps is 9, above measurement.max_steps 8; lower the first or raise the second",
                ],
            ),
            (
                _with(measurement="{min_steps: 51}"),
                [
                    "4: measurement.min_steps is 51, above measurement.max_steps 50; "
                    "lower the first or raise the second",
                ],
            ),
            (
                _with(placement="{units: {mlp: m}, actions: [mlp, attention]}"),
                [
                    "4: placement.actions[1] is 'attention', but placement.units has no attention; "
                    "allowed: none, block, segment, selective, offload, mlp, or units joined by +",
                ],
            ),
            (
                _with(placement="{actions: [block, mlp+attention, attention+mlp]}"),
                [
                    "4: placement.actions[2] is attention+mlp, as placement.actions[1] is already; "
                    "name each once, remove one of the two",
                ],
            ),
            (
                _with(placement="{actions: [block], segment_sizes: [2, 2]}"),
                [
                    "4: placement.segment_sizes is set, but placement.actions has no segment; "
                    "add it there or remove segment_sizes",
                    "4: placement.segment_sizes[1] is 2, as placement.segment_sizes[0] is already; "
                    "name each once, remove one of the two",
                ],
            ),
            (
                _with(model="{factory: 'timm:x', compile_memory_budget: 0.5}"),
                [
                    "1: model.compile_memory_budget is 0.5, but model.compile is null; allowed with model.compile "
                    "blocks or model: remove compile_memory_budget or write one of these",
                ],
            ),
            (
                _with(
                    model="{factory: 'timm:x', compile: model, compile_memory_budget: [0.5, 1, 0.5]}",
                    placement="{target: huggingface}",
                ),
                [
                    "1: model.compile_memory_budget is [0.5, 1, 0.5], but placement.target huggingface cannot say a "
                    "budget of the compiler; allowed with placement.target policy or null: remove "
                    "compile_memory_budget or target",
                    "1: model.compile_memory_budget[2] is 0.5, as model.compile_memory_budget[0] is already; "
                    "name each once, remove one of the two",
                ],
            ),
            (
                _with(runner="{device: cuda, resources_per_trial: {CPU: 2}}"),
                [
                    "4: runner.resources_per_trial asks CPU, but runner.device cuda needs GPU; add GPU: 1",
                ],
            ),
            (
                _with(runner="{device: cpu, resources_per_trial: {CPU: 2, NPU: 1}}"),
                [
                    "4: runner.resources_per_trial asks CPU, NPU, but runner.device cpu uses no NPU; "
                    "remove it or change the device",
                ],
            ),
        ],
    )
    def test_both_options_are_named(self, text: str, lines: list[str]) -> None:
        assert refusal(text) == [f"search.yaml:{line}" for line in lines]

    @pytest.mark.parametrize(
        "text",
        [
            _with(batch="{global_batch_size: x, micro_batch_sizes: [3]}"),
            _with(measurement="{min_steps: 9, max_steps: x}"),
            _with(runner="{device: x, resources_per_trial: {CPU: 2}}"),
            _with(placement="{units: x, actions: [router]}"),
        ],
    )
    def test_nothing_is_said_about_an_option_whose_partner_is_wrong_itself(self, text: str) -> None:
        (line,) = refusal(text)
        assert " is 'x'; allowed" in line

    def test_entries_are_still_checked_where_their_neighbours_are_wrong(self) -> None:
        lines = refusal(_with(batch="{global_batch_size: 8, micro_batch_sizes: [x, 3, 1, 0]}"))
        assert [line.split(" is ")[0] for line in lines] == [
            f"search.yaml:2: batch.micro_batch_sizes[{index}]" for index in (0, 1, 3)
        ]
        lines = refusal(_with(placement="{units: {mlp: 5, router: 'r'}, actions: [mlp, router, rooter]}"))
        assert [line.split(" is ")[0] for line in lines] == [
            "search.yaml:4: placement.units.mlp",
            "search.yaml:4: placement.actions[2]",
        ]

    @pytest.mark.parametrize(
        ("section", "others", "key"),
        [
            ("model", "factory: huggingface:gpt2, compile: model, ", "compile_memory_budget"),
            ("batch", "global_batch_size: 8, ", "micro_batch_sizes"),
            ("batch", "global_batch_size: 8, ", "sequence_length"),
            ("placement", "", "blocks"),
            ("placement", "", "actions"),
            ("placement", "", "segment_sizes"),
        ],
    )
    def test_wrong_entries_of_a_list_are_named(self, section: str, others: str, key: str) -> None:
        lines = refusal(_with(**{section: f"{{{others}{key}: [{{a: 1}}, -7.5, null]}}"}))
        assert [index for index in range(3) if any(f" {section}.{key}[{index}]" in line for line in lines)] == [0, 1, 2]


_TEN_MISTAKES = """\
study: ten mistakes
model:
  factory: missing.py:build
  dtpye: float32
batch:
  global_batch_size: 8
  micro_batch_sizes:
    - 1
    - 3
memory_cap: 16Gb
placement:
  actions: [none, atention]
search:
  num_trials: "30"
  sampler: annealing
measurement:
  min_steps: 60
  max_steps: 50
  verify: on
search: {seed: 1}
"""


@pytest.mark.usefixtures("folder")
class TestManyMistakes:
    def test_each_has_its_own_line(self) -> None:
        assert [line.split(";")[0] for line in refusal(_TEN_MISTAKES)] == [
            "search.yaml:1: study is 'ten mistakes'",
            "search.yaml:3: model.factory is 'missing.py:build', but there is no file missing.py",
            "search.yaml:4: model.dtpye is no known key",
            "search.yaml:9: batch.micro_batch_sizes[1] is 3, which does not divide batch.global_batch_size 8",
            "search.yaml:10: memory_cap is '16Gb', which are bits",
            "search.yaml:12: placement.actions[1] is 'atention', but placement.units has no atention",
            "search.yaml:14: search.num_trials is '30'",
            "search.yaml:15: search.sampler is 'annealing'",
            "search.yaml:17: measurement.min_steps is 60, above measurement.max_steps 50",
            "search.yaml:19: measurement.verify is 'on'",
            "search.yaml:20: search stands twice, on lines 13 and 20",
        ]

    def test_very_many_are_cut_short(self) -> None:
        lines = refusal(_SMALLEST + "".join(f"key{number}: 1\n" for number in range(300)))
        assert len(lines) == MAX_LINES + 1
        assert lines[-1] == f"... and {300 - MAX_LINES} more"


@pytest.mark.usefixtures("folder")
class TestUnreadableFiles:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (
                b"",
                r"search\.yaml:1: the file is empty; model\.factory, batch\.global_batch_size and memory_cap are",
            ),
            (b"# nothing\n", r"search\.yaml:1: the file is empty"),
            (b"- a\n", r"search\.yaml:1: the file is no mapping"),
            (b"010", r"search\.yaml:1: the document is '010', which is one number"),
            (b"model: [", r"search\.yaml:1: is not valid YAML"),
            (b"a: 1\n---\nb: 1\n", r"search\.yaml:2: a second document starts here"),
            (b"\x00\x01", r"search\.yaml: holds NUL bytes"),
            (b"a: \xff", r"search\.yaml:1: holds bytes that are not UTF-8"),
            (b"!!set {a: 1}", r"search\.yaml:1: the document has the tag '!!set'"),
        ],
    )
    def test_they_are_refused_in_one_message(self, content: bytes, message: str) -> None:
        with pytest.raises(ConfigError, match=rf"^{message}"):
            load(content)

    def test_a_missing_file_is_named_as_the_user_named_it(self) -> None:
        with pytest.raises(ConfigError, match=r"^\./nowhere\.yaml: cannot be read \(No such file or directory\)"):
            load_search_file("./nowhere.yaml")


@pytest.mark.usefixtures("folder")
def test_damaged_files_give_a_config_or_the_one_error() -> None:
    rng = random.Random(0)
    pieces = [
        b" ",
        b"\n",
        b"\n  ",
        b":",
        b": ",
        b"- ",
        b"[",
        b"]",
        b"{",
        b"}",
        b",",
        b"&a ",
        b"*a",
        b"'",
        b'"',
        b"!",
        b"#",
    ]
    pieces += [
        b"<<: ",
        b"010",
        b"1e5",
        b"null",
        b"~",
        b"on",
        b"\x00",
        b"\xff",
        b"\t",
        b"\xc2\x85",
        b"\\ud800",
        b"99999999999",
    ]
    outcomes = {"read": 0, "refused": 0}
    for _ in range(500):
        content = bytearray(_WHOLE.encode())
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(content))
            content[at : at + rng.choice((0, 1, 1, 8, 60))] = rng.choice((b"", rng.choice(pieces), content[:at][-30:]))
        try:
            load(bytes(content))
        except ConfigError as error:
            outcomes["refused"] += 1
            assert all(line.startswith("search.yaml:") and line.isprintable() for line in error.lines)  # noqa: PT017
        else:
            outcomes["read"] += 1
    assert min(outcomes.values()) > 10


@pytest.mark.usefixtures("folder")
def test_random_bytes_give_the_one_error() -> None:
    rng = random.Random(0)
    for _ in range(300):
        with pytest.raises(ConfigError, match=r"^search\.yaml(:\d+)?: "):
            load(rng.randbytes(rng.randint(0, 40)))

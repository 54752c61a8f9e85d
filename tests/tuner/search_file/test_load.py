"""search.yaml as a whole: what is read, what comes back, and files that are none."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_texts import SMALLEST, WHOLE, load, refusal

from tuner.config import SearchConfig
from tuner.search_file.load import MAX_LINES, ConfigError, load_search_file, resolved_yaml
from tuner.search_file.schema import known_keys


@pytest.mark.usefixtures("folder")
class TestAGoodFile:
    def test_the_documented_file_is_read(self) -> None:
        config = load(WHOLE)
        assert (config.study, config.batch.sequence_length, config.model.args["n_layer"]) == ("gpt2-12l", 256, 12)

    def test_the_documented_file_has_every_key(self) -> None:
        top = known_keys(())
        written = {line.split(":")[0] for line in WHOLE.splitlines() if not line.startswith(" ")}
        assert written == set(top)
        for section in top:
            assert all(f"{key}:" in WHOLE for key in known_keys((section,)))

    def test_three_options_are_enough(self) -> None:
        config = load(SMALLEST, "my gpt.yaml")
        assert config.study == "my-gpt"
        assert config.search.num_trials == 30

    def test_relative_files_start_from_the_folder_of_the_search_file(self, folder: Path) -> None:
        (folder / "sub").mkdir()
        (folder / "sub" / "net.py").touch()
        config = load(SMALLEST.replace("huggingface:gpt2", "net.py:build"), "sub/search.yaml")
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
        read: Any = load(SMALLEST + line)
        for part in path.split("."):
            read = getattr(read, part)
        assert (read, type(read)) == (value, type(value))


@pytest.mark.usefixtures("folder")
class TestTheResolvedFile:
    def test_it_shows_every_default(self) -> None:
        assert resolved_yaml(load(WHOLE.replace("  sequence_length: 256\n", "")), credentials="kept") == resolved_yaml(
            load(WHOLE.replace("256\n  factory", "null\n  factory")), credentials="kept"
        )

    def test_it_loads_as_the_same_config(self) -> None:
        config = load(
            SMALLEST + "optimizer: {args: {lr: 1e-4, note: '1e-4', word: 'off'}}\n"
            "runner: {resources_per_trial: {GPU: 2, CPU: 0.5}, ray_address: 'ray://u:p@h:1'}\n"
            "storage: postgresql://u:p@h/db\nplacement: {units: {mlp: 'no', attention: '010'}, segment_sizes: [2, 3]}\n"
        )
        text = resolved_yaml(config, credentials="kept")
        assert load(text, "again.yaml") == config
        assert resolved_yaml(load(text, "again.yaml"), credentials="kept") == text
        assert "resources_per_trial: {GPU: 2, CPU: 0.5}" in text

    def test_credentials_are_hidden_where_asked(self) -> None:
        config = load(
            SMALLEST + "storage: postgresql://me:secret@h/db\n"
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
        lines = refusal(SMALLEST + "".join(f"key{number}: 1\n" for number in range(300)))
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
        content = bytearray(WHOLE.encode())
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

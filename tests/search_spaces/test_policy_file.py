from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from search_spaces.policy import BatchShape, BlockListPlacement, PolicyError, RecomputePolicy, Region
from search_spaces.policy_file import dump_policy, load_policy, policy_to_yaml

_TEXT = """\
schema_version: 1
batch: {micro_batch_size: 2, gradient_accumulation_steps: 4, data_parallel_degree: 1, global_batch_size: 8}
preserve_rng_state: true
placement:
- blocks: transformer.h
  num_blocks: 12
  units: {attention: attn, mlp: mlp}
  regions:
  - {first: 0, last: 5, action: segment, segment_size: 3}
  - {first: 6, last: 8, action: attention+mlp}
- blocks: 'on'
  num_blocks: 2
  units: {}
  regions: []
measured:
  study: '010'
  tokens_per_second: 1.0e-07
  verification: {verdict: MATCH, reason: null}
"""


def a_policy() -> RecomputePolicy:
    return RecomputePolicy(
        BatchShape(2, 4, 1, 8),
        (
            BlockListPlacement(
                "transformer.h",
                12,
                (("attention", "attn"), ("mlp", "mlp")),
                (Region(0, 5, "segment", 3), Region(6, 8, "attention+mlp")),
            ),
            BlockListPlacement("on", 2),
        ),
        True,
        {"study": "010", "tokens_per_second": 1e-7, "verification": {"verdict": "MATCH", "reason": None}},
    )


def test_the_text_has_a_fixed_readable_order() -> None:
    assert policy_to_yaml(a_policy()) == _TEXT


def test_a_policy_comes_back_as_it_was_written(tmp_path: Path) -> None:
    dump_policy(a_policy(), tmp_path / "policy.yaml")
    again = load_policy(str(tmp_path / "policy.yaml"))
    assert again == a_policy()
    assert again.measured == a_policy().measured
    assert os.listdir(tmp_path) == ["policy.yaml"]


def test_measurements_that_yaml_cannot_say_are_refused_and_leave_no_file(tmp_path: Path) -> None:
    bad = RecomputePolicy(BatchShape(1, 1, 1, 1), measured={"x": object()})
    with pytest.raises(ValueError, match="which plain YAML cannot say"):
        dump_policy(bad, tmp_path / "policy.yaml")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("schema_version: 1", "schema_version: 2", 1, "schema_version is 2; this release reads version 1"),
        ("micro_batch_size: 2", "micro_batch_size: two", 2, "batch.micro_batch_size is 'two'; a whole number"),
        ("preserve_rng_state: true", "preserve_rng_state: yes", 3, "preserve_rng_state is 'yes'; true or false"),
        ("preserve_rng", "perserve_rng", 3, "policy has unknown entry 'perserve_rng_state'; known are"),
        ("num_blocks: 12", "num_blocks: 1e2", 5, "placement[0].num_blocks is 100.0; a whole number"),
        ("last: 5", "last: 15", 9, "placement of transformer.h: region 0-15 is out of order or outside the list"),
        ("first: 6", "first: 5", 10, "region 5-8 is out of order or outside the list; regions run in order"),
        ("action: attention+mlp", "action: atention", 10, "names unit 'atention'; known here: none, block, segment"),
        ("action: attention+mlp", "action: selective, keep: [a]", 10, "keep: 'a' names no operator; allowed:"),
        ("blocks: 'on'", "blocks: 5", 11, "placement[1].blocks is 5; text is expected"),
        ("blocks: 'on'", "blocks: transformer.h", 11, "placement names transformer.h twice"),
        ("measured:", "measured: [5]\nunmeasured:", 15, "measured is a list; a mapping is allowed"),
        ("schema_version: 1\n", "", 1, "policy has no schema_version"),
        ("num_blocks: 12", "num_blocks: 010", 6, "placement[0].num_blocks is '010', which is one number, another"),
        (
            "num_blocks: 12",
            "num_blocks: 1\n  num_blocks: 2",
            7,
            "placement[0].num_blocks stands twice, on lines 6 and 7",
        ),
        ("placement:", "placement: !!python/name:os.system", 4, "placement has the tag '!!python/name:os.system'"),
        ("units: {}", "units: {", 15, "is not valid YAML (while parsing a flow mapping that starts on line 13"),
    ],
)
def test_a_bad_file_is_refused_with_file_line_and_reason(
    tmp_path: Path, old: str, new: str, line: int, message: str
) -> None:
    path = tmp_path / "policy.yaml"
    assert old in _TEXT
    path.write_text(_TEXT.replace(old, new, 1))
    with pytest.raises(PolicyError, match=r"policy\.yaml:\d+: ") as caught:
        load_policy(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "- 1\n", "just text", "3"])
def test_a_file_that_holds_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "policy.yaml").write_text(text)
    with pytest.raises(PolicyError, match=r"policy\.yaml:1: policy is .*; a mapping with schema_version"):
        load_policy(tmp_path / "policy.yaml")


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"policy\.yaml: cannot be read \(No such file or directory\)"):
        load_policy(tmp_path / "policy.yaml")


def test_a_long_list_of_regions_is_refused_quickly(tmp_path: Path) -> None:
    regions = "".join(f"  - {{first: {n}, last: {n}, action: block}}\n" for n in range(3000))
    head = _TEXT.split("- blocks")[0]
    entry = f"- blocks: h\n  num_blocks: 3000\n  regions:\n{regions}  - {{first: 0, last: 0, action: block}}\n"
    (tmp_path / "policy.yaml").write_text(head + entry)
    with pytest.raises(PolicyError, match=r"policy\.yaml:3008: placement of h: region 0-0 is out of order"):
        load_policy(tmp_path / "policy.yaml")


def test_damaged_files_give_a_policy_or_the_one_error(tmp_path: Path) -> None:
    rng = random.Random(0)
    path = tmp_path / "policy.yaml"
    content = _TEXT.encode()
    outcomes = {"read": 0, "refused": 0}
    for _ in range(600):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(damaged))
            damaged[at : at + rng.randint(0, 4)] = bytes(rng.choice(b" \n:-{}[]&*!'\"01ax\x00\xff,#") for _ in range(2))
        path.write_bytes(damaged)
        try:
            load_policy(path)
        except PolicyError as error:
            outcomes["refused"] += 1
            assert str(error).startswith(str(path))  # noqa: PT017 - the message is what is tested
        else:
            outcomes["read"] += 1
    assert min(outcomes.values()) > 10


def test_training_code_needs_only_pyyaml() -> None:
    code = (
        "import sys, search_spaces.policy_file; "
        "print(*sorted({'torch', 'pydantic', 'numpy', 'optuna', 'ray', 'mlflow'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""

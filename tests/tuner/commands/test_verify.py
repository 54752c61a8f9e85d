from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import simulation
import yaml
from click.testing import Result
from simulation import failure, measure, policy, replay

from runners.trial import TrialResult, TrialSpec, TrialStatus, Verdict, Verification
from search_spaces.policy import policy_to_dict

WriteSearch = Callable[..., Path]
Tune = Callable[..., Result]


@pytest.fixture
def write_policy(tmp_path: Path) -> Callable[..., Path]:
    def write(**changes: Any) -> Path:
        file = tmp_path / "policy.yaml"
        file.write_text(yaml.safe_dump({**policy_to_dict(policy("block")), **changes}, sort_keys=False))
        return file

    return write


@pytest.fixture
def verify(tune: Tune, write_search: WriteSearch, write_policy: Callable[..., Path]) -> Callable[..., Result]:
    """`tune verify`, on a device that answers with this trial."""

    def run(*options: str, answer: TrialResult | None = None, **search: Any) -> Result:
        runner = replay() if answer is None else replay(lambda spec: answer)
        return tune("verify", write_search(**search), "--policy", write_policy(), *options, runner=runner)

    return run


def test_a_policy_that_holds(verify: Callable[..., Result]) -> None:
    result = verify()
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0] == "policy: block @2x1"
    assert "\nproof: MATCH (3 steps, against the same model)\n" in result.stdout
    assert "\nlargest relative error: 0, allowed: 1e-05\n" in result.stdout
    assert "peak: 12.0 MiB, 60% of 20.0 MiB" in result.stdout
    assert result.stdout.endswith("feasible\n")


def test_json_is_one_document_and_nothing_else(verify: Callable[..., Result]) -> None:
    result = verify("--json")
    assert (result.exit_code, result.stderr) == (0, "")
    data = json.loads(result.stdout)
    assert (data["policy_key"], data["feasible"]) == (policy("block").key, True)
    assert data["verification"]["verdict"] == "MATCH"


@pytest.mark.parametrize(
    "answer, exit_code, last",
    [
        (
            simulation.trial(0, "block", verification=Verification(verdict=Verdict.MISMATCH, reason="grad differs")),
            1,
            "not feasible: it trains another model: grad differs",
        ),
        (
            simulation.trial(0, "block", verification=Verification(verdict=Verdict.UNVERIFIED, reason="noise")),
            1,
            "not feasible: it is not proven to train the same model: noise",
        ),
        (simulation.trial(0, peak_memory_bytes=21 * simulation.MIB), 3, "not feasible: its peak is 5.0% over the cap"),
        (failure(0, TrialStatus.OUT_OF_MEMORY, "no room for h.0"), 3, "not feasible: out of memory: no room for h.0"),
        (failure(0, TrialStatus.FAILED, "h.0: shapes differ"), 1, "not feasible: failed: h.0: shapes differ"),
        (failure(0, TrialStatus.TIMED_OUT, "after 10 min"), 1, "not feasible: timed out: after 10 min"),
    ],
    ids=["mismatch", "unverified", "over the cap", "out of memory", "failed", "timed out"],
)
def test_exit_codes_tell_what_is_wrong(
    verify: Callable[..., Result], answer: TrialResult, exit_code: int, last: str
) -> None:
    result = verify(answer=answer)
    assert result.exit_code == exit_code
    assert result.stdout.splitlines()[-1] == last


def test_a_proof_that_never_ran_shows_no_figures(verify: Callable[..., Result]) -> None:
    doubt = Verification(verdict=Verdict.UNVERIFIED, reason="the baseline does not repeat itself")
    result = verify(answer=simulation.trial(0, "block", verification=doubt))
    assert result.stdout.splitlines()[1] == "proof: UNVERIFIED: the baseline does not repeat itself"
    assert "None" not in result.stdout


def test_a_search_without_proofs_is_no_reason_not_to_prove(
    tune: Tune, write_search: WriteSearch, write_policy: Callable[..., Path]
) -> None:
    asked = []

    def outcome(spec: TrialSpec) -> TrialResult:
        asked.append(spec.measurement.verify)
        return measure(spec)

    file = write_search(measurement__verify=False)
    assert tune("verify", file, "--policy", write_policy(), runner=replay(outcome)).exit_code == 0
    assert asked == [True]


BLOCKS = {"blocks": "h", "num_blocks": 2, "regions": []}
BATCH = {"micro_batch_size": 2, "gradient_accumulation_steps": 1, "data_parallel_degree": 1, "global_batch_size": 2}


@pytest.mark.parametrize(
    "changes, line",
    [
        (
            {"batch": {**BATCH, "gradient_accumulation_steps": 2, "global_batch_size": 4}},
            "batch.global_batch_size is 4, but the search file's is 2",
        ),
        (
            {"batch": {**BATCH, "micro_batch_size": 1, "data_parallel_degree": 2}},
            "batch.data_parallel_degree is 2, but runner.data_parallel_degree is 1",
        ),
        ({"placement": [{**BLOCKS, "num_blocks": 12}]}, "placement is for 12 blocks in h; the model has h (2)"),
        ({"placement": [{**BLOCKS, "blocks": "layers"}]}, "placement is for 2 blocks in layers; the model has h (2)"),
        ({"schema_version": 9}, "schema_version is 9; this release reads version 1"),
    ],
    ids=["batch", "ranks", "depth", "path", "version"],
)
def test_a_policy_for_something_else_is_one_line(
    tune: Tune, write_search: WriteSearch, write_policy: Callable[..., Path], changes: dict[str, Any], line: str
) -> None:
    file = write_policy(**changes)
    result = tune("verify", write_search(), "--policy", file)
    assert (result.exit_code, result.stdout) == (2, "")
    (said,) = result.stderr.splitlines()
    assert said.startswith(f"{file}")
    assert line in said


@pytest.mark.parametrize(
    "content, line",
    [(None, "policy.yaml"), (b"", "policy.yaml"), (b"\x00\xff", "policy.yaml"), (b"a: [", "policy.yaml")],
    ids=["missing", "empty", "binary", "no yaml"],
)
def test_a_file_that_is_no_policy_is_one_line(
    tune: Tune, write_search: WriteSearch, tmp_path: Path, content: bytes | None, line: str
) -> None:
    if content is not None:
        (tmp_path / "policy.yaml").write_bytes(content)
    result = tune("verify", write_search(), "--policy", tmp_path / "policy.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    (said,) = result.stderr.splitlines()
    assert line in said


def test_a_directory_is_no_policy(tune: Tune, write_search: WriteSearch, tmp_path: Path) -> None:
    result = tune("verify", write_search(), "--policy", tmp_path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1

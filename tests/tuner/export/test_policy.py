from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from simulation import MIB, policy, results_of, trial

from search_spaces.policy_file import load_policy
from tuner.export.policy import policy_yaml


def exported(number: int) -> str:
    study = results_of(trial(0), trial(1, "block"), trial(2, "attention+mlp", 1))
    record = study.trial(number)
    assert record is not None
    return policy_yaml(study, record)


@pytest.mark.parametrize("number, expected", [(1, policy("block")), (2, policy("attention+mlp", 1))])
def test_what_is_exported_is_what_was_measured(tmp_path: Path, number: int, expected: object) -> None:
    (tmp_path / "policy.yaml").write_text(exported(number))
    assert load_policy(tmp_path / "policy.yaml") == expected


def test_the_file_as_training_code_reads_it() -> None:
    assert yaml.safe_load(exported(1)) == {
        "schema_version": 1,
        "batch": {
            "micro_batch_size": 2,
            "gradient_accumulation_steps": 1,
            "data_parallel_degree": 1,
            "global_batch_size": 2,
        },
        "preserve_rng_state": True,
        "placement": [
            {
                "blocks": "h",
                "num_blocks": 2,
                "units": {"attention": "attn", "mlp": "mlp"},
                "regions": [{"first": 0, "last": 1, "action": "block"}],
            }
        ],
        "measured": {
            "study": "simulated",
            "trial": 1,
            "samples_per_second": pytest.approx(2 / 1.3),
            "tokens_per_second": pytest.approx(32 / 1.3),
            "step_time_s": 1.3,
            "peak_memory_bytes": 12 * MIB,
            "memory_cap_bytes": 20 * MIB,
            "device": "a simulated CPU, 2 threads",
            "versions": {"python": "3.11.7", "torch": "2.13.0"},
            "verification": "MATCH",
        },
    }

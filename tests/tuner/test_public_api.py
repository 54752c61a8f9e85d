from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from simulation import policy

import tuner
from search_spaces.policy_file import dump_policy

PUBLIC = {"AppliedPolicy", "PolicyError", "RecomputePolicy", "apply_policy", "load_policy"}


def test_training_code_finds_these_names_and_no_others() -> None:
    assert set(tuner.__all__) == PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_each_name_is_what_its_room_offers(name: str) -> None:
    import runners.apply_policy
    import search_spaces.policy
    import search_spaces.policy_file

    rooms = (runners.apply_policy, search_spaces.policy, search_spaces.policy_file)
    assert getattr(tuner, name) in [getattr(room, name, None) for room in rooms]


def test_another_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"module 'tuner' has no attribute 'aply_policy'; it has AppliedPolicy, "):
        tuner.aply_policy  # noqa: B018  # looking is what is tested


def test_using_a_policy_needs_torch_and_pyyaml_only(tmp_path: Path) -> None:
    """As in a training environment that has none of what a search needs."""
    program = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"ray", "mlflow", "optuna", "pydantic", "typer", "rich", "plotly", "psutil"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from torch import nn
from tuner import PolicyError, RecomputePolicy, apply_policy, load_policy

policy = load_policy(sys.argv[1])
model = nn.Module()
model.h = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
names = list(model.state_dict())
applied = apply_policy(model, policy)
assert list(model.state_dict()) == names
applied.undo()
print(policy.summary())
"""
    file = tmp_path / "policy.yaml"
    dump_policy(policy("block"), file)
    ended = subprocess.run([sys.executable, "-c", program, file], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "block @2x1\n"), ended.stderr

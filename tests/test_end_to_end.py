"""One real search of a tiny GPT, as a person runs it, and what can be done with what it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from mlflow import MlflowClient

from runners.workloads.gpt import gpt
from tuner import apply_policy, load_policy

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

MODEL_ARGS: dict[str, Any] = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 64, "dropout": 0.1}
SEARCH = f"""
study: tiny
model:
  factory: runners.workloads.gpt:gpt
  args: {json.dumps(MODEL_ARGS)}
batch: {{global_batch_size: 4, sequence_length: 64}}
memory_cap: 1740KiB      # plain training at micro-batch 4 takes 2.1 MiB
placement: {{actions: [none, mlp, block]}}
search: {{num_trials: 4, time_limit: 10m}}
measurement: {{warmup_steps: 1, min_steps: 3, max_steps: 3}}
"""


def tune(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tuner", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        env={**os.environ, "OMP_WAIT_POLICY": "passive"},
    )


@dataclass(frozen=True)
class Study:
    """The folder where the command ran, what it said, and what it left."""

    folder: Path
    ended: subprocess.CompletedProcess[str]

    @property
    def files(self) -> Path:
        return self.folder / "runs" / "tiny"

    @property
    def results(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.files / "results.json").read_text())
        return found


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("search")
    (folder / "search.yaml").write_text(SEARCH)
    return Study(folder, tune(folder, "run", "search.yaml"))


def test_the_search_ends_with_an_answer(study: Study) -> None:
    assert study.ended.returncode == 0, study.ended.stderr
    assert "Best within 1.7 MiB: trial " in study.ended.stdout
    assert "proven to train the same model" in study.ended.stdout
    assert "Stopped: all 4 trials were run." in study.ended.stdout
    assert len([line for line in study.ended.stderr.splitlines() if line.startswith("trial ")]) == 4
    assert {path.name for path in study.files.iterdir()} == {
        *(".lock", "search.yaml", "study.db", "results.json", "policy.yaml", "report.html"),
        *("timeline-baseline.html", "timeline-winner.html"),
    }


def test_results_are_measured_and_proven(study: Study) -> None:
    results = study.results
    assert (results["schema_version"], results["study"], results["status"]) == (1, "tiny", "finished")
    assert results["environment"]["torch"] == torch.__version__
    (blocks,) = results["model"]["block_lists"]
    assert (blocks["path"], blocks["num_blocks"]) == ("blocks", 2)
    assert results["model"]["num_parameters"] == sum(p.numel() for p in gpt(**MODEL_ARGS).parameters())
    assert results["trials"][0]["policy_summary"] == "none @4x1"
    assert len({trial["policy_key"] for trial in results["trials"]}) == 4
    assert results["baseline"] == results["trials"][0]
    for trial in results["trials"]:
        assert (trial["status"], trial["verification"]["verdict"]) == ("COMPLETED", "MATCH"), trial
        assert sum(trial["memory_bytes"].values()) == trial["peak_memory_bytes"]
        assert trial["feasible"] == (trial["peak_memory_bytes"] <= 1740 * 1024)
        for name in ("samples_per_second", "step_time_s", "forward_time_s", "backward_time_s", "relative_speed"):
            assert trial[name] > 0, name
        assert trial["tokens_per_second"] == pytest.approx(64 * trial["samples_per_second"])
    plain, *others = results["trials"]
    assert not plain["feasible"]
    assert (plain["recompute_time_s"], plain["recomputed_flops_ratio"]) == (0, 0)
    for trial in others:
        assert trial["feasible"], "nothing that does not fit is tried after the baseline"
        assert (trial["recompute_time_s"] > 0) == (trial["recomputed_flops_ratio"] > 0) == recomputes(trial)
    assert any(map(recomputes, others))
    assert results["best"] in (1, 2, 3)
    assert set(results["front"]) <= {1, 2, 3}


def recomputes(trial: dict[str, Any]) -> bool:
    return any(placement["regions"] for placement in trial["policy"]["placement"])


def test_predictions_stand_beside_what_was_measured(study: Study) -> None:
    for trial in study.results["trials"]:
        assert trial["predicted_peak_memory_bytes"] == pytest.approx(trial["peak_memory_bytes"], rel=0.01)
    assert study.results["trials"][0]["predicted_step_time_s"] is None
    assert all(trial["predicted_step_time_s"] > 0 for trial in study.results["trials"][1:])


def test_the_policy_is_that_of_the_best_trial(study: Study) -> None:
    best = study.results["trials"][study.results["best"]]
    policy = yaml.safe_load((study.files / "policy.yaml").read_text())
    measured = policy.pop("measured")
    assert policy == best["policy"]
    assert measured["trial"] == best["number"]
    assert measured["peak_memory_bytes"] == best["peak_memory_bytes"]
    assert measured["memory_cap_bytes"] == 1740 * 1024
    assert measured["verification"] == "MATCH"


def test_mlflow_holds_the_same(study: Study) -> None:
    client = MlflowClient(f"sqlite:///{study.folder}/runs/mlflow.db")
    experiment = client.get_experiment_by_name("runners.workloads.gpt:gpt")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert {run.info.status for run in runs} == {"FINISHED"}
    trials = {run.data.tags["trial_number"]: run for run in runs if "trial_number" in run.data.tags}
    assert sorted(trials) == ["0", "1", "2", "3"]
    for trial in study.results["trials"]:
        run = trials[str(trial["number"])]
        for name in ("tokens_per_second", "peak_memory_bytes", "relative_speed"):
            assert run.data.metrics[name] == trial[name]
        assert run.data.tags["verdict"] == "MATCH"
        assert run.data.tags["feasible"] == str(trial["feasible"]).lower()
    (parent,) = [run for run in runs if "trial_number" not in run.data.tags]
    artifacts = {artifact.path for artifact in client.list_artifacts(parent.info.run_id)}
    assert artifacts >= {"front.html", "report.html", "policy.yaml", "search.yaml", "model.json", "trials.json"}


def test_the_study_can_be_shown(study: Study) -> None:
    shown = tune(study.folder, "show", "tiny", "--json")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert json.loads(shown.stdout) == study.results


def train(policy_file: Path, *, with_policy: bool) -> tuple[list[float], list[str]]:
    """Losses of a few steps of training code of one's own, and the names in its checkpoint."""
    policy = load_policy(policy_file)
    torch.manual_seed(0)
    model = gpt(**MODEL_ARGS).train()
    if with_policy:
        apply_policy(model, policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(4):
        for _ in range(policy.batch.gradient_accumulation_steps):
            loss = model(**model.example_batch(policy.batch.micro_batch_size, 64))
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, list(model.state_dict())


def test_an_exported_policy_trains_as_plain_training_does_and_verifies(study: Study) -> None:
    tried = next(trial for trial in study.results["trials"] if recomputes(trial))
    number = str(tried["number"])
    exported = tune(study.folder, "export", "tiny", "--format", "policy", "--trial", number, "-o", "tried.yaml")
    assert (exported.returncode, exported.stdout) == (0, ""), exported.stderr
    file = study.folder / "tried.yaml"
    losses, names = train(file, with_policy=True)
    assert (losses, names) == train(file, with_policy=False)
    assert len(set(losses)) == len(losses), "the model learns"

    verified = tune(study.folder, "verify", "search.yaml", "--policy", "tried.yaml", "--json")
    assert verified.returncode == 0, verified.stderr
    trial = json.loads(verified.stdout)
    assert (trial["policy_key"], trial["verification"]["verdict"]) == (tried["policy_key"], "MATCH")
    assert trial["peak_memory_bytes"] == pytest.approx(tried["peak_memory_bytes"], rel=0.01)

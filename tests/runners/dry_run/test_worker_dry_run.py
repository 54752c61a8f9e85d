from __future__ import annotations

import json
from typing import Any

import pytest

from runners.base import WorkloadError
from runners.replay_runner import ReplayRunner
from runners.trial import DryRunResult, DryRunSpec, InspectionSpec, TrialResult, TrialStatus
from runners.worker import TrialWorker
from runners.worker_agent import WorkerAgent
from search_spaces.choices import SearchChoices
from search_spaces.memory_timeline import MemoryTimeline
from search_spaces.model_shape import BlockList, ModelShape


def choices(num_blocks: int) -> SearchChoices:
    return SearchChoices(ModelShape(0, (BlockList("blocks", "Block", num_blocks),)), 8, (4,), ("none", "block"))


def test_answers_with_profile_and_peaks_in_order_of_the_policies(trials: Any) -> None:
    maker = trials("outputs.py:deep", args={"num_blocks": 3}, num_blocks=3)
    policies = (maker.policy("none", micro=4), maker.policy("block", micro=4))
    worker = TrialWorker()
    result = worker.dry_run(DryRunSpec(workload=maker.workload(), choices=choices(3), policies=policies))
    assert result.failure is None
    assert result.profile is not None
    assert result.peaks_bytes[0] > result.peaks_bytes[1] > 0
    timeline = MemoryTimeline(result.profile)
    assert [timeline.peak_bytes(policy) for policy in policies] == pytest.approx(result.peaks_bytes, rel=0.01)
    # The same without a profile, from the model that was kept.
    again = worker.dry_run(DryRunSpec(workload=maker.workload(), policies=policies[::-1]))
    assert again.peaks_bytes == result.peaks_bytes[::-1]
    assert again.profile is None


def test_result_survives_json(trials: Any) -> None:
    maker = trials("stack.py:plain", num_blocks=3)
    result = TrialWorker().dry_run(DryRunSpec(workload=maker.workload(), choices=choices(3)))
    assert DryRunResult.model_validate_json(result.model_dump_json()) == result


@pytest.mark.parametrize(
    ("factory", "args", "reason"),
    [
        ("chance.py:noisy_routing", {}, "DynamicOutputShapeException"),
        ("chance.py:layer_drop_inside", {"source": "torch"}, "it asks for the value of a tensor"),
        ("missing.py:fn", {}, "model.factory is missing.py:fn, but there is no file"),
    ],
)
def test_what_cannot_run_without_data_is_a_refusal_in_one_line(
    trials: Any, factory: str, args: dict[str, Any], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    maker = trials(factory, args=args)
    result = TrialWorker().dry_run(DryRunSpec(workload=maker.workload(), policies=(maker.policy("none", micro=4),)))
    assert result.failure is not None
    assert result.failure.startswith(f"the model has no dry run: {reason}")
    assert "\n" not in result.failure
    assert result.peaks_bytes == ()
    assert "Traceback" not in "".join(capfd.readouterr())


def test_worker_goes_on_after_a_refusal(trials: Any) -> None:
    worker = TrialWorker()
    refused = trials("chance.py:noisy_routing")
    assert worker.dry_run(DryRunSpec(workload=refused.workload(), policies=(refused.policy("none", micro=4),))).failure
    maker = trials("stack.py:plain", num_blocks=3)
    result = worker.dry_run(DryRunSpec(workload=maker.workload(), policies=(maker.policy("none", micro=4),)))
    assert result.peaks_bytes[0] > 0


class TestInspectionOnFakeTensors:
    def test_finds_what_it_finds_with_data(self, small_model: Any) -> None:
        spec = small_model("gpt").spec
        worker = TrialWorker()
        without, with_data = (
            worker.inspect(InspectionSpec(workload=spec, on_fake_tensors=fake)) for fake in (True, False)
        )
        assert without == with_data

    def test_needs_no_device(self, small_model: Any) -> None:
        spec = small_model("gpt").spec.model_copy(update={"device": "npu"})
        inspection = TrialWorker().inspect(InspectionSpec(workload=spec, on_fake_tensors=True))
        assert inspection.shape.block_lists[0].num_blocks == 4
        assert inspection.device_memory_bytes is None

    def test_model_that_needs_values_is_refused(self, trials: Any) -> None:
        spec = InspectionSpec(workload=trials("chance.py:noisy_routing").workload(), on_fake_tensors=True)
        with pytest.raises(WorkloadError, match="cannot run forward on a batch of 1: DynamicOutputShapeException"):
            TrialWorker().inspect(spec)


class TestAgent:
    def test_dry_runs_have_a_process_of_their_own(self, trials: Any) -> None:
        maker = trials("stack.py:plain", num_blocks=3)
        agent = WorkerAgent({}, process_per_trial=False)
        try:
            trial = TrialResult.model_validate_json(agent.run(maker.spec("none", micro=8).model_dump_json()))
            spec = DryRunSpec(workload=maker.workload(), policies=(maker.policy("none", micro=4),))
            dry_run = DryRunResult.model_validate_json(agent.ask("dry_run", spec.model_dump_json(), spec.timeout_s))
            after = TrialResult.model_validate_json(agent.run(maker.spec("none", micro=8).model_dump_json()))
        finally:
            agent.stop()
        assert dry_run.peaks_bytes[0] > 0
        assert trial.status is after.status is TrialStatus.COMPLETED
        assert trial.worker_pid == after.worker_pid

    @pytest.mark.slow
    def test_time_limit_and_death_are_refusals_in_one_line(self, trials: Any) -> None:
        agent = WorkerAgent({}, process_per_trial=False)
        answers = []
        try:
            for how, timeout_s in (("loop", 3.0), ("kill", 60.0)):
                maker = trials("resources.py:failing", args={"how": how, "from_samples": 1})
                policies = (maker.policy("none", micro=4),)
                spec = DryRunSpec(workload=maker.workload(), policies=policies, timeout_s=timeout_s)
                result = DryRunResult.model_validate_json(agent.ask("dry_run", spec.model_dump_json(), spec.timeout_s))
                answers.append(result.failure or "")
        finally:
            agent.stop()
        assert answers[0] == "the dry run was not finished after 3 s; stopped"
        assert answers[1].startswith("worker died (signal 9, SIGKILL")
        assert answers[1].endswith("during the dry run")


def test_replay_answers_what_was_recorded(trials: Any) -> None:
    spec = DryRunSpec(workload=trials("stack.py:plain").workload())
    assert ReplayRunner({}).dry_run(spec).failure == "no dry run was recorded"
    recorded = DryRunResult(peaks_bytes=(7,))
    assert json.loads(ReplayRunner({}, dry_run=recorded).dry_run(spec).model_dump_json())["peaks_bytes"] == [7]

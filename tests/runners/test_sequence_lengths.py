"""Trials over several sequence lengths: real ones, of GPT-2 and of a model that says what it was run on."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch

from runners.base import WorkloadError
from runners.trial import DryRunSpec, InspectionSpec, MeasurementSpec, PlayoffSpec, TrialStatus, Verdict, WorkloadSpec
from runners.worker import TrialWorker
from runners.workloads.load import load_workload
from search_spaces.choices import SearchChoices
from search_spaces.policy import Region

Trials = Any

_MIX = {"sequence_length": 16, "shorter_sequence_lengths": (4, 8)}
_GPT2 = {
    "factory": "huggingface:gpt2",
    "args": {"n_layer": 3, "n_embd": 32, "n_head": 2, "vocab_size": 64, "n_positions": 16},
    "num_blocks": 3,
    "blocks": "transformer.h",
}


def mixed(trials: Trials, factory: str = "lengths.py:sequences", **options: Any) -> Any:
    maker = trials(factory, num_blocks=3, **options)
    maker.options = dict(_MIX)
    return maker


def lengths_run(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().split()]


class TestPeak:
    @pytest.mark.parametrize("model", ["own", "gpt2"])
    @pytest.mark.parametrize(("regions", "micro"), [("none", 4), ((Region(0, 2, "block"),), 2)])
    def test_is_that_of_the_longest_alone(self, trials: Trials, model: str, regions: Any, micro: int) -> None:
        options = _GPT2 if model == "gpt2" else {"factory": "lengths.py:sequences", "num_blocks": 3}
        several, longest = trials(**options), trials(**options)
        several.options, longest.options = dict(_MIX), {"sequence_length": 16}
        found, expected = several.run(regions, micro=micro), longest.run(regions, micro=micro)
        assert (found.status, found.reason) == (TrialStatus.COMPLETED, None)
        assert found.verification.verdict is Verdict.MATCH
        assert (found.peak_memory_bytes, found.memory_bytes) == (expected.peak_memory_bytes, expected.memory_bytes)

    def test_is_predicted_for_the_longest(self) -> None:
        peaks = []
        for lengths in (_MIX, {"sequence_length": 16}):
            spec = WorkloadSpec(model_factory=_GPT2["factory"], model_args=_GPT2["args"], device="cpu", **lengths)
            worker = TrialWorker()
            shape = worker.inspect(InspectionSpec(workload=spec, on_fake_tensors=True)).shape
            choices = SearchChoices(shape, 4, (1, 2, 4), ("none", "block"))
            result = worker.dry_run(DryRunSpec(workload=spec, choices=choices))
            peaks.append((result.failure, result.profile))
        assert peaks[0] == peaks[1]
        assert peaks[0][0] is None


class TestTime:
    def test_steps_take_turns_at_all_lengths(
        self, trials: Trials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = tmp_path / "lengths"
        monkeypatch.setenv("LENGTHS_LOG", str(log))
        maker = mixed(trials)
        measurement = MeasurementSpec(warmup_steps=0, min_steps=3, max_steps=3, verify=False)
        result = maker.run("none", micro=4, measurement=measurement)
        assert result.num_steps == 3
        # Two micro-batches per step: two steps for memory, one micro-batch of each length for FLOPs, the shorter ones
        # once to warm up, then three cycles.
        cycle = [16, 16, 8, 8, 4, 4]
        assert lengths_run(log) == [16] * 4 + [16, 8, 4] + cycle[2:] + cycle * 3

    def test_the_reference_takes_turns_as_well(
        self, trials: Trials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = tmp_path / "lengths"
        maker = mixed(trials)
        reference = maker.policy("none", micro=1)
        monkeypatch.setenv("LENGTHS_LOG", str(log))
        measurement = MeasurementSpec(warmup_steps=0, min_steps=1, max_steps=1, verify=False)
        result = maker.run("none", measurement=measurement, reference=reference)
        # A quarter of eight micro-batches: once to warm up, once before the measured cycle and once after it.
        reference_cycle = [16, 16, 8, 8, 4, 4]
        assert lengths_run(log)[-21:] == reference_cycle * 2 + [16, 8, 4] + reference_cycle
        assert result.relative_speed == pytest.approx(result.reference_step_time_s / result.step_time_s)

    def test_tokens_are_those_of_the_mix(self, trials: Trials) -> None:
        result = mixed(trials).run("none")
        assert result.samples_per_second == pytest.approx(8 / result.step_time_s)
        assert result.tokens_per_second == pytest.approx(result.samples_per_second * (4 + 8 + 16) / 3)

    def test_a_playoff_takes_turns_at_all_lengths(
        self, trials: Trials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = tmp_path / "lengths"
        monkeypatch.setenv("LENGTHS_LOG", str(log))
        maker = mixed(trials)
        spec = PlayoffSpec(
            policies=(maker.policy("none", micro=8), maker.policy("block", micro=8)),
            workload=maker.workload(),
            min_rounds=2,
            max_rounds=2,
        )
        result = TrialWorker().playoff(spec)
        assert result.failure is None
        assert [len(times) for times in result.step_times_s] == [2, 2]
        assert lengths_run(log) == [16, 8, 4] * 2 * 3


class TestProof:
    def test_trains_on_the_longest_and_the_shortest_and_says_so(
        self, trials: Trials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = tmp_path / "lengths"
        monkeypatch.setenv("LENGTHS_LOG", str(log))
        result = mixed(trials).run("block", micro=4)
        proof = result.verification
        assert (proof.verdict, proof.num_steps) == (Verdict.MATCH, 3)
        assert proof.reference.endswith("at micro-batch 4, sequence lengths 16, 4, 8")
        # The plain model twice, two micro-batches per step.
        assert [length for length, _ in groupby(lengths_run(log)[:12])] == [16, 4, 8] * 2

    def test_finds_what_goes_wrong_at_the_shortest_only(self, trials: Trials) -> None:
        result = mixed(trials, "lengths.py:wrong_when_short").run("block")
        assert result.verification.verdict is Verdict.MISMATCH
        assert "calls" in result.verification.reason
        alone = trials("lengths.py:wrong_when_short", num_blocks=3)
        alone.options = {"sequence_length": 16}
        assert alone.run("block").verification.verdict is Verdict.MATCH

    def test_finds_a_division_that_changes_the_shortest_only(self, trials: Trials) -> None:
        proof = mixed(trials, "lengths.py:sums_when_short").run("none", micro=2).verification
        assert (proof.verdict, proof.split_verdict) == (Verdict.MISMATCH, Verdict.MISMATCH)
        assert "the loss is a sum over samples" in proof.reason
        assert proof.reference.startswith("one batch of 8 samples of 4 tokens, whole and as 4 x 2")


class TestBatches:
    def test_follow_the_length_by_the_users_own_function(self, trials: Trials) -> None:
        maker = mixed(trials, batch="lengths.py:batch")
        workload = load_workload(maker.workload())
        assert [workload.make_batch(2, length)["x"].shape[1] for length in (None, 4, 8, 16)] == [16, 4, 8, 16]
        assert workload.tokens_per_sample == pytest.approx(28 / 3)
        assert maker.run("block", micro=4).verification.verdict is Verdict.MATCH

    def test_of_a_function_that_is_not_told_the_length_are_refused(self, trials: Trials) -> None:
        maker = mixed(trials, batch="lengths.py:batch_of_one_length")
        text = (
            r"batch.sequence_length is \[4, 8, 16\], but batch.factory lengths.py:batch_of_one_length takes no "
            r"sequence_length \(its parameters are micro_batch_size\), .*; give it a second parameter sequence_length, "
            "or name one length"
        )
        with pytest.raises(WorkloadError, match=text):
            load_workload(maker.workload())
        maker.options = {"sequence_length": 16}
        assert load_workload(maker.workload()).make_batch(2)["x"].shape[1] == 8

    def test_of_a_model_that_is_not_told_the_length_are_refused(self, trials: Trials) -> None:
        workload = load_workload(mixed(trials, "stack.py:plain").workload())
        with pytest.raises(WorkloadError, match=r"is \[4, 8, 16\], but Stack.example_batch takes no sequence_length"):
            workload.make_batch(2)

    def test_that_do_not_follow_the_length_are_refused(self, trials: Trials) -> None:
        workload = load_workload(mixed(trials, batch="lengths.py:padded_batch").workload())
        text = (
            r"is \[4, 8, 16\], but batches of the shortest are as large as those of the longest, 2048 elements at "
            "micro-batch 2; name one length"
        )
        with pytest.raises(WorkloadError, match=text):
            workload.make_batch(2)

    def test_of_images_are_refused(self) -> None:
        vit = {
            "num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2,
            "image_size": 16, "patch_size": 8,
        }  # fmt: skip
        spec = WorkloadSpec(model_factory="huggingface:vit", model_args=vit, device="cpu", **_MIX)
        workload = load_workload(spec)
        assert workload.tokens_per_sample is None
        with pytest.raises(WorkloadError, match="batches of the shortest are as large as those of the longest"):
            workload.make_batch(1)

    def test_longer_than_the_models_positions_are_refused(self) -> None:
        spec = WorkloadSpec(
            model_factory=_GPT2["factory"],
            model_args=_GPT2["args"],
            device="cpu",
            sequence_length=32,
            shorter_sequence_lengths=(8,),
        )
        with pytest.raises(
            WorkloadError, match=r"batch.sequence_length holds 32, but huggingface:gpt2 has positions for"
        ):
            load_workload(spec).build_model()

    def test_are_the_same_whether_lengths_were_checked_before_or_not(self, trials: Trials) -> None:
        workload = load_workload(mixed(trials, batch="lengths.py:batch").workload())
        made = []
        for _ in range(2):
            torch.manual_seed(5)
            made.append(workload.make_batch(2, 8)["x"])
        assert torch.equal(*made)

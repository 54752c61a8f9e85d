from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from simulation import INSPECTION, MIB, failure, policy, trial

from runners.trial import TrialStatus, Verdict, Verification
from search_spaces.model_shape import BlockList, ModelShape
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region
from tuner.comparison.compare_studies import NotComparableError
from tuner.comparison.records import Comparison
from tuner.objective import Objective
from tuner.results import StudyResults

StudyOf = Callable[..., StudyResults]
Compare = Callable[[StudyResults, StudyResults], Comparison]

#: Peaks of the simulated device at micro-batch 2: none 26 MiB, block 11 MiB; at 1: none 18 MiB, block 10.5 MiB.
PLAIN, BLOCK = trial(0), trial(1, "block")
PLAIN_BY_ONE = trial(2, "none", 1, recompute_time_s=0.0)


class TestRefusal:
    def test_of_another_global_batch(self, study_of: StudyOf, compare: Compare) -> None:
        larger = RecomputePolicy(BatchShape.split(global_batch_size=4, micro_batch_size=4), policy("block").placement)
        other = study_of(trial(0, "block", policy=larger), study="other")
        text = (
            "STUDY simulated has a global batch of 2 samples and STUDY other one of 4; only studies of one global "
            "batch train alike, so name two with the same batch.global_batch_size"
        )
        with pytest.raises(NotComparableError, match=text):
            compare(study_of(BLOCK), other)

    def test_of_two_studies_of_one_name_tells_them_apart_by_folder(self, study_of: StudyOf, compare: Compare) -> None:
        larger = RecomputePolicy(BatchShape.split(global_batch_size=4, micro_batch_size=4), policy("block").placement)
        other = study_of(trial(0, "block", policy=larger))
        text = r"STUDY simulated \(runs/a\) has a global batch of 2 samples and STUDY simulated \(runs/b\) one of 4"
        with pytest.raises(NotComparableError, match=text):
            compare(study_of(BLOCK), other)
        nothing = study_of(failure(0, TrialStatus.OUT_OF_MEMORY, "too large"))
        with pytest.raises(NotComparableError, match=r"STUDY simulated \(runs/b\) \(the second\) has no best trial"):
            compare(study_of(BLOCK), nothing)

    def test_of_a_study_without_a_best(self, study_of: StudyOf, compare: Compare) -> None:
        nothing = study_of(
            failure(0, TrialStatus.OUT_OF_MEMORY, "too large"), study="hopeless", stop_reason="all tried"
        )
        text = (
            r"STUDY hopeless \(the second\) has no best trial \(finished, all tried\); winners are compared, so name a"
        )
        with pytest.raises(NotComparableError, match=text):
            compare(study_of(BLOCK), nothing)


class TestSameStudy:
    def test_is_said_and_nothing_else(self, study_of: StudyOf, compare: Compare) -> None:
        found = compare(study_of(PLAIN, BLOCK), study_of(PLAIN, BLOCK))
        assert found.same
        assert found.summary == ("A and B are the same study, simulated: every figure is equal.",)
        assert (found.differences, found.blocks) == ((), ())
        assert found.speed_ratio is not None
        assert found.speed_ratio.value == 1.0

    def test_is_not_two_runs_of_one_search(self, study_of: StudyOf, compare: Compare) -> None:
        found = compare(study_of(PLAIN, BLOCK), study_of(PLAIN, trial(1, "block", wall_time_s=1.0)))
        assert not found.same
        assert found.differences == ()


class TestDifferences:
    def test_are_all_that_is_not_alike_and_nothing_of_names_and_places(
        self, study_of: StudyOf, compare: Compare
    ) -> None:
        b = study_of(
            BLOCK,
            study="other",
            cap_bytes=12 * MIB,
            model__dtype="bfloat16",
            model__args={"depth": 2, "width": 8},
            batch__sequence_length=[8, 16],
            environment={"torch": "2.12.0"},
        )
        found = compare(study_of(BLOCK), b)
        assert [(fact.name, fact.a, fact.b) for fact in found.differences] == [
            ("model.dtype", "float32", "bfloat16"),
            ("batch.sequence_length", 16, [8, 16]),
            ("memory_cap", 20 * MIB, 12 * MIB),
            ("environment.torch", "2.13.0", "2.12.0"),
            ("model.args.width", None, 8),
        ]

    @pytest.mark.parametrize(
        ("changes", "caution"),
        [
            ({"model__dtype": "bfloat16"}, "model.dtype is float32 in A and bfloat16 in B: bytes and speed follow"),
            ({"model__autocast": "bfloat16"}, "model.autocast is null in A and bfloat16 in B: "),
            (
                {"batch__sequence_length": [16, 32]},
                "batch.sequence_length is 16 in A and 16, 32 in B: a step has other tokens",
            ),
            ({"batch__factory": "data.py:make"}, "batch.factory is null in A and data.py:make in B: the data may"),
            ({"environment": {"device_kind": "cuda"}}, "environment.device_kind is cpu in A and cuda in B: peaks are"),
            ({"environment": {"num_threads": 4}}, "environment.num_threads is 2 in A and 4 in B: times follow the"),
            ({"environment": {"torch": "2.12.0"}}, "environment.torch is 2.13.0 in A and 2.12.0 in B: kernels may"),
            (
                {"optimizer__name": "sgd", "optimizer__args": {"lr": 0.1}},
                "The optimizers differ (optimizer.name adamw in A and sgd in B; optimizer.args.lr 0.0001 in A and 0.1 "
                "in B): their states",
            ),
            (
                {"model__args": {"depth": 3}},
                "The models may differ, with the same number of parameters (model.args.depth is 2 in A and 3 in B).",
            ),
            ({"status": "interrupted", "stop_reason": None}, "B is interrupted: a better policy may not have been"),
        ],
    )
    def test_that_weaken_the_comparison_are_said(
        self, study_of: StudyOf, compare: Compare, changes: dict[str, Any], caution: str
    ) -> None:
        (said,) = compare(study_of(BLOCK), study_of(BLOCK, **changes)).cautions
        assert said.startswith(caution)

    def test_of_models_are_said_by_their_size(self, study_of: StudyOf, compare: Compare) -> None:
        inspection = INSPECTION.model_copy(update={"shape": ModelShape(5_000_000, INSPECTION.shape.block_lists)})
        (said,) = compare(study_of(BLOCK), study_of(BLOCK, inspection=inspection)).cautions
        assert said.startswith("The models differ (1,000 parameters in A, 5,000,000 in B): ")

    def test_a_winner_without_proof_is_said(self, study_of: StudyOf, compare: Compare) -> None:
        unproven = Verification(verdict=Verdict.UNVERIFIED, reason="measurement.verify is false")
        objective = Objective(memory_cap_bytes=20 * MIB, proof_required=False)
        b = study_of(trial(4, "block", verification=unproven), objective=objective)
        (said,) = compare(study_of(BLOCK), b).cautions
        assert said == ("B's best, trial 4, is not proven to train the same model (measurement.verify is false).")

    @pytest.mark.parametrize("changes", [{}, {"cap_bytes": 12 * MIB}, {"batch__micro_batch_sizes": [2]}])
    def test_that_weaken_nothing_are_not_warned_of(
        self, study_of: StudyOf, compare: Compare, changes: dict[str, Any]
    ) -> None:
        assert compare(study_of(BLOCK), study_of(BLOCK, **changes)).cautions == ()


class TestWinners:
    def test_show_what_both_measured(self, study_of: StudyOf, compare: Compare) -> None:
        found = compare(study_of(PLAIN, BLOCK), study_of(PLAIN, cap_bytes=30 * MIB))
        figures = {figure.name: (figure.a, figure.b) for figure in found.figures}
        assert figures["policy_summary"] == ("block @2x1", "none @2x1")
        assert figures["recomputed_blocks"] == ("2 of 2", "0 of 2")
        assert figures["recompute_regions"] == (2, 0)
        assert figures["rng_state"] == ("preserved", "nothing is recomputed")
        assert figures["peak_memory_bytes"] == (11 * MIB + MIB, 26 * MIB)
        assert figures["memory_bytes.activations"] == (2 * MIB, 16 * MIB)
        assert figures["recompute_time_s"] == (pytest.approx(0.3), 0.0)
        assert figures["recompute_share"] == (pytest.approx(0.3 / 1.3), 0.0)
        assert figures["speed_over_baseline"] == ("0.77x +-0.00", "1.00x")
        assert figures["verdict"] == ("MATCH", "MATCH")

    def test_leave_out_what_neither_has(self, study_of: StudyOf, compare: Compare) -> None:
        no_tokens = trial(1, "block", tokens_per_second=None)
        names = [figure.name for figure in compare(study_of(no_tokens), study_of(no_tokens, study="b")).figures]
        assert "tokens_per_second" not in names
        assert "samples_per_second" in names

    def test_show_dropout_where_the_models_arguments_name_it(self, study_of: StudyOf, compare: Compare) -> None:
        found = compare(study_of(BLOCK, model__args={"attn_pdrop": 0.1, "drop_path": 0}), study_of(BLOCK))
        (dropout,) = [figure for figure in found.figures if figure.name == "dropout in model.args"]
        assert (dropout.a, dropout.b) == ("attn_pdrop 0.1, drop_path 0", None)


class TestBlocks:
    def test_are_named_where_the_placements_differ(self, study_of: StudyOf, compare: Compare) -> None:
        half = trial(1, "block", policy=policy("block", last=0))
        (run,) = compare(study_of(BLOCK), study_of(half)).blocks or ()
        assert (run.blocks, run.first, run.last, run.a, run.b) == ("h", 1, 1, "block", "none")

    def test_are_not_matched_across_other_lists(self, study_of: StudyOf, compare: Compare) -> None:
        shape = ModelShape(1000, (BlockList("h", "Block", 3),))
        other = study_of(BLOCK, inspection=INSPECTION.model_copy(update={"shape": shape}))
        assert compare(study_of(BLOCK), other).blocks is None


class TestSpeed:
    def test_is_relative_to_the_reference_where_that_is_the_same(self, study_of: StudyOf, compare: Compare) -> None:
        """The machine was three times slower during B, and its reference steps show it."""
        slowed = trial(1, "block", step_time_s=3.9, samples_per_second=2 / 3.9, reference_step_time_s=4.5)
        found = compare(study_of(BLOCK), study_of(slowed))
        assert found.speed_ratio is not None
        assert (found.speed_ratio.value, found.speed_ratio.basis) == (pytest.approx(1.0), "relative_speed")
        assert found.summary[-1].startswith(
            "The same reference steps took 1.50 s beside A's best and 4.50 s beside B's: the machine itself"
        )

    @pytest.mark.parametrize(
        "changes",
        [
            {"environment": {"device": "another CPU"}},
            {"environment": {"num_threads": 1}},
            {"batch__micro_batch_sizes": [2]},
            {"model__dtype": "bfloat16"},
        ],
    )
    def test_is_as_measured_where_the_reference_is_another(
        self, study_of: StudyOf, compare: Compare, changes: dict[str, Any]
    ) -> None:
        slowed = trial(1, "block", step_time_s=3.9, samples_per_second=2 / 3.9, tokens_per_second=32 / 3.9)
        ratio = compare(study_of(BLOCK), study_of(slowed, **changes)).speed_ratio
        assert ratio is not None
        assert (ratio.value, ratio.basis) == (pytest.approx(1 / 3), "throughput")

    def test_is_in_tokens_where_samples_are_of_other_lengths(self, study_of: StudyOf, compare: Compare) -> None:
        longer = trial(1, "block", tokens_per_second=4 * (BLOCK.tokens_per_second or 0))
        ratio = compare(study_of(BLOCK), study_of(longer, batch__sequence_length=64)).speed_ratio
        assert ratio is not None
        assert ratio.value == pytest.approx(4.0)


class TestMeasuredInBoth:
    def test_are_those_that_do_the_same(self, study_of: StudyOf, compare: Compare) -> None:
        a, b = study_of(PLAIN, BLOCK, trial(2, "mlp")), study_of(trial(0, "mlp"), trial(1), PLAIN_BY_ONE)
        shared = compare(a, b).measured_in_both
        assert [(entry.policy, entry.trial_a, entry.trial_b) for entry in shared] == [
            ("none @2x1", 0, 1),
            ("mlp @2x1", 2, 0),
        ]
        assert (shared[0].best_in, shared[1].best_in) == ((), ("a", "b"))
        assert shared[0].peak_ratio == 1.0
        assert not shared[0].feasible_a

    def test_may_be_of_models_of_other_depth_where_all_blocks_are_treated_alike(
        self, study_of: StudyOf, compare: Compare
    ) -> None:
        shape = ModelShape(1500, (BlockList("layers", "Layer", 3),))
        deep = RecomputePolicy(
            BatchShape.split(global_batch_size=2, micro_batch_size=2),
            (BlockListPlacement("layers", 3, (), (Region(0, 2, "block"),)),),
        )
        b = study_of(trial(0, "block", policy=deep), inspection=INSPECTION.model_copy(update={"shape": shape}))
        (entry,) = compare(study_of(BLOCK), b).measured_in_both
        assert entry.policy == "block @2x1"

    def test_are_not_those_that_failed(self, study_of: StudyOf, compare: Compare) -> None:
        lost = failure(0, TrialStatus.NODE_LOST, "its node went away")
        assert [e.policy for e in compare(study_of(PLAIN, BLOCK), study_of(lost, BLOCK)).measured_in_both] == [
            "block @2x1"
        ]


class TestWhy:
    def test_a_cap_that_the_others_best_exceeds(self, study_of: StudyOf, compare: Compare) -> None:
        a, b = study_of(PLAIN, BLOCK), study_of(PLAIN, BLOCK, cap_bytes=30 * MIB)
        headline, choice, obstacle, shared = compare(a, b).summary
        assert headline == (
            "B's best (none @2x1) is 1.30x +-0.00 as fast as A's best (block @2x1), at 217% of its peak (26.0 MiB "
            "against 12.0 MiB); speeds are relative to the reference steps beside them."
        )
        assert choice == "B recomputes fewer blocks (0, A 2); recompute takes 23.1% of a step in A and 0.0% in B."
        assert obstacle == "B's best needs 26.0 MiB, more than A's cap of 20.0 MiB."
        assert shared.startswith(
            "The 2 policies measured in both are 1.00x as fast in B in the median (1.00x to 1.00x)"
        )

    def test_a_best_that_the_other_has_not_tried(self, study_of: StudyOf, compare: Compare) -> None:
        found = compare(study_of(BLOCK), study_of(PLAIN_BY_ONE))
        assert found.summary[1] == (
            "B trains smaller micro-batches (1, A 2); B recomputes fewer blocks (0, A 2); recompute takes 23.1% of a "
            "step in A and 0.0% in B."
        )
        assert found.summary[2] == "Neither has tried the other's best, which would fit."
        assert found.summary[3].startswith("No policy was measured in both, ")

    def test_a_best_that_leaves_the_choice_to_the_compiler(self, study_of: StudyOf, compare: Compare) -> None:
        by_compiler = replace(policy("none", 2), compile="blocks", compile_memory_budget=0.5)
        best = trial(0, policy=by_compiler, peak_memory_bytes=12 * MIB, recompute_time_s=None)
        found = compare(study_of(BLOCK), study_of(best))
        assert found.summary[1] == (
            "B leaves what is rebuilt to the compiler within a budget of 0.5, A to the placement."
        )
        figures = {figure.name: (figure.a, figure.b) for figure in found.figures}
        of_compiler = "left to the compiler, which may keep 50% of the activations"
        assert figures["recomputed_blocks"] == ("2 of 2", of_compiler)
        assert figures["rng_state"] == ("preserved", "left to the compiler")

    def test_a_best_that_was_infeasible_in_the_other(self, study_of: StudyOf, compare: Compare) -> None:
        wrong = trial(3, "mlp", verification=Verification(verdict=Verdict.MISMATCH, reason="gradients differ"))
        found = compare(study_of(BLOCK, wrong), study_of(trial(0, "mlp")))
        assert "A has tried B's best: it trains another model: gradients differ." in found.summary

    def test_how_long_each_searched_and_why_it_ended(self, study_of: StudyOf, compare: Compare) -> None:
        found = compare(study_of(PLAIN, BLOCK, stop_reason="the time limit of 60 s was reached"), study_of(BLOCK))
        by_name = {figure.name: (figure.a, figure.b) for figure in found.figures}
        assert by_name["num_trials"] == (2, 1)
        assert by_name["stop_reason"][0] == "the time limit of 60 s was reached"

    def test_one_policy_on_two_devices(self, study_of: StudyOf, compare: Compare) -> None:
        faster = trial(
            1, "block", samples_per_second=20.0, tokens_per_second=320.0, step_time_s=0.1, recompute_time_s=0.01
        )
        found = compare(study_of(BLOCK), study_of(faster, environment={"device": "another CPU"}))
        assert found.summary[0].startswith(
            "B's best (block @2x1) is 13.00x +-0.00 as fast as A's best (block @2x1), at"
        )
        assert found.summary[1] == ("Both chose the same policy; recompute takes 23.1% of a step in A and 10.0% in B.")
        assert found.summary[2] == (
            "The one policy measured in both is 13.00x as fast in B: that is not the policies' doing but that of "
            "device, threads and versions."
        )

    def test_other_work_is_told_by_what_its_cap_is_left_with(self, study_of: StudyOf, compare: Compare) -> None:
        found = compare(study_of(BLOCK), study_of(PLAIN, cap_bytes=40 * MIB, model__dtype="bfloat16"))
        assert found.summary[2] == (
            "At the peak, parameters, gradients, optimizer states and buffers take 50% of A's cap and 25% of B's; the "
            "rest is what recompute can trade."
        )

    def test_speeds_that_tie_are_no_difference(self, study_of: StudyOf, compare: Compare) -> None:
        a, b = trial(1, "block", relative_speed_spread=0.1), trial(1, "block", relative_speed=1.2)
        text = compare(study_of(a), study_of(b)).summary[0]
        assert text.startswith("B's best (block @2x1) is as fast within the spread (1.04x +-0.09) as A's best")

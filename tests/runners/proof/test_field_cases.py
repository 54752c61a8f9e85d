"""Situations reported from real training, each as a trial: what the proof must say, and what the user reads."""

from __future__ import annotations

from typing import Any

import pytest

from runners.trial import TrialResult, TrialStatus, Verdict
from search_spaces.policy import Region

Trials = Any


def assert_match(result: TrialResult) -> None:
    assert (result.status, result.reason) == (TrialStatus.COMPLETED, None)
    assert result.verification is not None
    assert (result.verification.verdict, result.verification.reason) == (Verdict.MATCH, None)


def assert_mismatch(result: TrialResult, *parts: str) -> None:
    assert (result.status, result.reason) == (TrialStatus.COMPLETED, None)
    assert result.verification is not None
    assert result.verification.verdict is Verdict.MISMATCH
    assert_says(result.verification.reason, *parts)


def assert_unverified(result: TrialResult, *parts: str) -> None:
    assert (result.status, result.reason) == (TrialStatus.COMPLETED, None)
    assert result.verification is not None
    assert result.verification.verdict is Verdict.UNVERIFIED
    assert_says(result.verification.reason, *parts)


def assert_failed(result: TrialResult, *parts: str) -> None:
    assert result.status is TrialStatus.FAILED
    assert result.verification is None
    assert_says(result.reason, *parts)


def assert_says(text: str | None, *parts: str) -> None:
    assert text is not None
    assert "\n" not in text
    assert [part for part in parts if part not in text] == [], text


class TestBatchStatistics:
    @pytest.mark.parametrize("regions", ["block", (Region(0, 2, "segment", 2),)], ids=["block", "segment"])
    def test_recompute_advances_running_statistics_once(self, trials: Trials, regions: Any) -> None:
        result = trials("normalization.py:training_statistics", num_blocks=3).run(regions)
        assert_match(result)
        assert result.verification.max_relative_error == 0

    def test_recompute_that_advances_a_counter_of_the_models_own_is_named_by_its_buffer(self, trials: Trials) -> None:
        result = trials("normalization.py:own_statistics", num_blocks=3).run("block")
        assert_mismatch(result, "buffer blocks.0.1.num_calls is", "instead of")
        assert result.verification.worst_tensor == "blocks.0.1.num_calls"
        assert result.verification.recompute_verdict is Verdict.MISMATCH

    @pytest.mark.parametrize("regions", ["none", (Region(0, 2, "block"),)], ids=["none", "block"])
    def test_statistics_that_are_frozen_match(self, trials: Trials, regions: Any) -> None:
        assert_match(trials("normalization.py:frozen_statistics", num_blocks=3).run(regions, micro=2))

    def test_plain_training_matches_but_its_division_does_not(self, trials: Trials) -> None:
        result = trials("normalization.py:training_statistics", num_blocks=3).run("none", micro=4)
        assert_mismatch(result, "dividing the batch changes the training", "blocks.0.1 normalizes over the samples")
        assert result.verification.recompute_verdict is Verdict.MATCH
        assert result.verification.split_verdict is Verdict.MISMATCH


class TestDropout:
    def test_masks_that_are_replayed_match(self, trials: Trials) -> None:
        assert_match(trials("chance.py:dropout", num_blocks=3).run("mlp"))

    def test_masks_that_are_not_replayed_are_found_out(self, trials: Trials) -> None:
        result = trials("chance.py:dropout", num_blocks=3).run("mlp", rng=False)
        assert_mismatch(result, "the gradient of blocks.", "differs by")
        assert result.verification.max_relative_error > 0.01

    def test_blocks_without_chance_match_without_replay(self, trials: Trials) -> None:
        assert_match(trials("chance.py:dropout", num_blocks=3).run("attention", rng=False))

    def test_division_is_judged_with_dropout_silenced_and_recompute_with_dropout_alive(self, trials: Trials) -> None:
        result = trials("chance.py:dropout", num_blocks=3).run("block", micro=2)
        assert_match(result)
        assert result.verification.recompute_verdict is Verdict.MATCH
        assert result.verification.split_verdict is Verdict.MATCH

    def test_division_does_not_hide_a_mask_that_is_not_replayed(self, trials: Trials) -> None:
        result = trials("chance.py:dropout", num_blocks=3).run("block", micro=2, rng=False)
        assert_mismatch(result, "the gradient of blocks.")
        assert result.verification.split_verdict is Verdict.MATCH

    def test_dropout_inside_fused_attention_is_silenced_for_the_division(self, trials: Trials) -> None:
        maker = trials("runners.workloads.gpt:gpt", args={"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 32})
        maker.options = {"sequence_length": 8}
        assert_match(maker.run("attention+mlp", micro=2))


class TestOtherRandomDecisions:
    def test_routing_with_noise_that_is_not_replayed_names_the_block(self, trials: Trials) -> None:
        result = trials("chance.py:noisy_routing", global_batch_size=64).run("block")
        if result.status is TrialStatus.FAILED:
            assert_failed(result, "blocks.1 did not repeat itself", "token counts changed")
        else:
            assert_mismatch(result, "blocks.")

    def test_recompute_that_leaves_the_router_out_matches(self, trials: Trials) -> None:
        assert_match(trials("chance.py:noisy_routing", global_batch_size=64).run("attention"))

    @pytest.mark.parametrize(
        ("factory", "args"),
        [("chance.py:layer_drop_inside", {"source": "torch"}), ("chance.py:layer_drop_outside", {})],
        ids=["inside, from torch", "outside"],
    )
    def test_layer_drop_that_recompute_replays_or_leaves_alone_matches(
        self, trials: Trials, factory: str, args: dict[str, Any]
    ) -> None:
        assert_match(trials(factory, args=args, num_blocks=4).run("block", micro=4))

    def test_layer_drop_inside_from_python_is_found_out(self, trials: Trials) -> None:
        result = trials("chance.py:layer_drop_inside", args={"source": "python"}, num_blocks=4).run("block")
        if result.status is TrialStatus.FAILED:
            assert_failed(result, "blocks.", "did not repeat itself")
        else:
            assert_mismatch(result)

    def test_layer_drop_outside_breaks_segments_with_a_reason(self, trials: Trials) -> None:
        result = trials("chance.py:layer_drop_outside", num_blocks=4).run((Region(0, 3, "segment", 4),))
        assert_failed(result, "SegmentError: blocks.")

    def test_baseline_that_does_not_repeat_proves_nothing(self, trials: Trials) -> None:
        result = trials("chance.py:unrepeatable").run("block")
        assert_unverified(result, "the baseline does not repeat itself under the same seed")

    def test_chance_that_cannot_be_silenced_leaves_the_division_open(self, trials: Trials) -> None:
        result = trials("chance.py:numpy_noise").run("block", micro=2)
        assert_unverified(result, "random draws of NumPy cannot be silenced")
        assert result.verification.recompute_verdict is Verdict.MATCH

    def test_silenced_draws_stay_within_their_bounds(self, trials: Trials) -> None:
        assert_match(trials("chance.py:random_lengths").run("block", micro=2))


class TestStateBetweenCalls:
    @pytest.mark.parametrize("action", ["attention", "block", "attention+mlp"])
    def test_cache_that_grows_in_recompute_is_explained(self, trials: Trials, action: str) -> None:
        result = trials("state.py:growing_cache", num_blocks=3).run(action)
        assert_failed(result, "blocks.2", "did not repeat itself", "kept state between the two runs", "use_cache")
        assert "saved metadata" not in result.reason
        assert "saved metadata" in result.detail

    def test_other_placements_of_a_model_with_a_cache_go_on(self, trials: Trials) -> None:
        assert_match(trials("state.py:growing_cache", num_blocks=3).run("mlp"))

    @pytest.mark.parametrize("blocks", ["blocks", "readers"])
    def test_blocks_that_talk_through_a_dict_match(self, trials: Trials, blocks: str) -> None:
        assert_match(trials("state.py:shared_container", blocks=blocks).run("block"))

    @pytest.mark.parametrize("replaces", [False, True], ids=["in place", "replaced"])
    def test_buffer_that_is_read_and_then_rewritten_is_found_by_its_gradients(
        self, trials: Trials, replaces: bool
    ) -> None:
        result = trials("state.py:moving_centre", args={"replaces": replaces}).run("block")
        assert_mismatch(result, "the gradient of blocks.")
        assert "linear" in result.verification.worst_tensor

    def test_counter_that_advances_twice_is_named(self, trials: Trials) -> None:
        result = trials("state.py:call_counter").run("block")
        assert_mismatch(result, "buffer blocks.0.calls is 6 instead of 3")

    def test_counter_that_a_division_advances_more_often_is_no_mismatch(self, trials: Trials) -> None:
        assert_match(trials("state.py:call_counter").run("none", micro=2))

    def test_block_that_edits_its_input_in_place_is_found_out(self, trials: Trials) -> None:
        assert_mismatch(trials("state.py:edited_input").run("block"), "the gradient of blocks.")

    def test_constant_buffers_with_infinities_match(self, trials: Trials) -> None:
        assert_match(trials("state.py:plain_with_constant_buffers").run("block", micro=2))


class TestOperators:
    @pytest.mark.parametrize("action", ["mlp", "block"])
    def test_operation_that_reads_its_saved_tensors_twice_is_explained(self, trials: Trials, action: str) -> None:
        result = trials("operators.py:saved_tensors_read_twice", num_blocks=3).run(action)
        assert_failed(result, "blocks.2", "reads its saved tensors more than once in backward")

    def test_placement_that_leaves_that_operation_out_matches(self, trials: Trials) -> None:
        assert_match(trials("operators.py:saved_tensors_read_twice", num_blocks=3).run("attention"))

    @pytest.mark.parametrize("action", ["none", "attention", "mlp", "block"])
    def test_model_that_recomputes_by_itself_matches(self, trials: Trials, action: str) -> None:
        assert_match(trials("operators.py:recomputes_itself", num_blocks=3).run(action, micro=4))

    @pytest.mark.parametrize("factory", ["words", "weighted_words"])
    @pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
    def test_whole_number_inputs_with_dense_and_sparse_gradients_match(
        self, trials: Trials, sparse: bool, factory: str
    ) -> None:
        maker = trials(f"operators.py:{factory}", args={"sparse": sparse})
        maker.options = {"optimizer_name": "sgd", "optimizer_args": {"lr": 0.01}}
        assert_match(maker.run("block", micro=2))

    def test_tied_embedding_and_head_match(self, trials: Trials) -> None:
        assert_match(trials("operators.py:tied_words").run("block", micro=4))


class TestLosses:
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_mean_of_token_means_is_found_out_and_the_hint_names_the_counts(self, trials: Trials, dtype: str) -> None:
        result = trials("losses.py:token_mean", options={"dtype": dtype}).run("none", micro=2)
        assert_mismatch(
            result,
            "dividing the batch changes the training",
            "mean over valid tokens",
            "(2, 4, 6, 8 in labels)",
            "loss_weight",
        )
        assert result.verification.recompute_verdict is Verdict.MATCH

    def test_mean_of_token_means_matches_where_the_count_is_returned(self, trials: Trials) -> None:
        assert_match(trials("losses.py:token_mean_with_weight").run("block", micro=2))

    def test_undivided_batch_is_not_blamed(self, trials: Trials) -> None:
        result = trials("losses.py:token_mean").run("block")
        assert_match(result)
        assert result.verification.split_verdict is None

    def test_samples_that_act_on_each_other_are_found_out(self, trials: Trials) -> None:
        result = trials("losses.py:contrastive").run("block", micro=4)
        assert_mismatch(result, "the loss is not a mean over samples, or samples of one batch act on each other")

    def test_sum_over_samples_is_named_as_one(self, trials: Trials) -> None:
        result = trials("losses.py:sum_over_samples").run("none", micro=2)
        assert_mismatch(result, "the loss is a sum over samples, while accumulation averages over micro-batches")

    def test_loss_that_is_no_number_proves_nothing(self, trials: Trials) -> None:
        result = trials("losses.py:not_a_number").run("block", micro=4)
        assert_unverified(result, "the baseline proves nothing: the loss of step 1 is nan")

    def test_loss_whose_terms_cancel_matches_when_divided(self, trials: Trials) -> None:
        assert_match(trials("losses.py:cancelling").run("block", micro=2))


class TestFreezing:
    @pytest.mark.parametrize("action", ["mlp", "block"])
    def test_adapters_in_a_frozen_model_match(self, trials: Trials, action: str) -> None:
        assert_match(trials("freezing.py:adapters", num_blocks=3).run(action, micro=4))

    def test_parameters_unused_in_some_steps_match(self, trials: Trials) -> None:
        assert_match(trials("freezing.py:unused_in_some_steps").run("block"))

    @pytest.mark.parametrize("blocks", ["blocks", "tower"])
    def test_frozen_tower_in_eval_mode_matches(self, trials: Trials, blocks: str) -> None:
        assert_match(trials("freezing.py:frozen_tower", blocks=blocks).run("block", micro=4))


class TestPrecision:
    @pytest.mark.parametrize(
        "options",
        [{"dtype": "bfloat16"}, {"dtype": "float64"}, {"autocast": "bfloat16"}, {"autocast": "float16"}],
        ids=str,
    )
    @pytest.mark.parametrize("action", ["block", "attention+mlp"])
    def test_every_precision_matches(self, trials: Trials, options: dict[str, Any], action: str) -> None:
        assert_match(trials("chance.py:dropout", num_blocks=3, options=options).run(action, micro=2))

    @pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"autocast": "float16"}], ids=str)
    def test_division_of_a_large_batch_is_judged_in_single_precision(
        self, trials: Trials, options: dict[str, Any]
    ) -> None:
        # In bfloat16 the gradient of a norm's bias, summed over 2,048 tokens at once, is off by 9 %.
        args = {"n_layer": 1, "n_embd": 64, "n_head": 2, "vocab_size": 200, "max_sequence_length": 32}
        maker = trials("runners.workloads.gpt:gpt", args=args, global_batch_size=64, num_blocks=1)
        maker.options = {"sequence_length": 32, **options}
        assert_match(maker.run("none", micro=16))

    def test_division_of_a_model_that_runs_in_low_precision_only_is_judged_in_that(self, trials: Trials) -> None:
        assert_match(trials("losses.py:bfloat16_only", options={"dtype": "bfloat16"}).run("none", micro=4))

    @pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"autocast": "bfloat16"}], ids=str)
    def test_low_precision_does_not_hide_a_mask_that_is_not_replayed(
        self, trials: Trials, options: dict[str, Any]
    ) -> None:
        maker = trials("chance.py:dropout", args={"p": 0.05}, num_blocks=3, options=options)
        assert_mismatch(maker.run("block", rng=False), "the gradient of blocks.")

    @pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"autocast": "bfloat16"}], ids=str)
    def test_low_precision_does_not_hide_a_slowly_moving_buffer(self, trials: Trials, options: dict[str, Any]) -> None:
        maker = trials("state.py:moving_centre", args={"momentum": 0.1}, options=options)
        assert_mismatch(maker.run("block"), "the gradient of blocks.")


class TestBatches:
    def test_samples_may_stand_in_the_second_dimension(self, trials: Trials) -> None:
        assert_match(trials("stack.py:plain", batch="inputs.py:samples_second", num_blocks=3).run("block", micro=4))

    def test_nested_inputs_lists_and_plain_values(self, trials: Trials) -> None:
        assert_match(trials("inputs.py:nested", batch="inputs.py:nested_batch").run("block", micro=2))

    def test_packed_samples(self, trials: Trials) -> None:
        assert_match(trials("stack.py:plain", batch="inputs.py:packed", num_blocks=3).run("block", micro=2))

    def test_batch_without_samples_leaves_the_division_open(self, trials: Trials) -> None:
        result = trials("inputs.py:indifferent", batch="inputs.py:no_samples").run("block", micro=2)
        assert_unverified(result, "no input of the batch changes size between 2 and 8 samples", "inputs are seed")

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulation import INSPECTION, MIB, failure, policy, results_of, trial

from runners.trial import Prediction, TrialResult, TrialStatus, Verdict, Verification
from search_spaces.policy import BatchShape, RecomputePolicy
from tuner.objective import Objective
from tuner.speed_ratio import Playoff, Ratio
from tuner.stopping import Progress, TimeLimit
from tuner.summary import ratio_text, speed_against, spread_ratio, summarize, throughput_text

UNVERIFIED = Verification(verdict=Verdict.UNVERIFIED, reason="the baseline does not repeat itself")
MISMATCH = Verification(verdict=Verdict.MISMATCH, reason="grad of h.0.mlp differs")
NO_GAIN = "No meaningful gain: plain training at micro-batch 1 fits as well and is as fast within the spread"


def sentences(*trials: TrialResult, **changes: Any) -> list[str]:
    return list(summarize(results_of(*trials, **changes)).sentences)


def timed(number: int, action: str, size: int, speed: float, **changes: Any) -> TrialResult:
    """A trial with this relative speed, and a standard error of 1 % of it."""
    return trial(number, action, size, relative_speed=speed, relative_speed_spread=speed / 100, **changes)


def test_a_winner_that_beats_plain_training() -> None:
    said = sentences(trial(0), trial(1, "mlp"), trial(2, "none", 1), trial(3, "block"))
    assert said == [
        "Best within 20.0 MiB: trial 1, mlp @2x1: 29 tokens/s (+-0.0%), peak 18.0 MiB (90% of the cap), proven to "
        "train the same model.",
        "Against plain training that fits (trial 2, none @1x2): 1.34x +-0.00 its speed.",
        "Against the plain baseline (trial 0, none @2x1, peak 26.0 MiB, which does not fit): 0.89x +-0.00 its speed at "
        "69% of its memory.",
        "Against recomputing every block (trial 3, block @2x1): 1.16x +-0.00 its speed.",
    ]


def test_a_tie_with_plain_training_is_no_gain() -> None:
    # At 12 MiB the placement wins the tie by its memory.
    said = sentences(timed(0, "none", 1, 1.0), timed(1, "block", 2, 1.01))
    assert said[1] == f"{NO_GAIN} (1.01x +-0.01)."
    assert said[-1].startswith(
        "As fast within the spread: trial 0; of those within 3% of the fastest, less memory wins"
    )


def test_a_winner_by_a_tie_that_is_slower_than_plain_is_not_called_as_fast() -> None:
    """All three tie with the fastest, but plain training is known well enough to be ahead of the winner."""
    playoff = Playoff(trials=(0, 1, 2), step_times_s=((1.0,) * 9, (1.01,) * 9, (0.95, 1.02, 1.0) * 3))
    plain, winner = trial(0, "none", 1), trial(1, "block", 1)
    results = results_of(plain, winner, trial(2, "mlp", 1), playoff=playoff)
    assert results.best == 1
    said = summarize(results).sentences[1]
    assert said == "No meaningful gain: plain training at micro-batch 1 fits as well and is no slower (0.99x +-0.00)."


def test_plain_training_as_the_best_answer() -> None:
    said = sentences(trial(0), trial(1, "block"), cap_bytes=30 * MIB)
    assert said[0].startswith("Best within 30.0 MiB: trial 0, none @2x1: ")
    assert said[1] == (
        "No recompute is the best answer here: the one measured placement with recompute was not faster within the cap."
    )
    assert "plain baseline" not in " ".join(said)


def test_plain_training_that_wins_by_its_memory_is_still_plain() -> None:
    said = sentences(timed(0, "none", 2, 1.01), timed(1, "none", 1, 1.0), cap_bytes=30 * MIB)
    assert said[0].startswith("Best within 30.0 MiB: trial 1, none @1x2: ")
    assert said[1].startswith(
        "Only plain training was measured, so this says nothing of recompute; go on with --resume"
    )


def test_what_the_compiler_rebuilds_within_a_budget_is_recompute() -> None:
    by_compiler = replace(policy("none", 2), compile="blocks", compile_memory_budget=0.5)
    best = timed(1, "none", 2, 1.5, policy=by_compiler, peak_memory_bytes=12 * MIB)
    said = sentences(timed(0, "none", 1, 1.0), best)
    assert said[0].startswith("Best within 20.0 MiB: trial 1, none compiled blocks budget 0.5 @2x1: ")
    assert said[1] == "Against plain training that fits (trial 0, none @1x2): 1.50x +-0.02 its speed."
    said = sentences(timed(0, "none", 1, 1.0), best.model_copy(update={"relative_speed": 0.5}))
    assert said[1].startswith("No recompute is the best answer here: the one measured placement with recompute was not")


def test_plain_training_that_does_not_fit() -> None:
    said = sentences(trial(0), trial(1, "block"), failure(2, TrialStatus.OUT_OF_MEMORY, "no room", size=1))
    assert said[1] == "Plain training does not fit at any micro-batch size."


def test_plain_training_that_was_not_tried_at_smaller_sizes_is_not_said_not_to_fit() -> None:
    said = sentences(trial(0), trial(1, "block"))
    assert said[1] == "Plain training does not fit at micro-batch 2; at smaller ones it was not tried."


def test_plain_training_that_fits_but_is_not_proven_is_not_said_not_to_fit() -> None:
    said = sentences(trial(0, verification=UNVERIFIED), trial(1, "block"), cap_bytes=30 * MIB)
    why = "it is not proven to train the same model: the baseline does not repeat itself"
    assert said[1] == f"Plain training is not feasible: trial 0, none @2x1: {why}."
    assert f"none @2x1, peak 26.0 MiB, not feasible: {why}): " in said[2]


def test_plain_training_that_could_not_be_measured_is_not_said_not_to_fit() -> None:
    said = sentences(trial(0), trial(1, "block"), failure(2, TrialStatus.TIMED_OUT, "after 10 min", size=1))
    assert said[1] == "Plain training is not feasible: trial 2, none @1x2: timed out: after 10 min."


def test_a_baseline_that_runs_out_of_memory() -> None:
    said = sentences(failure(0, TrialStatus.OUT_OF_MEMORY, "no room"), trial(1, "mlp"))
    assert "The plain baseline (none @2x1) runs out of memory." in said


def test_recompute_of_everything_that_is_not_feasible_is_named_so() -> None:
    said = sentences(trial(0, "none", 1), trial(1, "block", verification=MISMATCH), trial(2, "mlp"))
    assert "(trial 1, block @2x1, not feasible: it trains another model: grad of h.0.mlp differs)" in " ".join(said)


def test_what_fits_and_trains_another_model_is_named_beside_the_answer() -> None:
    others = [trial(number, action, verification=MISMATCH) for number, action in ((1, "mlp"), (2, "block"))]
    said = sentences(trial(0, "none", 1), *others)
    assert said[0].startswith("Best within 20.0 MiB: trial 0, none @1x2")
    why = "it trains another model: grad of h.0.mlp differs"
    assert f"Trial 1, mlp @2x1, fits and is no answer: {why}; the same goes for trial 2." in said


def test_an_answer_that_was_not_proven_says_so() -> None:
    objective = Objective(memory_cap_bytes=20 * MIB, proof_required=False)
    said = sentences(trial(0, "none", 1, verification=None), objective=objective)
    assert said[0].endswith("(90% of the cap), NOT proven.")


def test_nothing_fits() -> None:
    said = sentences(trial(0), trial(1, "block", 1), cap_bytes=5 * MIB)
    assert said == [
        "No placement is feasible: the least memory measured is 11.0 MiB (trial 1, block @1x2), and the cap is 5.0 "
        "MiB.",
        "Raise memory_cap, allow smaller micro-batches or more actions, or shrink what no placement can drop.",
    ]


def test_what_fits_is_not_proven() -> None:
    said = sentences(trial(0), trial(1, "block", verification=MISMATCH), trial(2, "mlp", verification=UNVERIFIED))
    assert said == [
        "No feasible placement within 20.0 MiB: 2 fit, but none is proven to train the same model.",
        "Trial 1: it trains another model: grad of h.0.mlp differs.",
    ]


def test_a_model_that_minds_division_is_told_to_keep_its_batch_whole() -> None:
    divided = MISMATCH.model_copy(update={"split_verdict": Verdict.MISMATCH})
    said = sentences(trial(0), trial(1, "block", 1, verification=divided))
    assert said[2].startswith("All of them divide the batch.")
    assert "batch.micro_batch_sizes: [2]" in said[2]
    both = sentences(trial(0), trial(1, "block", 1, verification=divided), trial(2, "mlp", verification=MISMATCH))
    assert len(both) == 2


def test_room_is_not_promised_to_help_where_every_division_is_wrong() -> None:
    divided = MISMATCH.model_copy(update={"split_verdict": Verdict.MISMATCH})
    said = sentences(trial(0, verification=divided), trial(1, "block", 1, verification=divided), cap_bytes=5 * MIB)
    assert said[2] == (
        "More room alone will not do: trial 1, as all others: it trains another model: grad of h.0.mlp differs."
    )
    assert len(sentences(trial(0), trial(1, "block", 1, verification=divided), cap_bytes=5 * MIB)) == 2


def test_a_division_over_ranks_alone_is_not_told_to_keep_its_batch_whole() -> None:
    divided = MISMATCH.model_copy(update={"split_verdict": Verdict.MISMATCH})
    assert len(sentences(trial(0), trial(1, "block", verification=divided))) == 2


def test_everything_runs_out_of_memory() -> None:
    trials = [failure(n, TrialStatus.OUT_OF_MEMORY, "no room", size=n) for n in (1, 2)]
    assert sentences(*trials)[0] == (
        "No placement is feasible: 2 ran out of memory, none could be measured within 20.0 MiB."
    )


def test_a_peak_that_an_out_of_memory_trial_had_reached_is_no_fit() -> None:
    trials = [
        failure(n, TrialStatus.OUT_OF_MEMORY, "no room", size=n).model_copy(update={"peak_memory_bytes": MIB})
        for n in (1, 2)
    ]
    assert sentences(*trials)[0].startswith("No placement is feasible: 2 ran out of memory")


def test_everything_fails() -> None:
    trials = [failure(n, TrialStatus.FAILED, "h.0: shapes differ") for n in range(3)]
    assert sentences(*trials) == ["No trial could be measured; the first one: FAILED, h.0: shapes differ."]


def test_nothing_has_ended_yet() -> None:
    assert sentences() == ["No trial has finished yet."]


def test_the_playoff_overrules_the_trials_own_figures() -> None:
    fast, slow = timed(0, "none", 1, 1.0), timed(1, "block", 2, 0.8)
    playoff = Playoff(trials=(0, 1), step_times_s=((1.0, 1.1, 0.9, 1.0), (0.8, 0.88, 0.72, 0.8)))
    assert results_of(fast, slow).best == 0
    results = results_of(fast, slow, playoff=playoff)
    assert results.best == 1
    assert speed_against(results, results.trials[1], results.trials[0]) == Ratio(1.25, 0.0)
    said = summarize(results).sentences
    assert said[1] == "Against plain training that fits (trial 0, none @1x2): 1.25x +-0.00 its speed."


def test_only_those_of_the_playoff_tie() -> None:
    trials = [timed(0, "none", 1, 1.0), timed(1, "block", 2, 1.0), timed(2, "mlp", 1, 1.0)]
    assert [t.number for t in summarize(results_of(*trials)).ties] == [0, 2]
    playoff = Playoff(trials=(0, 1), step_times_s=((1.0, 1.01, 0.99, 1.0),) * 2)
    assert [t.number for t in summarize(results_of(*trials, playoff=playoff)).ties] == [0]


@pytest.mark.parametrize("error, words", [(0.05, "As fast within the spread"), (0.5, "Too noisy to be told apart")])
def test_a_tie_says_whether_it_is_for_want_of_a_difference_or_of_knowledge(error: float, words: str) -> None:
    plain = trial(0, "none", 1, relative_speed=1.0, relative_speed_spread=error)
    said = sentences(plain, trial(1, "block", 2, relative_speed=1.01, relative_speed_spread=error))
    assert said[-1].startswith(words)


def test_what_the_time_limit_cut_short_is_no_verdict() -> None:
    reason = TimeLimit(60).should_stop(Progress(elapsed_s=61))
    assert reason is not None
    cut_short = {"stop_reason": reason.message}
    (nothing, advice) = sentences(trial(0), **cut_short)[:2]
    assert nothing.startswith("No placement that fits was found in search.time_limit: the least memory measured is")
    assert "--resume" in advice
    plain_wins = sentences(timed(0, "none", 1, 1.0), timed(1, "block", 1, 0.5), **cut_short)
    assert plain_wins[1].startswith("Only one placement with recompute could be measured in search.time_limit")


def test_many_ties_are_counted() -> None:
    trials = [timed(n, "block", 2, 1.0) for n in range(8)]
    assert "As fast within the spread: trial 1, 2, 3, 4, 5 and 2 more; of those" in sentences(*trials)[-1]


@pytest.mark.parametrize("slowest_s, is_said", [(1.05, False), (1.3, True)])
def test_a_machine_that_changed_its_speed_is_mentioned(slowest_s: float, is_said: bool) -> None:
    said = sentences(trial(0, reference_step_time_s=1.0), trial(1, "mlp", reference_step_time_s=slowest_s))
    found = [sentence for sentence in said if sentence.startswith("The machine's speed moved by a factor of 1.30")]
    assert len(found) == is_said


def test_plain_trials_are_compared_in_one_unit() -> None:
    """Where one of them has no relative speed, samples per second count for both."""
    slow = trial(0, "none", 1, relative_speed=2.0, samples_per_second=1.0)
    fast = trial(1, "none", 2, relative_speed=None, samples_per_second=1.5)
    summary = summarize(results_of(slow, fast, trial(2, "block"), cap_bytes=30 * MIB))
    assert summary.best_plain is not None
    assert summary.best_plain.number == 1


def test_recompute_of_everything_takes_the_feasible_one_first() -> None:
    fast, slow = trial(1, "block", 2), trial(2, "block", 1)
    summary = summarize(results_of(trial(0, "none", 1), fast, slow, cap_bytes=18 * MIB))
    assert summary.recompute_all is not None
    assert summary.recompute_all.number == 1
    too_large = fast.model_copy(update={"peak_memory_bytes": 19 * MIB})
    summary = summarize(results_of(trial(0, "none", 1), too_large, slow, cap_bytes=18 * MIB))
    assert summary.recompute_all is not None
    assert summary.recompute_all.number == 2


def test_a_model_without_blocks_has_nothing_to_recompute() -> None:
    policy = RecomputePolicy(BatchShape(2, 1, 1, 2))
    summary = summarize(results_of(trial(0, policy=policy), cap_bytes=30 * MIB, baseline_key=policy.key))
    assert summary.recompute_all is None
    assert summary.sentences[1].startswith("Only plain training was measured")
    without_blocks = INSPECTION.model_copy(update={"shape": replace(INSPECTION.shape, block_lists=())})
    results = results_of(
        trial(0, policy=policy), cap_bytes=30 * MIB, baseline_key=policy.key, inspection=without_blocks
    )
    assert summarize(results).sentences[1].startswith("No list of blocks was found")


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"tokens_per_second": 5123.4}, "5,123 tokens/s (+-2.0%)"),
        ({"tokens_per_second": None, "samples_per_second": 12.5}, "12.5 samples/s (+-2.0%)"),
        ({"relative_speed_spread": None, "step_time_spread_s": None, "tokens_per_second": 10.0}, "10 tokens/s"),
        ({"relative_speed": None, "step_time_s": 2.0, "step_time_spread_s": 0.1}, "32 tokens/s (+-5.0%)"),
        ({"tokens_per_second": None, "samples_per_second": None}, "not measured"),
    ],
)
def test_throughput_for_people(changes: dict[str, Any], text: str) -> None:
    measured = {"relative_speed": 1.0, "relative_speed_spread": 0.02, "step_time_s": 1.0, "step_time_spread_s": 0.5}
    (record,) = results_of(trial(0, **{**measured, **changes})).trials
    assert throughput_text(record) == text


def test_a_ratio_shows_its_spread_where_it_is_known() -> None:
    assert (ratio_text(Ratio(1.234, 0.0199)), ratio_text(Ratio(0.5, None))) == ("1.23x +-0.02", "0.50x")


def test_no_spread_is_made_up() -> None:
    (record,) = results_of(failure(0, TrialStatus.FAILED, "no")).trials
    assert spread_ratio(record) is None
    assert speed_against(results_of(trial(0)), results_of(trial(0)).trials[0], None) is None


def predicted(peak_ratio: float, time_s: float | None = None) -> Prediction:
    """Of the plain trial, which has 26 MiB and takes 1 s beside a reference of 1.5 s."""
    time = None if time_s is None else time_s / 1.5
    return Prediction(peak_memory_bytes=round(26 * MIB * peak_ratio), time=time, time_deviation=0.02)


def test_how_wrong_predictions_were_is_said_last() -> None:
    trials = [trial(0, prediction=predicted(1.01)), trial(1, prediction=predicted(1.02, 0.98))]
    assert sentences(*trials, trial(2, prediction=predicted(0.97, 1.10)))[-1] == (
        "Predicted beside measured: peaks off by 2.00% in the median, 3.00% at most (3 trials); step times off by "
        "6.00% in the median, 10.00% at most (2 trials), 1 of 2 within the 90 % interval."
    )


def test_before_any_time_was_predicted_only_peaks_are_judged() -> None:
    said = sentences(trial(0, prediction=predicted(1.0)))
    assert said[-1] == "Predicted beside measured: peaks off by 0.00% in the median, 0.00% at most (1 trial)."


def test_a_study_that_predicts_nothing_says_nothing_of_predictions() -> None:
    assert "redict" not in " ".join(sentences(trial(0), trial(1, "block")))

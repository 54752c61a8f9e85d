"""What a study found, in the few sentences that a person wants first. Data and words only; drawing is elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from runners.trial import TrialStatus, Verdict
from tuner.communication_text import communication_text
from tuner.memory_size import format_bytes
from tuner.objective import ranking_speeds
from tuner.pareto import MOST_GIVEN_UP, compare
from tuner.prediction_errors import ErrorFigures, PredictionErrors, prediction_errors
from tuner.results import LOST_STATUSES, StudyResults, TrialRecord
from tuner.speed_ratio import Ratio
from tuner.stage_text import stages_text
from tuner.stopping import was_time_limit

_WHAT_MAKES_ROOM = (
    "Raise memory_cap, allow smaller micro-batches or more actions, or shrink what no placement can drop."
)
_GO_ON = "Others were not tried: go on with --resume and a longer search.time_limit. How low they get says tune check."
#: Largest error of a ratio of speeds, relative to it, with which a tie says that two are as fast.
_TELLING_ERROR = 0.1
#: Placements with recompute that say too little of it, where time has ended the search.
_FEW_PLACEMENTS = 3
#: A machine whose speed moves by less needs no mention.
_NOTABLE_DRIFT = 0.1
#: Versions of a function's code that torch keeps by default (torch._dynamo.config.recompile_limit, torch 2.8 to 2.13).
_COMPILED_VERSIONS = 8


@dataclass(frozen=True)
class StudySummary:
    """The trials that a reader compares, and what to say of them.

    Attributes:
        baseline: No recompute at the largest micro-batch, feasible or not; None where it was not measured.
        best_plain: The fastest feasible trial without recompute; None where plain training does not fit at all.
        recompute_all: Recompute of every block, the fastest feasible one if there is one; None where not measured.
        winner: The best trial; None where nothing is feasible.
        ties: Feasible trials as fast as the winner within the spread.
        prediction_errors: How wrong the predictions were.
        sentences: The answer, most important first.
    """

    baseline: TrialRecord | None
    best_plain: TrialRecord | None
    recompute_all: TrialRecord | None
    winner: TrialRecord | None
    ties: tuple[TrialRecord, ...]
    prediction_errors: PredictionErrors
    sentences: tuple[str, ...]


def summarize(results: StudyResults) -> StudySummary:
    """The answer of a study as it stands."""
    measured = [trial for trial in results.trials if trial.samples_per_second is not None]
    plain = [trial for trial in measured if trial.to_policy().is_plain]
    everything = [trial for trial in measured if trial.to_policy().recomputes_every_block]
    winner = results.best_trial()
    summary = StudySummary(
        baseline=results.baseline,
        best_plain=_fastest(trial for trial in plain if trial.feasible),
        recompute_all=_fastest(trial for trial in everything if trial.feasible) or _fastest(everything),
        winner=winner,
        ties=() if winner is None else tuple(trial for trial in measured if _ties_with(results, winner, trial)),
        prediction_errors=prediction_errors(results.trials),
        sentences=(),
    )
    sentences = _no_answer(results) if winner is None else _answer(results, summary, winner)
    return replace(summary, sentences=(*sentences, *_predictions(summary.prediction_errors)))


def speed_against(results: StudyResults, trial: TrialRecord, other: TrialRecord | None) -> Ratio | None:
    """How many times as fast the trial is, by the playoff where both took part; None where one has no speed."""
    if other is None:
        return None
    if other.number == trial.number and trial.samples_per_second is not None:
        return Ratio(1.0, None)  # Exactly, however unsure its own speed is.
    timed_in_turn = None if results.playoff is None else results.playoff.ratio(trial.number, other.number)
    return timed_in_turn or compare(trial, other)


def throughput_text(trial: TrialRecord) -> str:
    """``5,123 tokens/s`` or, where samples are no sequences, ``12.5 samples/s``; with its spread where known."""
    if trial.tokens_per_second is not None:
        text = f"{trial.tokens_per_second:,.0f} tokens/s"
    elif trial.samples_per_second is not None:
        text = f"{trial.samples_per_second:,.4g} samples/s"
    else:
        return "not measured"
    spread = spread_ratio(trial)
    return text if spread is None else f"{text} (+-{spread:.1%})"


def spread_ratio(trial: TrialRecord) -> float | None:
    """Standard error of the trial's speed over the speed: of the relative speed where there is a reference."""
    if trial.relative_speed is not None and trial.relative_speed_spread is not None:
        return trial.relative_speed_spread / trial.relative_speed
    if trial.step_time_s is not None and trial.step_time_spread_s is not None:
        return trial.step_time_spread_s / trial.step_time_s
    return None


def ratio_text(ratio: Ratio) -> str:
    """``1.23x`` or, with a known spread, ``1.23x +-0.02``."""
    return f"{ratio.value:.2f}x" if ratio.standard_error is None else f"{ratio.value:.2f}x +-{ratio.standard_error:.2f}"


def _answer(results: StudyResults, summary: StudySummary, winner: TrialRecord) -> Iterable[str]:
    cap = results.memory_cap_bytes
    peak = winner.peak_memory_bytes or 0
    proof = winner.verification
    proven = "proven to train the same model" if proof is not None and proof.verdict is Verdict.MATCH else "NOT proven"
    yield (
        f"Best within {format_bytes(cap)}: trial {winner.number}, {winner.policy_summary}: {throughput_text(winner)}, "
        f"peak {format_bytes(peak)} ({peak / cap:.0%} of the cap), {proven}."
    )
    yield from _against_plain(results, summary, winner)
    yield from _against_recompute_all(results, summary, winner)
    yield from _drift(results)
    yield from _recompiles(winner)
    yield from _mismatches(results)
    stages = stages_text(winner)
    if stages is not None:
        yield f"The winner's stages: {stages}."
    if winner.communication is not None:
        degree = winner.data_parallel_degree
        ranks = f"Each of the winner's {degree} ranks" if stages is None else "The stage that sends and receives most"
        yield f"{ranks}: {communication_text(winner.communication)}."
    if summary.ties:
        listed = ", ".join(str(trial.number) for trial in summary.ties[:5])
        more = f" and {len(summary.ties) - 5} more" if len(summary.ties) > 5 else ""
        yield (
            f"{_how_tied(results, winner, summary.ties)}: trial {listed}{more}; of those within {MOST_GIVEN_UP:.0%} of "
            "the fastest, less memory wins, then the simpler policy."
        )


def _how_tied(results: StudyResults, winner: TrialRecord, ties: Sequence[TrialRecord]) -> str:
    """That they are as fast; or, where so little is known of that, that nobody can say."""
    ratios = [ratio for tie in ties if (ratio := speed_against(results, tie, winner)) is not None]
    error = max((ratio.standard_error or 0.0) / ratio.value for ratio in ratios)
    if error <= _TELLING_ERROR:
        return "As fast within the spread"
    return f"Too noisy to be told apart from it (a ratio of speeds is off by +-{error:.0%})"


def _against_plain(results: StudyResults, summary: StudySummary, winner: TrialRecord) -> Iterable[str]:
    plain, baseline = summary.best_plain, summary.baseline
    if winner.to_policy().is_plain:
        yield _why_plain_wins(results)
    elif plain is not None:
        ratio = speed_against(results, winner, plain)
        if ratio is not None and (ratio.is_tie or ratio.value < 1):
            how_fast = "as fast within the spread" if ratio.is_tie else "no slower"
            yield (
                f"No meaningful gain: plain training at micro-batch {plain.micro_batch_size} fits as well and is "
                f"{how_fast} ({ratio_text(ratio)})."
            )
        elif ratio is not None:
            yield (
                f"Against plain training that fits (trial {plain.number}, {plain.policy_summary}): "
                f"{ratio_text(ratio)} its speed."
            )
    else:
        yield from _why_plain_is_no_answer(results)
    if baseline is not None and baseline.number not in (winner.number, plain.number if plain is not None else -1):
        ratio = speed_against(results, winner, baseline)
        if ratio is not None and baseline.peak_memory_bytes:
            share = (winner.peak_memory_bytes or 0) / baseline.peak_memory_bytes
            yield (
                f"Against the plain baseline (trial {baseline.number}, {baseline.policy_summary}, peak "
                f"{format_bytes(baseline.peak_memory_bytes)}{_but_not_feasible(results, baseline)}): "
                f"{ratio_text(ratio)} its speed at {share:.0%} of its memory."
            )
        elif baseline.status is TrialStatus.OUT_OF_MEMORY:
            yield f"The plain baseline ({baseline.policy_summary}) runs out of memory."


def _why_plain_wins(results: StudyResults) -> str:
    tried = [t for t in results.trials if not t.to_policy().is_plain and t.samples_per_second is not None]
    if not results.model.block_lists:
        return "No list of blocks was found, so only micro-batch sizes were compared."
    if not tried:
        return (
            "Only plain training was measured, so this says nothing of recompute; go on with --resume, with a longer "
            "search.time_limit if that ended the search."
        )
    if was_time_limit(results.stop_reason) and len(tried) < _FEW_PLACEMENTS:
        count = "one placement" if len(tried) == 1 else f"{len(tried)} placements"
        return (
            f"Only {count} with recompute could be measured in search.time_limit, so this says little of recompute; go "
            "on with --resume and a longer one."
        )
    none_was = (
        "the one measured placement with recompute was not"
        if len(tried) == 1
        else f"none of the {len(tried)} measured placements with recompute was"
    )
    return f"No recompute is the best answer here: {none_was} faster within the cap."


def _why_plain_is_no_answer(results: StudyResults) -> Iterable[str]:
    tried = [t for t in results.trials if t.to_policy().is_plain and t.status not in LOST_STATUSES]
    others = [t for t in tried if not _is_too_large(results, t)]
    if others:
        why = others[0].infeasible_reason
        yield f"Plain training is not feasible: trial {others[0].number}, {others[0].policy_summary}: {why}."
    elif tried:
        yield _where_plain_does_not_fit(results, tried)


def _where_plain_does_not_fit(results: StudyResults, tried: Sequence[TrialRecord]) -> str:
    sizes = results.search.get("batch", {}).get("micro_batch_sizes")
    smallest = min(trial.micro_batch_size for trial in tried)
    if smallest <= (min(sizes) if isinstance(sizes, list | tuple) else 1):
        return "Plain training does not fit at any micro-batch size."
    return f"Plain training does not fit at micro-batch {smallest}; at smaller ones it was not tried."


def _is_too_large(results: StudyResults, trial: TrialRecord) -> bool:
    over = trial.peak_memory_bytes is not None and trial.peak_memory_bytes > results.memory_cap_bytes
    return over or trial.status is TrialStatus.OUT_OF_MEMORY


def _but_not_feasible(results: StudyResults, trial: TrialRecord) -> str:
    if trial.feasible:
        return ""
    return ", which does not fit" if _is_too_large(results, trial) else f", not feasible: {trial.infeasible_reason}"


def _against_recompute_all(results: StudyResults, summary: StudySummary, winner: TrialRecord) -> Iterable[str]:
    other = summary.recompute_all
    if other is None or other.number == winner.number:
        return
    ratio = speed_against(results, winner, other)
    if ratio is not None:
        yield (
            f"Against recomputing every block (trial {other.number}, {other.policy_summary}"
            f"{_but_not_feasible(results, other)}): {ratio_text(ratio)} its speed."
        )


def _drift(results: StudyResults) -> Iterable[str]:
    """How much the machine's own speed moved between trials, where that is more than a reader would expect."""
    times_s = [t.reference_step_time_s for t in results.trials if t.reference_step_time_s is not None]
    if len(times_s) > 1 and max(times_s) / min(times_s) > 1 + _NOTABLE_DRIFT:
        yield (
            f"The machine's speed moved by a factor of {max(times_s) / min(times_s):.2f} between trials, as the "
            "reference steps beside each show; compare trials by their ratios, which take that out, not by raw "
            "throughput."
        )


def _recompiles(winner: TrialRecord) -> Iterable[str]:
    """What training must allow for, where the compiler has more versions of one function than it keeps by default."""
    recompiles = winner.num_recompiles or 0
    if recompiles >= _COMPILED_VERSIONS:
        yield (
            f"The winner compiled {recompiles} times again, for other shapes or placements. By default torch.compile "
            f"keeps {_COMPILED_VERSIONS} versions of a function and runs plain code from then on without a word: raise "
            "torch._dynamo.config.recompile_limit in training."
        )


def _mismatches(results: StudyResults) -> Iterable[str]:
    """What would fit and perhaps be faster, and why it is no answer all the same."""
    refused = [
        trial
        for trial in results.trials
        if trial.verification is not None
        and trial.verification.verdict is Verdict.MISMATCH
        and not _is_too_large(results, trial)
    ]
    if refused:
        first, *others = refused
        also = f"; the same goes for trial {', '.join(str(trial.number) for trial in others)}" if others else ""
        yield f"Trial {first.number}, {first.policy_summary}, fits and is no answer: {first.infeasible_reason}{also}."


def _predictions(errors: PredictionErrors) -> Iterable[str]:
    if errors.peak is None and errors.time is None:
        return
    parts = [] if errors.peak is None else [f"peaks off by {_off(errors.peak)}"]
    if errors.time is not None:
        inside = f"{errors.time.num_in_interval} of {errors.time.num_trials} within the 90 % interval"
        parts.append(f"step times off by {_off(errors.time)}, {inside}")
    yield f"Predicted beside measured: {'; '.join(parts)}."


def _off(figures: ErrorFigures) -> str:
    trials = f"{figures.num_trials} trial{'' if figures.num_trials == 1 else 's'}"
    return f"{figures.median:.2%} in the median, {figures.largest:.2%} at most ({trials})"


def _no_answer(results: StudyResults) -> Iterable[str]:
    cap = format_bytes(results.memory_cap_bytes)
    if not results.trials:
        yield "No trial has finished yet."
        return
    measured = [trial for trial in results.trials if trial.status is TrialStatus.COMPLETED]
    fitting = [trial for trial in measured if not _is_too_large(results, trial)]
    num_out_of_memory = sum(trial.status is TrialStatus.OUT_OF_MEMORY for trial in results.trials)
    if fitting:
        yield f"No feasible placement within {cap}: {len(fitting)} fit, but none is proven to train the same model."
        yield f"Trial {fitting[0].number}: {fitting[0].infeasible_reason}."
        if all(_divides_wrongly(trial) and trial.gradient_accumulation_steps > 1 for trial in fitting):
            undivided = fitting[0].micro_batch_size * fitting[0].gradient_accumulation_steps
            yield (
                "All of them divide the batch. What keeps it whole was not among them: search that alone with "
                f"batch.micro_batch_sizes: [{undivided}], and raise memory_cap if it does not fit."
            )
    elif measured:
        least = min(measured, key=lambda trial: trial.peak_memory_bytes or 0)
        is_early = was_time_limit(results.stop_reason)
        verdict = "No placement that fits was found in search.time_limit" if is_early else "No placement is feasible"
        yield (
            f"{verdict}: the least memory measured is {format_bytes(least.peak_memory_bytes or 0)} "
            f"(trial {least.number}, {least.policy_summary}), and the cap is {cap}."
        )
        yield _GO_ON if is_early else _WHAT_MAKES_ROOM
        if all(_divides_wrongly(trial) for trial in measured):
            yield f"More room alone will not do: trial {least.number}, as all others: {least.infeasible_reason}."
    elif num_out_of_memory:
        yield f"No placement is feasible: {num_out_of_memory} ran out of memory, none could be measured within {cap}."
        yield _WHAT_MAKES_ROOM
    else:
        first = results.trials[0]
        yield f"No trial could be measured; the first one: {first.status.value}, {first.reason}."


def _divides_wrongly(trial: TrialRecord) -> bool:
    return trial.verification is not None and trial.verification.split_verdict is Verdict.MISMATCH


def _ties_with(results: StudyResults, winner: TrialRecord, trial: TrialRecord) -> bool:
    if results.playoff is not None and trial.number not in results.playoff.trials:
        return False
    ratio = speed_against(results, trial, winner)
    return trial.feasible and trial.number != winner.number and ratio is not None and ratio.is_tie


def _fastest(trials: Iterable[TrialRecord]) -> TrialRecord | None:
    candidates = list(trials)
    ranked = zip(candidates, ranking_speeds(candidates), strict=True)
    return max(ranked, key=lambda pair: 0.0 if pair[1] is None else pair[1].value, default=(None, None))[0]

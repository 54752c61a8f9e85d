"""How much faster a trial of one study is than a trial of another one."""

from __future__ import annotations

from tuner.comparison.records import Basis, Fact, SpeedRatio
from tuner.comparison.setup_facts import is_same_machine, is_same_work, search_value
from tuner.pareto import compare
from tuner.results import StudyResults, TrialRecord


class SpeedBetween:
    """Compares speeds of trials across two studies.

    Where both interleaved the same reference steps on the same device, speeds relative to those: a machine that was
    slower in one of the two sessions then plays no part.
    """

    def __init__(self, a: StudyResults, b: StudyResults, facts: tuple[Fact, ...]) -> None:
        alike = is_same_work(facts) and is_same_machine(facts)
        sizes = _reference_size(a), _reference_size(b)
        self.has_same_reference = alike and sizes[0] is not None and sizes[0] == sizes[1]

    def ratio(self, a: TrialRecord, b: TrialRecord) -> SpeedRatio | None:
        """Speed of a trial of study B over that of a trial of study A; None where one has none."""
        is_relative = self.has_same_reference and a.relative_speed is not None and b.relative_speed is not None
        basis: Basis = "relative_speed" if is_relative else "throughput"
        ratio = compare(b, a) if is_relative else compare(_without_reference(b), _without_reference(a))
        if ratio is None:
            return None
        tokens = _tokens_per_sample(b) / _tokens_per_sample(a) if not is_relative and _have_tokens(a, b) else 1.0
        error = None if ratio.standard_error is None else ratio.standard_error * tokens
        return SpeedRatio(value=ratio.value * tokens, standard_error=error, basis=basis)


def _without_reference(trial: TrialRecord) -> TrialRecord:
    return trial.model_copy(update={"relative_speed": None})


def _have_tokens(a: TrialRecord, b: TrialRecord) -> bool:
    return a.tokens_per_second is not None and b.tokens_per_second is not None


def _tokens_per_sample(trial: TrialRecord) -> float:
    return (trial.tokens_per_second or 0.0) / (trial.samples_per_second or 1.0)


def _reference_size(results: StudyResults) -> int | None:
    """Micro-batch of the reference steps: the smallest that may be tried; None where that is not known."""
    sizes = search_value(results, "batch", "micro_batch_sizes")
    if sizes == "auto":
        return 1
    return min(sizes) if isinstance(sizes, list) and sizes else None

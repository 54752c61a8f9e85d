"""From two studies to their comparison, or to why there is none."""

from __future__ import annotations

from pathlib import Path

from tuner.comparison.explanation import Likeness, explain
from tuner.comparison.placements import block_differences
from tuner.comparison.records import Comparison, Side
from tuner.comparison.setup_facts import cautions, differences, is_same_machine, is_same_work
from tuner.comparison.shared_policies import shared_policies
from tuner.comparison.speed_between import SpeedBetween
from tuner.comparison.winner_figures import Winner, winner_figures
from tuner.results import StudyResults
from tuner.user_error import UserError


class NotComparableError(UserError):
    """The two studies have nothing to compare; the message is one line for the user."""


def compare_studies(a: tuple[Path, StudyResults], b: tuple[Path, StudyResults]) -> Comparison:
    """Both studies side by side.

    Args:
        a: Folder and results of the first one.

    Raises:
        NotComparableError: One of them has no best trial, or their global batches differ.
    """
    (folder_a, results_a), (folder_b, results_b) = a, b
    names = [results_a.study, results_b.study]
    if names[0] == names[1]:
        names = [f"{name} ({folder})" for name, folder in zip(names, (folder_a, folder_b), strict=True)]
    winner_a, winner_b = _winner("first", names[0], results_a), _winner("second", names[1], results_b)
    sizes = [winner.trial.global_batch_size for winner in (winner_a, winner_b)]
    if sizes[0] != sizes[1]:
        raise NotComparableError(
            f"STUDY {names[0]} has a global batch of {sizes[0]} samples and STUDY {names[1]} one of "
            f"{sizes[1]}; only studies of one global batch train alike, so name two with the same "
            "batch.global_batch_size"
        )
    facts = differences(results_a, results_b)
    speeds = SpeedBetween(results_a, results_b, facts)
    ratio = speeds.ratio(winner_a.trial, winner_b.trial)
    shared = shared_policies(results_a, results_b, speeds)
    is_same = results_a == results_b
    alike = Likeness(is_same_work(facts), is_same_machine(facts), speeds.has_same_reference)
    return Comparison(
        a=_side(folder_a, winner_a),
        b=_side(folder_b, winner_b),
        global_batch_size=sizes[0],
        same=is_same,
        cautions=tuple(cautions(results_a, results_b, facts)),
        summary=(
            (f"A and B are the same study, {results_a.study}: every figure is equal.",)
            if is_same
            else explain(winner_a, winner_b, ratio, shared, alike)
        ),
        speed_ratio=ratio,
        differences=facts,
        figures=winner_figures(winner_a, winner_b),
        blocks=block_differences(results_a, winner_a.policy, results_b, winner_b.policy),
        measured_in_both=shared,
    )


def _winner(which: str, name: str, results: StudyResults) -> Winner:
    best = results.best_trial()
    if best is None:
        why = f", {results.stop_reason}" if results.stop_reason else ""
        raise NotComparableError(
            f"STUDY {name} (the {which}) has no best trial ({results.status}{why}); winners are compared, so "
            "name a study with a feasible trial, or give this one a higher memory_cap or more trials and run it again"
        )
    return Winner(results, best, best.to_policy())


def _side(folder: Path, winner: Winner) -> Side:
    return Side(
        study=winner.results.study,
        folder=str(folder),
        status=winner.results.status,
        best=winner.trial.number,
        policy=winner.trial.policy_summary,
        policy_key=winner.trial.policy_key,
    )

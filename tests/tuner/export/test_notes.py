from __future__ import annotations

from simulation import SEARCH, policy, results_of, trial

from tuner.export.context import context_of
from tuner.export.header import header_lines
from tuner.export.registry import EXPORTERS
from tuner.export.versions import choose_version
from tuner.results import StudyResults


def header(results: StudyResults) -> str:
    exporter = EXPORTERS["huggingface"]
    context = context_of(results, choose_version(exporter, None))
    return "\n".join(header_lines(exporter, results, results.trials[0], context))


def test_a_file_says_that_its_trial_ran_in_a_pipeline() -> None:
    staged = results_of(trial(0), search={**SEARCH, "runner": {"strategy": "pipeline", "pipeline_stages": 2}})
    assert "- measured in a pipeline of 2 stages with 1F1B: cut the model alike in training" in header(staged)
    assert "pipeline" not in header(results_of(trial(0), baseline_key=policy().key))

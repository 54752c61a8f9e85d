"""Runs a self-check in a process of its own, so that the command needs neither torch nor the stack."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pydantic import ValidationError

from tuner import assemble
from tuner.config import SearchConfig
from tuner.export.base import ExportContext, Exporter, ExportError
from tuner.results import StudyResults, TrialRecord
from tuner.selfcheck.records import SelfCheckReport, SelfCheckSpec

#: Names of modules that are listed of those that differ.
_MOST_NAMED = 5
_ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", "TOKENIZERS_PARALLELISM": "false"}


def self_check(
    exporter: Exporter, study: StudyResults, trial: TrialRecord, context: ExportContext, text: str
) -> SelfCheckReport:
    """What the installed stack recomputes under the exported text.

    Raises:
        ExportError: The study's model cannot be built from here, or the check itself broke off.
    """
    try:
        config = SearchConfig.model_validate(study.search, context={"base_dir": Path.cwd()})
    except ValidationError as error:
        first = error.errors()[0]
        raise ExportError(
            f"--check: study {study.study} names {'.'.join(map(str, first['loc']))}, which cannot be used from "
            f"{Path.cwd()} ({first['msg']}); run it in the folder of the search file"
        ) from error
    spec = SelfCheckSpec(
        workload=assemble.workload_spec(config).model_copy(update={"device": "cpu"}),
        policy=trial.policy,
        target=exporter.name,
        version=context.version.name,
        through_python=context.through_python,
        text=text,
    )
    ended = subprocess.run(
        [sys.executable, "-m", "tuner.selfcheck.in_process"],
        input=spec.model_dump_json(),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **_ENVIRONMENT},
    )
    if ended.returncode:
        last = ended.stderr.strip().splitlines()[-1:] or ["no message"]
        raise ExportError(f"--check broke off in {exporter.name}'s own code: {last[0]}")
    return SelfCheckReport.model_validate_json(ended.stdout.splitlines()[-1])


def describe_report(report: SelfCheckReport) -> list[str]:
    """The report in sentences, one per line."""
    if report.refusal is not None:
        return [f"check: not done, since {report.refusal}"]
    batch = ", ".join(f"{name} {value}" for name, value in report.batch.items())
    lines = [f"check: {report.stack} read the file; batch: {batch}"]
    if report.agrees:
        found = f"the same {report.num_recomputed} modules as" if report.num_recomputed else "nothing, as does"
        return [*lines, f"check: it recomputes {found} the policy"]
    for names, who in (
        (report.only_policy, "the policy, not the stack"),
        (report.only_stack, "the stack, not the policy"),
    ):
        if names:
            more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            lines.append(f"check: DIFFERENT, recomputed by {who}: {', '.join(names[:_MOST_NAMED])}{more}")
    return lines

"""Names in a results.json may come from anyone: none becomes a key, a command or a line of an exported config."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from built_results import build_results
from exported_studies import MIB, measured, policy

from runners.trial import ModelInspection
from search_spaces.model_shape import BlockList, ModelShape
from search_spaces.policy import BlockListPlacement, RecomputePolicy
from tuner.export.base import Exporter, ExportError, StackVersion
from tuner.export.context import context_of
from tuner.export.export_trial import export_trial
from tuner.export.registry import EXPORTERS
from tuner.objective import Objective
from tuner.results import StudyResults

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOSTILE = "x\nevil: 1\n\"'`touch hit`$(touch hit);touch hit\n}])\x1b[2J"
VERSIONS = [(exporter, version) for exporter in EXPORTERS.values() for version in exporter.versions]


def study_named(name: str) -> StudyResults:
    """Several kinds of placement in a model all of whose names are this one."""
    units = (("attention", f"{name}a"), ("mlp", f"{name}b"))
    placed = [(column, preserve) for column in ("none", "block", "mlp", "attn+mlp") for preserve in (True, False)]
    policies = [named(policy(column, preserve_rng_state=preserve), name, units) for column, preserve in placed]
    shape = ModelShape(1000, (BlockList(name, name, 12, units),))
    return build_results(
        study=name,
        stop_reason=name,
        search={"model": {"factory": name, "dtype": name}},
        inspection=ModelInspection(shape=shape, model_class=name, tokens_per_sample=128),
        environment={"python": name, "torch": name},
        results=[measured(n, each).model_copy(update={"device": name}) for n, each in enumerate(policies)],
        baseline_key=policies[0].key,
        objective=Objective(memory_cap_bytes=200 * MIB),
    )


def named(of: RecomputePolicy, name: str, units: tuple[tuple[str, str], ...]) -> RecomputePolicy:
    (placement,) = of.placement
    return RecomputePolicy(
        of.batch, (BlockListPlacement(name, 12, units, placement.regions),), of.preserve_rng_state
    ).canonical()


def exports(study: StudyResults, exporter: Exporter, version: StackVersion) -> list[str]:
    """Of every trial that the stack can say."""
    texts = []
    for trial in study.trials:
        for through_python in (False, True):
            context = context_of(study, version, through_python=through_python)
            try:
                texts.append(export_trial(exporter, study, trial, context))
            except ExportError:
                continue
    return texts


def keys(text: str) -> Any:
    """What a config sets, without the values; of a launch script the number of its arguments."""
    if text.startswith("{"):
        return _keys(json.loads(text))
    if "=(\n" in text:
        script = f"set -e\n{text}\ndeclare -p $(compgen -v | grep _ARGS$)"
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.count("[")
    if "\ndef " in text:
        return [type(node).__name__ for node in ast.walk(ast.parse(text))]
    try:
        return _keys(tomllib.loads(text))
    except tomllib.TOMLDecodeError:
        return _keys(yaml.safe_load(text))


def _keys(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _keys(value) for key, value in data.items()}
    return len(data) if isinstance(data, list) else None


@pytest.mark.parametrize("exporter, version", VERSIONS, ids=lambda value: value.name)
def test_a_hostile_name_sets_no_key_and_runs_nothing(
    exporter: Exporter, version: StackVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    harmless, hostile = (exports(study_named(name), exporter, version) for name in ("h", HOSTILE))
    assert len(hostile) == len(harmless)
    for plain, text in zip(harmless, hostile, strict=True):
        assert str(keys(text)).replace(repr(HOSTILE)[1:-1], "h") == str(keys(plain))
        assert "\x1b" not in text
    assert list(tmp_path.iterdir()) == []

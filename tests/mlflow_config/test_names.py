from __future__ import annotations

from mlflow_config import names
from mlflow_config.entries import legal_name
from runners.trial import TrialResult, Verification

_VALUES = {key: value for key, value in vars(names).items() if key.isupper()}


def test_every_name_is_legal_in_mlflow() -> None:
    assert {value for value in _VALUES.values() if legal_name(value) != value} == set()


def test_every_name_is_written_once() -> None:
    assert len(set(_VALUES.values())) == len(_VALUES)


def test_every_number_of_a_trial_has_its_own_name() -> None:
    numbers = [
        name for name, field in TrialResult.model_fields.items() if field.annotation in (int | None, float | None)
    ]
    proof = [
        f"verification.{name}"
        for name, field in Verification.model_fields.items()
        if field.annotation in (int | None, float | None)
    ]
    expected = {*numbers, *proof} - {"worker_pid", "peak_rank"}  # which process and which rank measure nothing
    assert expected - set(_VALUES.values()) == set()


def test_placement_param_names_the_block_list() -> None:
    assert names.placement_param("transformer.h") == "placement.transformer.h"

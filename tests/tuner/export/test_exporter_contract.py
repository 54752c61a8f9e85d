"""What every exporter must do, for every version of its stack: say a policy exactly, or refuse it with a way out.

A new exporter is one entry in ``MATRIX`` for each of its versions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from exported_studies import MIB, REGIONS, context, measured, policy, record, study_of

from search_spaces.policy import RecomputePolicy
from tuner.export.base import ExportError
from tuner.export.check import check
from tuner.export.context import context_of
from tuner.export.export_trial import export_trial
from tuner.export.header import JSON_KEY
from tuner.export.registry import EXPORTERS
from tuner.export.versions import choose_version

COLUMNS = tuple(REGIONS)

#: By target and version: Y exported, N refused, P refused but for --python.
#: The columns before those two are asked with the RNG handling that the version can say.
MATRIX: dict[tuple[str, str], str] = {
    #                        none block <n %k0 %k-1 {S} attn mlp a+m mix seg on off
    ("policy", "1"): "         Y Y Y Y Y Y Y Y Y Y Y Y Y",
    ("huggingface", "5.23"): " Y Y P Y P P P P P P P Y Y",
    ("huggingface", "5.17"): " Y Y P Y P P P P P P P Y Y",
    ("huggingface", "5.16"): " Y Y P Y P P P P P P P Y Y",
    ("huggingface", "5.0"): "  Y Y P P P P P P P P P Y Y",
    ("huggingface", "4.57"): " Y Y P P P P P P P P P Y Y",
    ("accelerate", "1.15"): "  Y Y P P P P P P P P P P Y",
    ("accelerate", "1.14"): "  Y P P P P P P P P P P P P",
    ("accelerate", "fsdp1"): " Y Y P P P P P P P P P Y P",
    ("axolotl", "0.19"): "     Y Y N Y N N N N N N N Y Y",
    ("deepspeed", "0.19"): "   Y P P P P P P P P P P P P",
    ("lightning", "2.6"): "    Y Y P P P P Y Y Y P P Y P",
    ("llamafactory", "0.9"): " Y Y N N N N N N N N N Y N",
    ("llamafactory", "v1"): "  Y Y N N N N N N N N N Y N",
    ("megatron", "0.16"): "    Y Y Y N N N N Y N N Y Y N",
    ("megatron", "0.20"): "    Y Y Y N N N N Y N N Y Y N",
    ("megatron", "0.16-yaml"): "Y Y Y N N N N Y N N Y Y N",
    ("megatron", "0.20-yaml"): "Y Y Y N N N N Y N N Y Y N",
    ("megatron", "bridge"): "  Y Y Y N N N N Y N N Y Y N",
    ("mindspeed", "megatron"): "Y Y Y N N N N Y N N Y Y N",
    ("mindspeed", "llm-fsdp2"): "Y Y Y Y Y Y Y Y Y Y N Y N",
    ("mindspeed", "mm-fsdp2"): "Y Y Y Y Y Y N N N N N Y N",
    ("mindspeed", "mm-fsdp2-units"): "Y Y Y Y Y Y Y Y Y Y N Y N",
    ("primus", "megatron"): "  Y Y Y Y Y Y N Y N N Y Y N",
    ("torchtitan", "0.3"): "   Y Y P P P P P P P P N Y Y",
    ("torchtitan", "0.2.2"): " Y Y N N Y N N N N N N Y Y",
    ("torchtitan", "0.2.0"): " Y Y N N Y N N N N N N N Y",
    ("torchtitan", "0.1"): "   Y Y N N Y N N N N N N N Y",
    ("torchtitan", "tokens"): "Y Y P P P P P P P P N Y Y",
}


def cells() -> Iterator[tuple[str, str, str, str]]:
    for (target, version), row in MATRIX.items():
        for column, answer in zip(COLUMNS, row.split(), strict=True):
            yield target, version, column, answer


def expected_policy(target: str, version: str, column: str) -> RecomputePolicy:
    row = dict(zip(COLUMNS, MATRIX[target, version].split(), strict=True))
    preserve = column == "rng on" if column.startswith("rng") else row["rng on"] == "Y" or row["rng off"] != "Y"
    return policy(column, preserve_rng_state=preserve)


def test_every_version_of_every_exporter_has_its_row() -> None:
    assert set(MATRIX) == {(name, version.name) for name, e in EXPORTERS.items() for version in e.versions}


@pytest.mark.parametrize(
    "target, version, column, answer", [pytest.param(*cell, id="-".join(cell)) for cell in cells()]
)
def test_the_matrix_cell_by_cell(target: str, version: str, column: str, answer: str) -> None:
    exporter = EXPORTERS[target]
    wanted = expected_policy(target, version, column)
    study = study_of(measured(0, wanted))
    plain = context(exporter, version)
    if answer == "Y":
        assert check(exporter, wanted, plain) is None
        assert export_trial(exporter, study, record(study), plain)
        return
    with pytest.raises(ExportError, match=rf"^--format {target} cannot say trial 0 \(.*"):
        export_trial(exporter, study, record(study), plain)
    through_python = context(exporter, version, through_python=True)
    assert (check(exporter, wanted, through_python) is None) == (answer == "P")
    refusal = check(exporter, wanted, plain)
    assert refusal is not None
    assert (refusal.advice is not None and "--python" in refusal.advice) == (answer == "P")


@pytest.mark.parametrize("target, version", [key for key in MATRIX if key[0] != "policy"])
def test_the_header_says_where_the_file_comes_from(target: str, version: str) -> None:
    exporter = EXPORTERS[target]
    study = study_of(measured(0, policy("none")))
    text = export_trial(exporter, study, record(study), context(exporter, version))
    assert (JSON_KEY in text) == (exporter.header_syntax == "json")
    for part in (
        "study gpt2-12l, trial 0",
        record(study).policy_key,
        "b=2",
        "a=4",
        "w=1",
        "E=8",
        "1,024 tokens/s",
        "100.0 MiB",
        "cap of 200.0 MiB",
        "MATCH",
        "torch 2.13.0",
        choose_version(exporter, version).covers,
    ):
        assert part in text


@pytest.mark.parametrize("target, version", [key for key in MATRIX if MATRIX[key].split()[-3] in "NP"])
def test_a_refusal_names_the_block_what_is_accepted_and_measured_trials_that_can_be_said(
    target: str, version: str
) -> None:
    exporter = EXPORTERS[target]
    study = study_of(
        measured(0, policy("segment")), measured(1, policy("none")), measured(2, policy("none", micro_batch_size=1))
    )
    with pytest.raises(
        ExportError, match=r"transformer\.h: block \d+ is recomputed in one segment .* accepts "
    ) as caught:
        export_trial(exporter, study, record(study), context(exporter, version))
    assert len(caught.value.lines) == 3
    assert caught.value.lines[1].startswith(
        "--trial 1 can be said: none @2x4, 0.99x the speed of trial 0, peak 99.0 MiB"
    )
    assert caught.value.lines[2].startswith("--trial 2 can be said: none @1x8, 0.97x")


def test_a_refusal_under_a_cap_proposes_no_trial_above_it() -> None:
    exporter = EXPORTERS["huggingface"]
    study = study_of(
        measured(0, policy("segment")), measured(1, policy("none")), measured(2, policy("none", micro_batch_size=1))
    )
    about = (exporter, study, record(study), context(exporter, "5.23"))
    with pytest.raises(ExportError, match="cannot say trial 0") as caught:
        export_trial(*about, memory_cap_bytes=98 * MIB)
    assert [line.split(":")[0] for line in caught.value.lines[1:]] == ["--trial 2 can be said"]
    with pytest.raises(ExportError, match="cannot say trial 0") as caught:
        export_trial(*about, memory_cap_bytes=98 * MIB - 1)
    assert caught.value.lines[1:] == (
        "no feasible trial of study gpt2-12l within --memory-cap 102,760,447 bytes (98.0 MiB) can be said by "
        "huggingface; search with placement.target: huggingface",
    )


@pytest.mark.parametrize("target", ["huggingface", "axolotl", "llamafactory"])
@pytest.mark.parametrize("factory, is_said", [("models:build_unet", True), ("huggingface:gpt2", False)])
def test_keys_of_transformers_models_say_where_the_model_came_from_otherwise(
    target: str, factory: str, is_said: bool
) -> None:
    exporter = EXPORTERS[target]
    study = study_of(measured(0, policy("block"))).model_copy(update={"search": {"model": {"factory": factory}}})
    text = export_trial(exporter, study, record(study), context_of(study, exporter.versions[0]))
    note = (
        "- the study's model is GPT2LMHeadModel from models:build_unet: these keys act only on a transformers model "
        "whose blocks are transformer.h (12 x GPT2Block)\n"
    )
    assert (note in text) == is_said
    assert ("act only on a transformers model" in text) == is_said


@pytest.mark.parametrize("target, stack", [("torchtitan", "torchtitan"), ("megatron", "Megatron")])
def test_stacks_with_models_of_their_own_say_which_one_was_measured(target: str, stack: str) -> None:
    exporter = EXPORTERS[target]
    study = study_of(measured(0, policy("block")))
    text = export_trial(exporter, study, record(study), context(exporter, exporter.versions[0].name))
    assert (
        f"# - {stack} trains model definitions of its own; measured was GPT2LMHeadModel from huggingface:gpt2, whose "
        "blocks are transformer.h (12 x GPT2Block)\n"
    ) in text


@pytest.mark.parametrize("target", EXPORTERS)
def test_a_budget_of_the_compiler_is_said_by_policy_yaml_alone(target: str) -> None:
    exporter = EXPORTERS[target]
    plain = context(exporter, exporter.versions[0].name)
    of_policy = replace(policy("none"), compile="model", compile_memory_budget=0.5)
    of_study = replace(plain, compile="model", compile_memory_budget=0.5)
    for refusal in (check(exporter, of_policy, plain), check(exporter, policy("none"), of_study)):
        if target == "policy":
            assert refusal is None
        else:
            assert refusal is not None
            assert (refusal.what, refusal.accepts) == ("compile_memory_budget is 0.5", "no budget of the compiler")
            assert refusal.advice == "export it with --format policy"

"""Recompute by a stack itself would advance running statistics twice, so only our own is exported for such blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from exported_studies import context, policy

from tuner.export.check import check
from tuner.export.registry import EXPORTERS

EVERY_BLOCK = policy("block")
#: Whose training code may apply a policy.
THROUGH_PYTHON = ("accelerate", "deepspeed", "huggingface", "lightning", "torchtitan")


def refused(name: str, *, recomputes: bool = True, through_python: bool = False) -> str | None:
    exporter = EXPORTERS[name]
    of = context(exporter, exporter.versions[0].name, through_python=through_python)
    of = replace(of, block_lists=tuple(replace(each, keeps_statistics=True) for each in of.block_lists))
    refusal = check(exporter, EVERY_BLOCK if recomputes else policy("none"), of)
    return None if refusal is None else f"{refusal.what}; {refusal.advice}"


def test_stacks_that_say_every_block_otherwise_refuse_blocks_that_keep_statistics() -> None:
    contexts = {name: context(each, each.versions[0].name) for name, each in EXPORTERS.items()}
    said_otherwise = [name for name, of in contexts.items() if check(EXPORTERS[name], EVERY_BLOCK, of) is None]
    assert {"huggingface", "megatron", "torchtitan"} <= set(said_otherwise)
    for name in said_otherwise:
        if name != "policy":
            assert "transformer.h: its blocks normalize over the batch" in (refused(name) or ""), name


def test_the_refusal_names_both_ways_out() -> None:
    assert "--python says it in training code; or export it with --format policy" in (refused("huggingface") or "")
    assert "--python" not in (refused("megatron") or "--python")


@pytest.mark.parametrize("name", THROUGH_PYTHON)
def test_our_own_recompute_is_exported(name: str) -> None:
    assert refused(name, through_python=True) is None


def test_megatron_has_no_python_to_leave_it_to() -> None:
    assert "normalize over the batch" in (refused("megatron", through_python=True) or "")


def test_the_policy_file_says_it() -> None:
    assert refused("policy") is None


@pytest.mark.parametrize("name", ["huggingface", "megatron"])
def test_plain_training_is_exported(name: str) -> None:
    assert refused(name, recomputes=False) is None

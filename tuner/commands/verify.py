"""`tune verify`: one policy, measured and proven."""

from __future__ import annotations

import json
from pathlib import Path

from runners.trial import TrialResult, TrialStatus, Verdict, Verification
from search_spaces.model_shape import ModelShape
from search_spaces.policy import PolicyError, RecomputePolicy
from search_spaces.policy_file import load_policy
from tuner import assemble
from tuner.communication_text import communication_text
from tuner.config import SearchConfig
from tuner.console import EXIT_DONE, EXIT_FAILED, EXIT_NOTHING_FEASIBLE, show_text
from tuner.memory_size import format_bytes
from tuner.objective import Objective
from tuner.results_ledger import trial_record
from tuner.search_file.load import load_search_file
from tuner.single_trial import run_single_trial
from tuner.stage_text import stages_text


def verify_command(search_file: Path, policy_file: Path, *, as_json: bool) -> int:
    """Measures and proves the policy under the search file's cap; gives back the exit code."""
    config = load_search_file(search_file)
    # The search file may do without proofs; here the proof is what was asked for.
    measurement = config.measurement.model_copy(update={"verify": True})
    config = config.model_copy(update={"measurement": measurement})
    policy = load_policy(policy_file)
    _refuse_other_batch(config, policy, policy_file)
    _refuse_other_compilation(config, policy, policy_file)
    runner = assemble.ray_runner(config)
    try:
        inspection = runner.inspect(assemble.inspection_spec(config))
        refuse_other_model(inspection.shape, policy, policy_file)
        cap_bytes = assemble.memory_cap_bytes(config, inspection)
        make_spec = assemble.spec_maker(config, inspection, cap_bytes=cap_bytes, reference=None)
        result = run_single_trial(runner, make_spec(0, policy))
    finally:
        runner.close()
    objective = Objective(memory_cap_bytes=cap_bytes, has_reference=False)
    score = objective.score(result)
    if as_json:
        record = trial_record(result, objective, baseline_key="")
        show_text(json.dumps(record.model_dump(mode="json"), indent=1))
    else:
        _show(result, cap_bytes, score.infeasible_reason)
    if score.feasible:
        return EXIT_DONE
    is_proven = result.verification is not None and result.verification.verdict is Verdict.MATCH
    fits_not = result.status is TrialStatus.OUT_OF_MEMORY or is_proven
    return EXIT_NOTHING_FEASIBLE if fits_not else EXIT_FAILED


def _refuse_other_compilation(config: SearchConfig, policy: RecomputePolicy, policy_file: Path) -> None:
    budgets = config.model.searched_budgets or (config.model.fixed_budget,)
    allowed: dict[str, tuple[object, ...]] = {"compile": (config.model.compile,), "compile_memory_budget": budgets}
    for key, values in allowed.items():
        own = getattr(policy, key)
        if own is not None and own not in values:
            raise PolicyError(
                f"{policy_file}: {key} is {own}, but model.{key} of the search file is "
                f"{', '.join('null' if value is None else str(value) for value in values)}; a policy is measured as it "
                "is compiled, so the two must be equal"
            )


def _refuse_other_batch(config: SearchConfig, policy: RecomputePolicy, policy_file: Path) -> None:
    if policy.batch.global_batch_size != config.batch.global_batch_size:
        raise PolicyError(
            f"{policy_file}: batch.global_batch_size is {policy.batch.global_batch_size}, but the search file's is "
            f"{config.batch.global_batch_size}; a policy is proven at one global batch, so the two must be equal"
        )
    if policy.batch.data_parallel_degree != config.runner.data_parallel_degree:
        raise PolicyError(
            f"{policy_file}: batch.data_parallel_degree is {policy.batch.data_parallel_degree}, but "
            f"runner.data_parallel_degree is {config.runner.data_parallel_degree}; make the two equal"
        )
    if policy.batch.gradient_accumulation_steps < config.runner.pipeline_stages:
        raise PolicyError(
            f"{policy_file}: batch.gradient_accumulation_steps is {policy.batch.gradient_accumulation_steps}, but "
            f"runner.pipeline_stages is {config.runner.pipeline_stages}, and a step needs a micro-batch for each "
            "stage; raise the first or lower the second"
        )


def refuse_other_model(shape: ModelShape, policy: RecomputePolicy, policy_file: Path) -> None:
    """Refuses a policy that was made for other lists of blocks.

    Raises:
        PolicyError: Says what the policy is for and what the model has.
    """
    lists = {blocks.path: blocks.num_blocks for blocks in shape.block_lists}
    for placement in policy.placement:
        if lists.get(placement.blocks) != placement.num_blocks:
            have = ", ".join(f"{path} ({count})" for path, count in lists.items()) or "none"
            raise PolicyError(
                f"{policy_file}: placement is for {placement.num_blocks} blocks in {placement.blocks}; the model has "
                f"{have}; use the policy with the model it was made for"
            )


def _show(result: TrialResult, cap_bytes: int, infeasible_reason: str | None) -> None:
    show_text(f"policy: {result.policy.summary()}")
    if result.verification is not None:
        _show_proof(result.verification)
    if result.peak_memory_bytes is not None:
        share = result.peak_memory_bytes / cap_bytes
        show_text(f"peak: {format_bytes(result.peak_memory_bytes)}, {share:.0%} of {format_bytes(cap_bytes)}")
    stages = stages_text(result)
    if stages is not None:
        show_text(stages)
    if result.communication is not None:
        rank = "a rank" if stages is None else "the stage that sends and receives most"
        show_text(f"communication of {rank}: {communication_text(result.communication)}")
    if result.step_time_s is not None:
        show_text(
            f"step: {result.step_time_s:.4g} s over {result.num_steps} steps (forward {result.forward_time_s:.4g}, "
            f"backward {result.backward_time_s:.4g}, recompute {_recompute_text(result)}, optimizer "
            f"{result.optimizer_time_s:.4g})"
        )
    if result.compile_time_s is not None:
        show_text(f"compiled: {result.compile_time_s:.1f} s, {result.num_recompiles} recompiles")
    show_text("feasible" if infeasible_reason is None else f"not feasible: {infeasible_reason}")


def _recompute_text(result: TrialResult) -> str:
    time_s = result.recompute_time_s
    return "within compiled code" if time_s is None else f"{time_s:.4g}"


def _show_proof(proof: Verification) -> None:
    reason = f": {proof.reason}" if proof.reason else ""
    steps = None if proof.num_steps is None else f"{proof.num_steps} steps"
    how = ", ".join(part for part in (steps, f"against {proof.reference}" if proof.reference else None) if part)
    show_text(f"proof: {proof.verdict.value}{reason}{f' ({how})' if how else ''}")
    if proof.max_relative_error is not None and proof.tolerance is not None:
        show_text(f"largest relative error: {proof.max_relative_error:.2g}, allowed: {proof.tolerance:.2g}")

"""The check itself, in the process that may load torch and the stack: two models, two steps, two sets of names."""

from __future__ import annotations

import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from runners.apply_policy import apply_policy
from runners.base import WorkloadError
from runners.proof.randomness import seed_everything
from runners.workloads.base import Workload
from runners.workloads.load import load_workload
from search_spaces.policy_file import dump_policy
from search_spaces.policy_reader import policy_from_dict
from tuner.selfcheck.recomputed_modules import leaf_names, recomputed_modules
from tuner.selfcheck.records import SelfCheckReport, SelfCheckSpec
from tuner.selfcheck.stacks.base import CannotCheckError, Exported
from tuner.selfcheck.stacks.registry import STACK_CHECKS


def run_self_check(spec: SelfCheckSpec) -> SelfCheckReport:
    """Compares what runs again in backward under the exported file with what runs again under the policy.

    One sample is enough for that: which modules run again does not depend on the batch.
    """
    check = STACK_CHECKS.get(spec.target)
    if check is None:
        return SelfCheckReport(
            refusal=f"{spec.target} does not run without a device; known are {', '.join(STACK_CHECKS)}"
        )
    try:
        stack = f"{check.package} {metadata.version(check.package)}"
    except metadata.PackageNotFoundError:
        return SelfCheckReport(refusal=f"{check.package} is not installed; install it beside this package")
    try:
        workload = load_workload(spec.workload)
        policy = policy_from_dict(spec.policy)
        expected_model = workload.build_model()
        leaves = leaf_names(expected_model)
        apply_policy(expected_model, policy)
        expected = recomputed_modules(leaves, _Step(workload, expected_model, spec))
        model = workload.build_model()
        leaves = leaf_names(model)
        with tempfile.TemporaryDirectory() as folder:
            suffix = {"deepspeed": ".json", "lightning": ".py"}.get(spec.target, ".yaml")
            exported = Exported(
                Path(folder, f"exported{suffix}"), Path(folder, "policy.yaml"), spec.version, spec.through_python
            )
            exported.file.write_text(spec.text)
            dump_policy(policy, exported.policy_file)
            batch = check.place(model, exported)
        found = recomputed_modules(leaves, _Step(workload, model, spec))
    except (CannotCheckError, WorkloadError) as error:
        return SelfCheckReport(refusal=str(error), stack=stack)
    except ImportError as error:
        # Stacks say so themselves where they do not get along with another package that is installed.
        first_line = str(error).strip().splitlines()[0]
        return SelfCheckReport(refusal=f"{stack} does not start here: {first_line}", stack=stack)
    return SelfCheckReport(
        stack=stack,
        batch=batch,
        num_recomputed=len(expected & found),
        only_policy=[name for name in leaves.values() if name in expected - found],
        only_stack=[name for name in leaves.values() if name in found - expected],
    )


class _Step:
    """Forward of one sample."""

    def __init__(self, workload: Workload, model: nn.Module, spec: SelfCheckSpec) -> None:
        self._workload = workload
        self._model = model.train()
        self._seed = spec.workload.seed

    def __call__(self) -> torch.Tensor:
        seed_everything(self._seed)
        batch: dict[str, Any] = self._workload.make_batch(2)
        return self._workload.loss_of(self._model(**batch))


if __name__ == "__main__":
    # What the stacks print must not mix with the answer.
    answers = sys.stdout
    sys.stdout = sys.stderr
    report = run_self_check(SelfCheckSpec.model_validate_json(sys.stdin.read()))
    answers.write(report.model_dump_json() + "\n")

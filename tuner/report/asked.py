"""What a study was asked to do, as the reader wrote it in search.yaml and as it was understood."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from search_spaces.policy import COMPILE_BLOCKS
from tuner.memory_size import format_bytes
from tuner.results import BlockListRecord, StudyResults


def asked_facts(results: StudyResults) -> list[tuple[str, str]]:
    """Name and value of each thing that was asked, and how the search ended."""
    search = results.search
    facts = [
        ("model", _model(results)),
        ("compiled", _compiled(_section(search, "model"))),
        ("blocks", "; ".join(map(_block_list, results.model.block_lists)) or "none found"),
        ("batch", _batch(_section(search, "batch"))),
        ("memory cap", _cap(results)),
        ("actions", _actions(_section(search, "placement"))),
        ("sampler", _sampler(_section(search, "search"))),
        ("budget", _budget(_section(search, "search"))),
        ("measurement", _measurement(_section(search, "measurement"))),
        ("trials", _trials(results)),
        ("ended", f"{results.status}: {results.stop_reason}" if results.stop_reason else results.status),
    ]
    return [(name, value) for name, value in facts if value]


def _section(search: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = search.get(name)
    return section if isinstance(section, Mapping) else {}


def _model(results: StudyResults) -> str:
    model, asked = results.model, _section(results.search, "model")
    parts = [f"{model.model_class}, {model.num_parameters:,} parameters"]
    if asked.get("factory"):
        parts.append(f"from {asked['factory']}")
    if asked.get("dtype"):
        parts.append(str(asked["dtype"]))
    if asked.get("autocast"):
        parts.append(f"autocast {asked['autocast']}")
    if model.has_own_recompute:
        parts.append("the model itself recomputes some of it, so the baseline is the model as given")
    return "; ".join(parts)


def _compiled(model: Mapping[str, Any]) -> str:
    mode, budget = model.get("compile"), model.get("compile_memory_budget")
    if not mode:
        return ""
    what = "each block by itself" if mode == COMPILE_BLOCKS else "the whole model"
    if budget is None:
        return what
    return f"{what}; {'budgets tried:' if isinstance(budget, list | tuple) else 'within a budget of'} {_listed(budget)}"


def _block_list(blocks: BlockListRecord) -> str:
    units = ", ".join(name if name == path else f"{name} = {path}" for name, path in blocks.units.items())
    return f"{blocks.path}: {blocks.num_blocks} x {blocks.kind}" + (f" (units: {units})" if units else "")


def _batch(batch: Mapping[str, Any]) -> str:
    parts = []
    if batch.get("global_batch_size") is not None:
        parts.append(f"{batch['global_batch_size']} samples per optimizer step")
    sizes = batch.get("micro_batch_sizes")
    if sizes is not None:
        parts.append(
            f"micro-batches of {_listed(sizes)}" if isinstance(sizes, list) else "any micro-batch that divides it"
        )
    length = batch.get("sequence_length")
    if length is not None:
        parts.append(f"sequences of {_listed(length)} tokens")
    return ", ".join(parts)


def _cap(results: StudyResults) -> str:
    written = results.search.get("memory_cap") or format_bytes(results.memory_cap_bytes)
    return f"{written} ({results.memory_cap_bytes:,} bytes)"


def _actions(placement: Mapping[str, Any]) -> str:
    actions = placement.get("actions")
    parts = [_listed(actions)] if actions else []
    if isinstance(placement.get("segment_sizes"), list):
        parts.append(f"segments of {_listed(placement['segment_sizes'])} blocks")
    return "; ".join(parts)


def _sampler(search: Mapping[str, Any]) -> str:
    sampler, seed = search.get("sampler"), search.get("seed")
    if sampler is None:
        return ""
    return str(sampler) if seed is None else f"{sampler}, seed {seed}"


def _budget(search: Mapping[str, Any]) -> str:
    parts = []
    if search.get("num_trials") is not None:
        parts.append(f"{search['num_trials']} trials")
    if search.get("time_limit") is not None:
        parts.append(str(search["time_limit"]))
    return ", ".join(parts)


def _measurement(measurement: Mapping[str, Any]) -> str:
    steps = [measurement.get("min_steps"), measurement.get("max_steps")]
    if any(step is None for step in steps):
        return ""
    spread = measurement.get("relative_spread")
    until = "" if spread is None else f", until the spread is within {float(spread):.1%}"
    proof = "" if measurement.get("verify", True) else "; not proven, since verify is false"
    return f"{steps[0]} to {steps[1]} steps per trial{until}{proof}"


def _trials(results: StudyResults) -> str:
    if not results.trials:
        return ""
    counts = Counter(trial.status.value.lower().replace("_", " ") for trial in results.trials)
    num_feasible = sum(trial.feasible for trial in results.trials)
    listed = ", ".join(f"{count:,} {status}" for status, count in counts.most_common())
    return f"{len(results.trials):,} ({listed}); {num_feasible:,} feasible"


def _listed(values: object) -> str:
    return ", ".join(map(str, _each(values)))


def _each(values: object) -> Iterable[object]:
    return values if isinstance(values, (list, tuple)) else [values]

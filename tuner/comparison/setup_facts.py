"""What two studies asked for, and where they ran: the differences, and which of them weaken a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runners.trial import Verdict
from tuner.comparison.records import Fact
from tuner.results import StudyResults, TrialRecord

#: Keys of the search file that change no figure: names, places, and how long and where was looked.
_NO_MATTER = ("study", "output_dir", "storage", "tracking")
#: What the steps of one reference are the same steps under.
_WORK = ("model.", "batch.sequence_length", "batch.factory", "optimizer.", "runner.data_parallel", "runner.strategy")
_MACHINE = ("environment.device", "environment.num_threads", "environment.torch", "environment.omp_wait_policy")


def differences(a: StudyResults, b: StudyResults) -> tuple[Fact, ...]:
    """What is not the same, in the order of search.yaml, then what was found."""
    facts_a, facts_b = _facts(a), _facts(b)
    return tuple(
        Fact(name=name, a=facts_a.get(name), b=facts_b.get(name))
        for name in dict.fromkeys((*facts_a, *facts_b))
        if facts_a.get(name) != facts_b.get(name)
    )


def is_same_work(facts: tuple[Fact, ...]) -> bool:
    """Whether one policy's step does the same in both studies, wherever it runs."""
    return not any(_begins(fact, _WORK) for fact in facts)


def is_same_machine(facts: tuple[Fact, ...]) -> bool:
    """Whether both ran on devices of the same description, with the same threads and the same torch."""
    return not any(_begins(fact, _MACHINE) for fact in facts)


def cautions(a: StudyResults, b: StudyResults, facts: tuple[Fact, ...]) -> Iterator[str]:
    """What weakens the comparison, one sentence each, the worst first."""
    by_name = {fact.name: fact for fact in facts}
    yield from _about_models(by_name)
    for name, what in _WEAKENING.items():
        fact = by_name.get(name)
        if fact is not None:
            yield f"{name} is {fact_text(fact.a)} in A and {fact_text(fact.b)} in B: {what}"
    optimizer = [fact for fact in facts if fact.name.startswith("optimizer.")]
    if optimizer:
        listed = "; ".join(f"{fact.name} {fact_text(fact.a)} in A and {fact_text(fact.b)} in B" for fact in optimizer)
        yield f"The optimizers differ ({listed}): their states and updates are part of peak and step."
    for side, results in (("A", a), ("B", b)):
        yield from _about_study(side, results)


def _about_models(by_name: Mapping[str, Fact]) -> Iterator[str]:
    parameters = by_name.get("model.num_parameters")
    named = [f for name, f in by_name.items() if name == "model.factory" or name.startswith("model.args")]
    blocks = [f for name, f in by_name.items() if name.startswith("model.block_lists")]
    if parameters is not None:
        yield (
            f"The models differ ({parameters.a:,} parameters in A, {parameters.b:,} in B): times and peaks compare the "
            "models as much as the policies."
        )
    elif named or blocks:
        fact = (named or blocks)[0]
        yield (
            f"The models may differ, with the same number of parameters ({fact.name} is {fact_text(fact.a)} in A and "
            f"{fact_text(fact.b)} in B)."
        )


#: Fact -> what follows where it differs.
_WEAKENING = {
    "batch.sequence_length": "a step has other tokens, so compare tokens per second, not steps.",
    "batch.factory": "the data may differ.",
    "model.dtype": "bytes and speed follow the type.",
    "model.autocast": "bytes and speed follow the type.",
    "model.compile": "compiled and plain execution differ in time and memory.",
    "runner.data_parallel_degree": "the work is divided differently.",
    "runner.strategy": "the work is divided differently.",
    "environment.device_kind": "peaks are counted in another way on each kind of device.",
    "environment.device": "times compare the devices as much as the policies.",
    "environment.num_threads": "times follow the threads.",
    "environment.torch": "kernels may differ in time and memory.",
}


def _about_study(side: str, results: StudyResults) -> Iterator[str]:
    if results.status != "finished":
        why = f" ({results.stop_reason})" if results.stop_reason else ""
        yield f"{side} is {results.status}{why}: a better policy may not have been tried."
    best = results.best_trial()
    if best is not None and not _is_proven(best):
        reason = "" if best.verification is None else f" ({best.verification.reason})"
        yield f"{side}'s best, trial {best.number}, is not proven to train the same model{reason}."


def _is_proven(trial: TrialRecord) -> bool:
    return trial.verification is not None and trial.verification.verdict is Verdict.MATCH


def _begins(fact: Fact, beginnings: tuple[str, ...]) -> bool:
    return fact.name.startswith(beginnings)


def _facts(results: StudyResults) -> dict[str, Any]:
    """Everything that was asked for or found, by dotted name."""
    found: dict[str, Any] = {}
    search = {key: value for key, value in results.search.items() if key not in _NO_MATTER}
    # In bytes, where a share of two devices may differ and two spellings may not.
    search["memory_cap"] = results.memory_cap_bytes
    _flatten(search, "", found)
    model = results.model.model_dump(exclude={"notes", "block_lists"})
    _flatten({**model, "block_lists": _block_lists(results)}, "model", found)
    _flatten(results.environment, "environment", found)
    return found


def _block_lists(results: StudyResults) -> dict[str, Any]:
    return {
        blocks.path: blocks.model_dump(exclude={"path", "segment_refusal", "aliases", "keeps_statistics"})
        for blocks in results.model.block_lists
    }


def _flatten(data: Mapping[str, Any], path: str, found: dict[str, Any]) -> None:
    for key, value in data.items():
        name = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping) and value:
            _flatten(value, name, found)
        else:
            found[name] = value


def search_value(results: StudyResults, section: str, key: str) -> Any:
    """An option of the resolved search file; None where a file of an earlier release lacks it."""
    options = results.search.get(section)
    return options.get(key) if isinstance(options, Mapping) else None


def fact_text(value: Any) -> str:
    """A value of the search file as a person writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(fact_text, value)) or "none"
    return str(value)

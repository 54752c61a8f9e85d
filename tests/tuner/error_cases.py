"""Mistakes of a user, each as a command line and the files that it meets, and what the answer to it must hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exported_studies import measured, policy, study_of
from simulation import MIB, failure, results_of, trial

from runners.trial import TrialStatus
from search_spaces.policy_file import policy_to_yaml

SEARCH = """\
study: mine
model: {factory: model.py:build}
batch: {global_batch_size: 8, sequence_length: 16}
memory_cap: 600MiB
output_dir: runs
"""
POLICY = policy_to_yaml(policy("block"))
Edit = Callable[[Any], object]


@dataclass(frozen=True)
class Mistake:
    """One case.

    Attributes:
        command: Words after ``tune``, run in a folder with the files.
        parts: Where, what was read, what is allowed, what to do: pieces of the answer, with bars between them.
        files: By name, besides those that every case has.
    """

    name: str
    command: str
    parts: str
    files: dict[str, str | bytes] = field(default_factory=dict)


def in_search(name: str, old: str, new: str, parts: str) -> Mistake:
    """The search file with one thing replaced."""
    assert old in SEARCH, old
    return Mistake(name, "run search.yaml", parts, {"search.yaml": SEARCH.replace(old, new, 1)})


def in_policy(name: str, old: str, new: str, parts: str) -> Mistake:
    """The policy file with one thing replaced."""
    assert old in POLICY, (old, POLICY)
    files = {"policy.yaml": POLICY.replace(old, new, 1)}
    return Mistake(name, "timeline search.yaml --policy policy.yaml", parts, files)


def in_results(name: str, path: str, value: object, parts: str) -> Mistake:
    """A study's results.json with one value replaced."""
    data = json.loads(sample_results())
    *parents, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
    place = data
    for parent in parents:
        place = place[parent]
    place[last] = value
    return Mistake(name, "show edited", parts, {"edited/results.json": json.dumps(data)})


def sample_results() -> str:
    """Trials 0 to 3: over the cap, the best, plain and fitting, failed."""
    failed = failure(3, TrialStatus.FAILED, "the model fell over", "mlp", 1)
    return results_of(trial(0), trial(1, "block"), trial(2, "none", 1), failed, cap_bytes=20 * MIB).to_json()


def write_files(mistake: Mistake, folder: Path) -> None:
    """The files of the case, and those that every case has."""
    mixed = study_of(measured(0, policy("mix"))).to_json()
    nothing = results_of(trial(0), cap_bytes=MIB).to_json()
    common: dict[str, str | bytes] = {
        "search.yaml": SEARCH,
        "policy.yaml": POLICY,
        "model.py": "def build():\n    raise AssertionError('nothing is built here')\n",
        "study/results.json": sample_results(),
        "mixed/results.json": mixed,
        "nothing/results.json": nothing,
    }
    for name, content in {**common, **mistake.files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def in_section(name: str, section: str, parts: str) -> Mistake:
    """The search file with one section more, on line 5."""
    return in_search(name, "output_dir", f"{section}\noutput_dir", parts)


def in_model(name: str, entry: str, parts: str) -> Mistake:
    """The search file with one entry more in its model."""
    return in_search(name, "{factory: model.py:build}", f"{{factory: model.py:build, {entry}}}", parts)


_BOMB = "a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]" + "".join(
    f"\n{name}: &{name} [{', '.join([f'*{before}'] * 10)}]" for before, name in ("ab", "bc", "cd", "de", "ef")
)
_FACTORY = "model: {factory: model.py:build}"

IN_SEARCH_FILES = (
    Mistake("none", "run none.yaml", "none.yaml: | No such file | cannot be read | name a file that can"),
    Mistake("a folder", "run study", "study: | it is not a file | cannot be read | name a file that can"),
    Mistake("binary", "run s.yaml", "s.yaml: | NUL bytes | UTF-8 | save it", {"s.yaml": b"\0\xff"}),
    Mistake("empty", "run s.yaml", "s.yaml:1: | is empty | model.factory, batch | are needed", {"s.yaml": ""}),
    Mistake("a list", "run s.yaml", "s.yaml:1: | no mapping | model.factory, batch | are needed", {"s.yaml": "[1]"}),
    Mistake("huge", "run s.yaml", "s.yaml: | larger than | 1048576 bytes | shorten it", {"s.yaml": "#" * 2**21}),
    in_search("no YAML", _FACTORY, "model: {factory: [}", ".yaml:2: | found '}' | node content | check indentation"),
    in_search("a tab", "memory_cap:", "\tmemory_cap:", ".yaml:4: | a tab | only spaces | write spaces instead"),
    in_search(
        "a key twice", "memory_cap", "study: b\nmemory_cap", ".yaml:4: study | twice | lines 1 and 4 | remove one"
    ),
    in_search("no such key", "study", "stduy", ".yaml:1: | stduy is no known key | allowed at the top | mean study?"),
    in_search(
        "a key missing", f"{_FACTORY}\n", "", ".yaml:1: model.factory | is missing | allowed: text such as | add it"
    ),
    in_search(
        "a word", "size: 8", "size: x", ".yaml:3: batch.global_batch_size | is 'x' | allowed: | from 1 to 10000000"
    ),
    in_search("zero", "size: 8", "size: 0", ".yaml:3: batch.global_batch_size | is 0 | allowed: | from 1 to 10000000"),
    in_search("octal", "size: 8", "size: 010", ".yaml:3: batch.global | is '010' | plain decimal digits | write"),
    in_search("no unit", "600MiB", "600", ".yaml:4: memory_cap | is '600' | 600GiB or 600GB | write"),
    in_search(
        "no unit, with an exponent",
        "600MiB",
        "16e9",
        ".yaml:4: memory_cap | is '16e9', a number without a unit | such as 80GiB",
    ),
    in_search("an exponent", "size: 8", "size: 1e3", ".yaml:3: batch.global_batch_size | is 1e3; | from 1 to 10000000"),
    in_search(
        "hexadecimal", "size: 8", "size: 0xfffffff", ".yaml:3: batch.global | is 0xfffffff; | from 1 to 10000000"
    ),
    in_search("a number as name", "study: mine", "study: 1.10", ".yaml:1: study | is 1.10; | put it in quotes if text"),
    in_search("bits", "600MiB", "600Mb", ".yaml:4: memory_cap | is '600Mb', which are bits | GB or GiB | write bytes"),
    in_search("too much", "600MiB", "120%", ".yaml:4: memory_cap | is '120%', more than | allowed: | such as 80GiB"),
    in_search(
        "a tag", "600MiB", "!!python/object:os.system [x]", ".yaml:4: memory_cap | python/object | only text | remove"
    ),
    in_search("no anchor", "600MiB", "*cap", ".yaml:4: | alias 'cap' | no anchor of that name | add one"),
    in_search(
        "many aliases", "output_dir", f"{_BOMB}\noutput_dir", ".yaml: | more than 100000 entries | with | shorten"
    ),
    in_search("deep", "600MiB", "[" * 60, ".yaml:4: | nested deeper | 50 levels | flatten it"),
    in_search("two documents", "output_dir", "---\noutput_dir", ".yaml:5: | second document | one document | keep one"),
    in_search("a path as name", "mine", "../mine", ".yaml:1: study | is '../mine' | allowed: | letters A-Z"),
    in_search(
        "source", "model.py:", "hugginface:", ".yaml:2: model.factory | 'hugginface:build' | allowed: | did you mean"
    ),
    in_search(
        "os:system", "model.py:build", "os:system", ".yaml:2: model.factory | 'os:system' | allowed: | file.py:function"
    ),
    in_search(
        "no file",
        "model.py",
        "net.py",
        ".yaml:2: model.factory | no file net.py | beside the search file | name a file",
    ),
    in_section(
        "sampler", "search: {sampler: tpee}", ".yaml:5: search.sampler | is 'tpee' | allowed: | did you mean tpe?"
    ),
    in_section("time", "search: {time_limit: soon}", ".yaml:5: search.time_limit | is 'soon' | allowed: | such as 90s"),
    in_section("seed", "search: {seed: -1}", ".yaml:5: search.seed | is -1 | allowed: | from 0 to 4294967295"),
    in_section(
        "steps", "measurement: {min_steps: 9, max_steps: 3}", ".yaml:5: measurement.min_steps | is 9 | 3 | lower the"
    ),
    in_section(
        "off", "measurement: {verify: off}", ".yaml:5: measurement.verify | is 'off' | true or false | write false"
    ),
    in_section(
        "actions", "placement: {actions: [atention]}", ".yaml:5: | is 'atention' | allowed: none | did you mean"
    ),
    in_section(
        "units", "placement: {units: {block: x}}", ".yaml:5: placement.units | 'block' | allowed: | but not none"
    ),
    in_section(
        "target", "placement: {target: keras}", ".yaml:5: placement.target | is 'keras' | allowed: policy | or null"
    ),
    in_section(
        "device", "runner: {device: tpu}", ".yaml:5: runner.device | is 'tpu' | allowed: auto, cpu | did you mean npu?"
    ),
    in_section(
        "resources", "runner: {resources_per_trial: {gpu: 1}}", ".yaml:5: runner. | 'gpu' | allowed: | write GPU"
    ),
    in_section(
        "cluster", "runner: {ray_address: local}", ".yaml:5: runner.ray_address | is 'local' | allowed: | leave it out"
    ),
    in_section("storage", "storage: mysql://u:p@h/d", ".yaml:5: storage | mysql://***@h/d | allowed: | leave it out"),
    in_section(
        "tracking", "tracking: {uri: ./mlruns}", ".yaml:5: tracking.uri | './mlruns' | allowed: | write sqlite:"
    ),
    in_section("optimizer", "optimizer: {name: lion}", ".yaml:5: optimizer.name | is 'lion' | allowed: | adadelta"),
    in_search(
        "no divisor",
        "sequence",
        "micro_batch_sizes: [3], sequence",
        ".yaml:3: | is 3 | allowed: 1, 2, 4, 8 | change one",
    ),
)

_CORRECT = "correct the file, or export the policy again"
IN_POLICY_FILES = (
    in_policy("version", "version: 1", "version: 7", f"policy.yaml:1: schema_version | is 7 | version | {_CORRECT}"),
    in_policy("no blocks", "num_blocks: 12", "num_blocks: 0", f".yaml:5: | num_blocks is 0 | at least 1 | {_CORRECT}"),
    in_policy(
        "many blocks", "num_blocks: 12", "num_blocks: 99999", f".yaml:5: | is 99999 | from 1 to 10000 | {_CORRECT}"
    ),
    in_policy("past the end", "last: 11", "last: 12", f".yaml:9: | region 0-12 | from 0 to 11 | {_CORRECT}"),
    in_policy("action", "action: block", "action: blok", f".yaml:9: | 'blok' | known here: | {_CORRECT}"),
    in_policy("entry", "schema_version", "version", f".yaml:1: | entry 'version' | known are | {_CORRECT}"),
    in_policy("batch", "size: 8", "size: 9", f".yaml:2: | global_batch_size is 9 | is 8; the two must be | {_CORRECT}"),
    in_policy(
        "tag", "action: block", "action: !!python/name:os.system x", ".yaml:9: | !!python/name | only text | remove it"
    ),
    Mistake("none", "verify search.yaml --policy no.yaml", "no.yaml: | No such file | cannot be read | name a file"),
    Mistake(
        "no study", "timeline search.yaml --policy no", "--policy | is 'no' | no study in runs | name a policy.yaml"
    ),
    Mistake(
        "model",
        "verify search.yaml --policy policy.yaml",
        "policy.yaml: | 12 blocks in | the model has h (2) | use the",
    ),
)

_RUN_AGAIN = "run the study again"
IN_RESULTS = (
    Mistake("no study", "show nothere", "STUDY | is 'nothere' | (studies there: none) | name one, or its folder"),
    Mistake("a long name", f"show {'x' * 5000}", "STUDY | is 'xxx | results.json | name one, or its folder"),
    Mistake(
        "no JSON", "show e", f"e/results.json | Invalid JSON | this release | {_RUN_AGAIN}", {"e/results.json": "{"}
    ),
    in_results("version", "schema_version", 7, f"(schema_version: | read 7 | should be 1 | {_RUN_AGAIN}"),
    in_results("cap", "memory_cap_bytes", 0, f"(memory_cap_bytes: | read 0 | greater than 0 | {_RUN_AGAIN}"),
    in_results("best", "best", 0, f"results.json | front and best name trial 0 | a feasible trial | {_RUN_AGAIN}"),
    in_results(
        "key", "trials.1.policy_key", "0", f"(trials.1.policy_key: | it is '0' | of the policy is | {_RUN_AGAIN}"
    ),
    in_results(
        "search", "search.batch.global_batch_size", "8", f"search: batch.global | read '8' | integer | {_RUN_AGAIN}"
    ),
    in_results(
        "policy", "trials.1.policy.preserve_rng_state", 3, f"trials.1.policy: | is 3 | true or false | {_RUN_AGAIN}"
    ),
)

_EXPORT = "export study --format policy"
_INTO = "export study --format huggingface --into"
#: Where nobody listens.
_NOBODY = "--address http://127.0.0.1:9"
_CLUSTER = "--address | is http://127.0.0.1:9 | no job server answers | start the cluster with | name the dashboard's"
ON_COMMAND_LINES = (
    Mistake("earlier study", "plan search.yaml --study no", "--study | is 'no' | (studies there: none) | name one"),
    Mistake("no address", "list", "tune list: | Missing option | --address | `tune list --help` says"),
    Mistake("address", "list --address head:8265", "--address | is 'head:8265' | allowed is | http://head.example"),
    Mistake("submit to nobody", f"submit search.yaml {_NOBODY}", _CLUSTER),
    Mistake("list of nobody", f"list {_NOBODY}", _CLUSTER),
    Mistake("status of nobody", f"status mine {_NOBODY}", _CLUSTER),
    Mistake("logs of nobody", f"logs mine {_NOBODY}", _CLUSTER),
    Mistake("stop of nobody", f"stop mine {_NOBODY}", _CLUSTER),
    Mistake(
        "submit a bad file",
        f"submit s.yaml {_NOBODY}",
        "s.yaml:1: | is empty | model.factory, batch | are needed",
        {"s.yaml": ""},
    ),
    Mistake("command", "rnu", "tune: | 'rnu' | Did you mean 'run' | `tune --help` says"),
    Mistake("argument", "run", "tune run: | Missing argument | SEARCH.YAML | `tune run --help` says"),
    Mistake("option", "run a.yaml --resum", "tune run: | --resum | --resume | `tune run --help` says"),
    Mistake(
        "no number", f"{_EXPORT} --trial x", "tune export: --trial | is 'x' | valid integer | `tune export --help`"
    ),
    Mistake("twice", f"{_EXPORT} --trial 1 --trial 2", "tune export: --trial | 2 times | only one | give it once"),
    Mistake("format", "export study --format keras", "--format | is 'keras' | known are policy | name one of these"),
    Mistake("no trial", f"{_EXPORT} --trial 9", "--trial | is 9 | feasible trials are 1, 2 | name one of these"),
    Mistake("failed", f"{_EXPORT} --trial 3", "--trial | the model fell over | is 1 | name one of these"),
    Mistake("too large", f"{_EXPORT} --trial 0", "--trial | 30.0% over the cap | is 1 | name one of these"),
    Mistake(
        "both",
        f"{_EXPORT} --trial 1 --memory-cap 1GiB",
        "--trial | is 1 and --memory-cap is 1GiB | one of the | name one",
    ),
    Mistake("two files", f"{_EXPORT} --into a --output b", "--into | is a and --output is b | one of the | name one"),
    Mistake("dry run", f"{_EXPORT} --dry-run", "--dry-run | not given | goes with --into | name the file"),
    Mistake("no unit", f"{_EXPORT} --memory-cap 40", "--memory-cap | is '40' | 40GiB or 40GB | write"),
    Mistake("a share", f"{_EXPORT} --memory-cap 90%", "--memory-cap | is 90% | bytes such as 40GiB | write bytes"),
    Mistake(
        "a low cap", f"{_EXPORT} --memory-cap 1KiB", "--memory-cap | is 1,024 bytes | needs is 12,582,912 | raise it"
    ),
    Mistake("output", f"{_EXPORT} -o study", "--output | is study | Is a directory | name another file"),
    Mistake("no folder", f"{_EXPORT} -o no/where", "--output | is no/where | No such file | name another file"),
    Mistake(
        "release", "export study --format huggingface --stack-version 9", "--stack-version | '9' | 5.23 | name one"
    ),
    Mistake(
        "no best",
        "export nothing --format policy",
        "study simulated | has no feasible | smaller micro-batches | run it again",
    ),
    Mistake(
        "unsayable", "export mixed --format huggingface", "--format | block 4 recomputes mlp | accepts | name a trial"
    ),
    Mistake("into none", f"{_INTO} no.yaml", "--into | is no.yaml | config or launch script | name a"),
    Mistake("into text", f"{_INTO} a.txt", "--into | is a.txt | end in .yaml | rename it", {"a.txt": "x"}),
    Mistake(
        "into broken",
        f"{_INTO} a.yaml",
        "--into a.yaml:2: | found '<stream | plain YAML | correct it",
        {"a.yaml": "a: [\n"},
    ),
    Mistake(
        "into nothing",
        f"{_EXPORT} --into a.yaml",
        "--into | is a.yaml | a file of its own | export it with",
        {"a.yaml": "a: 1"},
    ),
    Mistake("blocks", "timeline search.yaml --blocks few", "--blocks | is 'few' | a number of blocks | write"),
    Mistake(
        "micro-batch", "timeline search.yaml --micro-batch-size 3", "--micro-batch-size | 3 | divide | name a divisor"
    ),
    Mistake("memory", "plan search.yaml --device-memory 80", "--device-memory | is '80' | 80GiB or 80GB | write"),
    Mistake(
        "share of it", "plan search.yaml --device-memory 80%", "--device-memory | is 80% | such as 80GiB | write bytes"
    ),
    Mistake(
        "shards",
        "plan search.yaml --shard 0",
        "tune plan: --shard | is '0' | greater than or equal to 1 | --help` says",
    ),
    Mistake(
        "no winner",
        "compare study nothing",
        "STUDY simulated (nothing) | no best trial | a feasible trial | name a study",
    ),
    Mistake("other batch", "compare study mixed", "STUDY simulated | 2 samples | one global batch | name two"),
    Mistake(
        "no such store",
        "show study --uri sqlite:///no.db",
        "no.db is no tracking store | no such file | that the study was recorded in | Name the one that search.yaml",
    ),
    Mistake(
        "a store without tables",
        "export study --format policy --uri sqlite:///a.db",
        "a.db is no tracking store | has no table experiments | that the study was recorded in | Name the one",
        {"a.db": b""},
    ),
    Mistake(
        "a store that is no database",
        "compare study study --uri sqlite:///search.yaml",
        "search.yaml is no tracking store | file is not a database | that the study was recorded in | Name the one",
    ),
    Mistake("no store", "ui", "there is no tracking store | mlflow.db | a study creates it | Run a study first"),
    Mistake(
        "a server", "ui --uri http://127.0.0.1:9", "--uri | http://127.0.0.1:9 | a server already | open that address"
    ),
    Mistake("a folder of runs", "ui --uri ./mlruns", "--uri | './mlruns' | is allowed | Write sqlite:"),
)

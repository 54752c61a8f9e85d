from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tuner.config import SearchConfig
from tuner.search_file.schema import allowed_at, json_schema, known_keys, paths_by_name, required_below, words_at

_DATA: dict[str, Any] = {
    "study": "x",
    "model": {"factory": "huggingface:gpt2", "args": {"n_layer": 12}, "autocast": "bfloat16"},
    "batch": {"global_batch_size": 8, "micro_batch_sizes": [1, 2], "sequence_length": 256},
    "memory_cap": "600MiB",
    "placement": {"units": {"attention": "attn", "router": "r"}, "actions": ["none", "attention+router"]},
    "runner": {"resources_per_trial": {"CPU": 2}},
}


def validator() -> jsonschema.Draft202012Validator:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(json.loads(json.dumps(schema)))


def test_the_schema_accepts_what_the_config_accepts() -> None:
    validator().validate(_DATA)
    validator().validate(SearchConfig.model_validate(_DATA).model_dump(mode="json"))


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("model", "dtype", "float23"),
        ("model", "compile", "inductor"),
        ("model", "unknown", 1),
        ("batch", "global_batch_size", 0),
        ("batch", "global_batch_size", "8"),
        ("batch", "micro_batch_sizes", "all"),
        ("batch", "micro_batch_sizes", []),
        ("batch", "sequence_length", []),
        ("batch", "sequence_length", [128, 0]),
        ("placement", "target", "megatrn"),
        ("runner", "data_parallel_degree", 0),
        ("runner", "strategy", "fsdp"),
        ("runner", "reshard_after_forward", "never"),
        ("search", "sampler", "annealing"),
        ("measurement", "relative_spread", 0),
    ],
)
def test_the_schema_refuses_what_is_wrong(section: str, key: str, value: Any) -> None:
    data = {**_DATA, section: {**_DATA.get(section, {}), key: value}}
    assert not validator().is_valid(data)


@pytest.mark.parametrize("missing", ["model", "batch", "memory_cap"])
def test_the_schema_requires_three_options(missing: str) -> None:
    assert json_schema()["required"] == ["model", "batch", "memory_cap"]
    assert not validator().is_valid({key: value for key, value in _DATA.items() if key != missing})


def test_closed_choices_are_enumerated_for_editors() -> None:
    schema = json_schema()["$defs"]
    assert schema["SearchSection"]["properties"]["sampler"]["enum"] == [
        "model_guided",
        "tpe",
        "gp",
        "nsga2",
        "random",
        "grid",
    ]
    assert schema["PlacementSection"]["properties"]["actions"]["items"]["anyOf"][0]["enum"][-1] == "segment"
    assert "title" not in schema["SearchSection"]["properties"]["sampler"]


def test_a_schema_may_be_changed_by_who_got_it() -> None:
    json_schema()["properties"].clear()
    assert "model" in json_schema()["properties"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (("batch", "global_batch_size"), "a whole number from 1 to 10000000"),
        (("batch", "micro_batch_sizes"), "auto or a list, each entry a whole number of at least 1"),
        (("batch", "micro_batch_sizes", 3), "a whole number of at least 1"),
        (
            ("batch", "sequence_length"),
            "a whole number of at least 1 or null or a list, each entry a whole number of at least 1",
        ),
        (("measurement", "relative_spread"), "a number above 0 and below 1"),
        (("measurement", "verify"), "true or false"),
        (("placement", "preserve_rng_state"), "true or false or search"),
        (("placement", "units"), "auto or a mapping, each value text such as attn"),
        (("placement", "units", "mlp"), "text such as attn"),
        (
            ("placement", "target"),
            "policy, huggingface, torchtitan, megatron, mindspeed, deepspeed, lightning, accelerate, axolotl, "
            "llamafactory, primus or null",
        ),
        (("runner", "data_parallel_degree"), "a whole number of at least 1"),
        (("runner", "resources_per_trial", "GPU"), "a number above 0"),
        (("model", "autocast"), "bfloat16, float16 or null"),
        (("model", "args"), "a mapping"),
        (("tracking",), "a mapping with uri, experiment"),
        (("output_dir",), "text"),
        (("nowhere", "at all"), "no entry"),
    ],
)
def test_what_is_allowed_is_said_in_words(path: tuple[str | int, ...], words: str) -> None:
    assert allowed_at(path) == words


def test_keys_and_words_are_known_by_place() -> None:
    assert known_keys(("tracking",)) == ("uri", "experiment")
    assert known_keys(("memory_cap",)) == ()
    paths = paths_by_name()
    assert paths["factory"] == ("model", "factory")
    assert paths["memory_cap"] == ("memory_cap",)
    assert required_below(()) == (("model", "factory"), ("batch", "global_batch_size"), ("memory_cap",))
    assert words_at(("placement", "preserve_rng_state")) == ("true", "false", "search")
    assert words_at(("placement", "units")) == ("auto",)

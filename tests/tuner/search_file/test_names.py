from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.search_file.names import (
    check_module_path,
    check_resources,
    check_study_name,
    check_unit_names,
    check_unit_path,
    default_actions,
    normal_action,
    study_name_from,
)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "a\\b",
        ".hidden",
        "-x",
        "x.",
        "a b",
        "x" * 81,
        "a\n",
        "a\x00",
        "~",
        "$HOME",
        "caf\u00e9",
        "a:b",
    ],
)
def test_a_study_name_cannot_leave_its_folder(name: str) -> None:
    with pytest.raises(ValueError, match=r"^is '.*'; allowed: at most 80 letters A-Z, digits"):
        check_study_name(name)


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("gpt2-12l", "gpt2-12l"),
        ("my search (2)", "my-search-2"),
        (".hidden", "hidden"),
        ("..", "study"),
        ("\u6a21\u578b", "study"),
        ("x" * 300, "x" * 80),
        ("search.yaml", "search.yaml"),
    ],
)
def test_a_file_name_becomes_a_study_name(stem: str, name: str) -> None:
    assert study_name_from(stem) == name


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text(max_size=100))
def test_every_file_name_becomes_a_study_name(stem: str) -> None:
    name = study_name_from(stem)
    assert check_study_name(name) == name


@pytest.mark.parametrize("path", ["", ".", "a.", ".a", "a..b", "a b", "a/b", "a[0]", "h()"])
def test_a_path_of_blocks_is_a_path_of_modules(path: str) -> None:
    with pytest.raises(ValueError, match=r"^is '.*'; allowed: a path below the model such as transformer\.h"):
        check_module_path(path)


@pytest.mark.parametrize("path", ["", "()", "a.()", "a()b", "a(x)", "self attn"])
def test_a_unit_is_a_module_or_a_method(path: str) -> None:
    assert check_unit_path("layer.0.run_mlp()") == "layer.0.run_mlp()"
    with pytest.raises(ValueError, match=r"^is '.*'; allowed: a path below the block such as attn, or a method"):
        check_unit_path(path)


@pytest.mark.parametrize(
    "name", ["none", "block", "segment", "selective", "offload", "a+b", "", "1a", "_a", "a b", "x" * 61]
)
def test_a_unit_has_a_name_of_its_own(name: str) -> None:
    assert check_unit_names({"self-attention_2": "a"}) == {"self-attention_2": "a"}
    with pytest.raises(ValueError, match=r"^names a unit '.*'; allowed: letters, digits, '_' and '-', first a letter"):
        check_unit_names({"mlp": "m", name: "a"})


@pytest.mark.parametrize("action", ["", "+", "mlp+", "+mlp", "mlp+mlp", "block+mlp", "none+segment", "mlp+selective"])
def test_an_action_joins_different_units(action: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"^is '.*'; allowed: none, block, segment, selective, offload, a unit, or different units joined by",
    ):
        normal_action(action)


def test_units_of_an_action_are_in_alphabetical_order() -> None:
    assert normal_action("mlp+attention") == "attention+mlp"
    assert normal_action("segment") == "segment"


def test_default_actions_are_those_that_the_units_can_take() -> None:
    assert default_actions(None) == ("none", "attention", "mlp", "attention+mlp", "block", "segment")
    assert default_actions(["router", "attention"]) == ("none", "router", "attention", "block", "segment")


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"gpu": 1}, r"names 'gpu'; allowed: GPU, NPU, CPU, or a name that .*; write GPU$"),
        ({"Cpu": 1}, r"write CPU$"),
        ({"a b": 1}, r"names 'a b'; allowed"),
        ({"": 1}, r"names ''; allowed"),
        ({"CPU": 1, "GPU": 0.5}, r"asks GPU: 0\.5; allowed: whole devices, since trials that share one distort"),
        ({"NPU": 1.5}, r"asks NPU: 1\.5; allowed: whole devices"),
    ],
)
def test_resources_have_the_clusters_names(resources: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_resources(resources)

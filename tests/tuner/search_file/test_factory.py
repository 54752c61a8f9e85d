from __future__ import annotations

from pathlib import Path

import pytest

from tuner.search_file.factory import check_batch_factory, check_model_factory


@pytest.mark.parametrize(
    "text",
    [
        "huggingface:gpt2",
        "huggingface:./some folder/config dir",
        "huggingface:org/name",
        "torchvision:resnet18",
        "timm:vit_base_patch16_224.augreg_in21k",
        "runners.workloads.gpt:gpt",
        "mymodule:Net.build",
        "vision:build",
        "models/net.py:build",
        "./models/my-net.v2.py:Net",
        "/abs/with space/net.py:build",
        "~/net.py:build",
        "C:/models/net.py:build",
        "m\u00f6dell.py:b\u00e4u",
    ],
)
def test_the_known_forms_are_accepted(text: str) -> None:
    assert check_model_factory(text, base_dir=None) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("huggingface:", r"names nothing after the colon; allowed: huggingface:TYPE_OR_DIR, torchvision:NAME"),
        ("huggingface: gpt2", r"names nothing after the colon"),
        ("timm:a b", r"names nothing after the colon"),
        ("torchvision:a:b", r"names nothing after the colon"),
        ("hugginface:gpt2", r"is 'hugginface:gpt2'; .*did you mean huggingface:gpt2\?"),
        ("HuggingFace:gpt2", r"did you mean huggingface:gpt2\?"),
        ("torch_vision:resnet18", r"did you mean torchvision:resnet18\?"),
        ("tim:vit", r"did you mean timm:vit\?"),
        ("gpt2", r"is 'gpt2'; allowed: huggingface:TYPE_OR_DIR"),
        ("net.py", r"a file without a function; .*write net\.py:FUNCTION"),
        ("net.py:", r"is 'net\.py:'; allowed"),
        (":build", r"is ':build'; allowed"),
        ("pkg/mod:fn", r"is 'pkg/mod:fn'; allowed"),
        ("pkg.mod:fn()", r"allowed"),
        ("pkg..mod:fn", r"allowed"),
        ("net.py:1st", r"allowed"),
        ("a\x00b.py:fn", r"is 'a\\x00b\.py:fn'; allowed"),
        ("", r"is ''; allowed"),
        ("os:system", r"is 'os:system', a function of Python itself, which makes no model; allowed: huggingface:TYPE"),
        ("subprocess:run", r"a function of Python itself"),
        ("builtins:exec", r"a function of Python itself"),
        ("importlib.util:find_spec", r"a function of Python itself"),
    ],
)
def test_other_forms_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_model_factory(text, base_dir=None)


def test_a_module_of_the_users_may_have_a_name_like_a_source(tmp_path: Path) -> None:
    (tmp_path / "tim.py").touch()
    assert check_model_factory("tim:build", base_dir=tmp_path) == "tim:build"
    assert check_model_factory("tim.net:build", base_dir=None) == "tim.net:build"


def test_a_missing_file_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "net.py").touch()
    assert check_model_factory("net.py:build", base_dir=tmp_path) == "net.py:build"
    assert check_batch_factory(f"{tmp_path}/net.py:build", base_dir=Path("elsewhere")) == f"{tmp_path}/net.py:build"
    with pytest.raises(
        ValueError, match=r"is 'nett\.py:build', but there is no file .*nett\.py; .*did you mean net\.py\?"
    ):
        check_model_factory("nett.py:build", base_dir=tmp_path)
    with pytest.raises(ValueError, match=r"there is no file .*name a file beside the search file$"):
        check_batch_factory("nowhere/net.py:build", base_dir=tmp_path)


@pytest.mark.parametrize("place", ["~nobody-of-this-name/net.py", "x" * 300 + "/net.py"])
def test_a_file_that_cannot_be_reached_is_refused(tmp_path: Path, place: str) -> None:
    with pytest.raises(ValueError, match=r"a file that cannot be reached \(.*\); name another one"):
        check_model_factory(f"{place}:build", base_dir=tmp_path)


@pytest.mark.parametrize("text", ["huggingface:gpt2", "torchvision:resnet18", "build", "net.py", "timm:vit:x"])
def test_a_batch_comes_from_a_function(text: str) -> None:
    with pytest.raises(ValueError, match=r"allowed: package\.module:function or path/file\.py:function"):
        check_batch_factory(text, base_dir=None)


def test_a_module_beside_the_search_file_may_have_a_name_of_pythons_own(tmp_path: Path) -> None:
    (tmp_path / "code.py").touch()
    assert check_model_factory("code:build", base_dir=tmp_path) == "code:build"
    with pytest.raises(ValueError, match="a function of Python itself"):
        check_batch_factory("types:build", base_dir=tmp_path)

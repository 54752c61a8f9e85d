from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from runners.base import WorkloadError
from runners.trial import WorkloadSpec
from runners.workloads.base import Workload
from runners.workloads.load import load_workload

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, 1)
        self.frozen = nn.Dropout().eval()

    def forward(self, x):
        return self.layer(x).mean()

def build(width=4, *, depth=1):
    return Net(width)

NUMBER = 3
"""
BATCH = """
import torch

def batch(micro_batch_size):
    return {"x": torch.randn(micro_batch_size, 4)}
"""


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Callable[[str, str], None]]:
    """Writes a file of the user's; what it imports is forgotten afterwards."""
    modules, path = set(sys.modules), list(sys.path)

    def write_file(name: str, text: str) -> None:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))

    yield write_file
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def load(base_dir: Path, factory: str, **options: Any) -> Workload:
    return load_workload(WorkloadSpec(model_factory=factory, base_dir=str(base_dir), **options))


def test_a_file_beside_the_search_file_builds_model_and_batch(write: Callable[..., None], tmp_path: Path) -> None:
    write("net.py", MODEL)
    write("data/loader.py", BATCH)
    workload = load(tmp_path, "net.py:build", batch_factory="data/loader.py:batch", model_args={"width": 4})
    model, batch = workload.build_model(), workload.make_batch(3)
    assert batch["x"].shape == (3, 4)
    workload.loss_of(model(**batch)).backward()


def load_model(write: Callable[..., None], base_dir: Path, factory: str, **args: Any) -> Any:
    write("batches.py", BATCH)
    return load(base_dir, factory, model_args=args, batch_factory="batches.py:batch").build_model()


def test_neighbours_of_the_file_are_importable_and_the_same_module(write: Callable[..., None], tmp_path: Path) -> None:
    write("code/sizes.py", "WIDTH = 5")
    write("code/again.py", "import zoo\nBUILD = zoo.build")
    same = """
        from sizes import WIDTH
        def same():
            import again
            assert again.BUILD is build
            return Net(WIDTH)
    """
    write("code/zoo.py", MODEL + textwrap.dedent(same))
    assert load_model(write, tmp_path, "code/zoo.py:same").layer.in_features == 5


def test_a_file_named_like_an_installed_module_is_still_the_users(write: Callable[..., None], tmp_path: Path) -> None:
    write("numpy.py", MODEL)
    numpy = sys.modules["numpy"]
    assert type(load_model(write, tmp_path, "numpy.py:build")).__name__ == "Net"
    assert sys.modules["numpy"] is numpy


def test_a_module_and_a_method_of_a_class_can_be_named(write: Callable[..., None], tmp_path: Path) -> None:
    zoo = """
        class Zoo:
            @staticmethod
            def make():
                return Net(5)
    """
    write("mynets/__init__.py", "")
    write("mynets/small.py", MODEL + textwrap.dedent(zoo))
    assert load_model(write, tmp_path, "mynets.small:Zoo.make").layer.in_features == 5
    assert load_model(write, tmp_path, "mynets.small:Net", width=6).layer.in_features == 6


def test_modes_are_as_the_factory_left_them(write: Callable[..., None], tmp_path: Path) -> None:
    write("net.py", MODEL)
    model = load_model(write, tmp_path, "net.py:build")
    assert model.training
    assert not model.frozen.training


def test_a_batch_function_may_ask_for_the_sequence_length(write: Callable[..., None], tmp_path: Path) -> None:
    write(
        "seq.py",
        MODEL + "\ndef batch(micro_batch_size, sequence_length):\n"
        "    return {'x': torch.zeros(micro_batch_size, sequence_length)}\n",
    )
    workload = load(tmp_path, "seq.py:build", batch_factory="seq.py:batch", sequence_length=7)
    assert workload.make_batch(2)["x"].shape == (2, 7)
    assert workload.tokens_per_sample == 7


@pytest.mark.parametrize(
    "factory, message",
    [
        ("broken.py:build", r"model.factory is broken.py:build, which failed at \S+broken.py:3: SyntaxError: .+"),
        ("name.py:build", r"which failed at \S+name.py:2: NameError: name 'nn' is not defined"),
        ("imports.py:build", r"failed at \S+imports.py:1: ModuleNotFoundError: No module named 'torhc'"),
        ("leaves.py:build", r"failed at \S+leaves.py:2: SystemExit: 3"),
        ("absent.py:build", r"but there is no file \S+absent.py; did you mean"),
        ("folder/absent.py:build", r"there is no file \S+absent.py; its folder holds no Python file"),
        ("good.py:biuld", r"model.factory is good.py:biuld, but good.py has no biuld; did you mean build\?"),
        ("good.py:NUMBER", r"NUMBER is a int; name a function or a class"),
        ("good.py", r"allowed are path/file.py:function and package.module:function"),
        ("no_such_pkg.mod:build", r"there is no module no_such_pkg in \S+ or among the installed packages"),
        ("pkg.bad:build", r"failed at \S+bad.py:1: ModuleNotFoundError: No module named 'torhc'"),
        ("pkg.absent:build", r"there is no module pkg.absent in"),
    ],
)
def test_a_factory_that_cannot_be_found_or_imported_is_one_line(
    write: Callable[..., None], tmp_path: Path, factory: str, message: str
) -> None:
    write("good.py", MODEL)
    write("broken.py", "import torch\n\ndef build(:\n    pass\n")
    write("name.py", "import torch\nclass Net(nn.Module): pass\n")
    write("imports.py", "import torhc\n")
    write("leaves.py", "import sys\nsys.exit(3)\n")
    write("absente.py", "")
    write("pkg/__init__.py", "")
    write("pkg/bad.py", "import torhc\n")
    with pytest.raises(WorkloadError, match=message) as caught:
        load(tmp_path, factory)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "args, message",
    [
        ({"widht": 4}, r"model.args.widht is set, but args.py:build does not take it; did you mean width\?"),
        ({"layers": 4}, r"model.args.layers is set, but args.py:build does not take it; known: depth, width"),
    ],
)
def test_wrong_arguments_are_answered_with_the_known_ones(
    write: Callable[..., None], tmp_path: Path, args: dict[str, Any], message: str
) -> None:
    write("args.py", MODEL)
    with pytest.raises(WorkloadError, match=message):
        load(tmp_path, "args.py:build", model_args=args)


def test_a_missing_argument_is_named(write: Callable[..., None], tmp_path: Path) -> None:
    write("args.py", MODEL)
    with pytest.raises(WorkloadError, match=r"model.args do not fit args.py:Net: missing a required argument: 'width'"):
        load(tmp_path, "args.py:Net")


@pytest.mark.parametrize(
    "body, message",
    [
        ("return 3", r"model.factory is made.py:build, which returned a int; it must return a torch.nn.Module"),
        ("return Net('a')", r"which failed at \S+made.py:\d+: TypeError: .+"),
        ("return Net(1 // 0)", r"which failed at \S+made.py:\d+: ZeroDivisionError: "),
        ("return Net(4).requires_grad_(False)", r"returned a Net without a parameter that requires a gradient"),
        ("return Net(4)", r"it is not known what a Net is trained on; name batch.factory as path/file.py:fn"),
    ],
)
def test_a_factory_that_builds_no_usable_model_is_one_line(
    write: Callable[..., None], tmp_path: Path, body: str, message: str
) -> None:
    write("made.py", MODEL.replace("return Net(width)", body))
    with pytest.raises(WorkloadError, match=message):
        load(tmp_path, "made.py:build").build_model()


@pytest.mark.parametrize(
    "body, message",
    [
        ("return 3", r"batch.factory is given.py:batch, which returned a int; it must return a dict"),
        ("return [torch.ones(1)]", r"returned a list; it must return a dict of the model's inputs"),
        ("return {0: torch.ones(1)}", r"returned a dict with the key 0; keys must be the names"),
        (
            "return {'x': torch.randn(-micro_batch_size)}",
            r"which, called with micro_batch_size 2, failed at \S+given.py:5: RuntimeError",
        ),
        ("raise RuntimeError('no memory of that file')", r"RuntimeError: no memory of that file"),
    ],
)
def test_a_batch_function_that_makes_no_batch_is_one_line(
    write: Callable[..., None], tmp_path: Path, body: str, message: str
) -> None:
    write("net.py", MODEL)
    write("given.py", BATCH.replace('return {"x": torch.randn(micro_batch_size, 4)}', body))
    workload = load(tmp_path, "net.py:build", batch_factory="given.py:batch")
    with pytest.raises(WorkloadError, match=message) as caught:
        workload.make_batch(2)
    assert "\n" not in str(caught.value)


def test_a_batch_function_with_other_parameters_is_refused_before_any_call(
    write: Callable[..., None], tmp_path: Path
) -> None:
    write("net.py", MODEL)
    write("given.py", "def batch(size, path): pass\n")
    with pytest.raises(
        WorkloadError, match=r"cannot be called as fn\(micro_batch_size\): .+its parameters are size, path"
    ):
        load(tmp_path, "net.py:build", batch_factory="given.py:batch")


@pytest.mark.parametrize(
    "body, error, text",
    [
        ("torch.zeros(10 * 2**40)", RuntimeError, "can't allocate memory"),
        ("__import__('numpy').zeros(10 * 2**40)", MemoryError, "Unable to allocate"),
        ("raise torch.OutOfMemoryError('device is full')", torch.OutOfMemoryError, "device is full"),
    ],
)
def test_running_out_of_memory_passes_unchanged(
    write: Callable[..., None], tmp_path: Path, body: str, error: type[Exception], text: str
) -> None:
    write("net.py", MODEL)
    write(
        "huge.py",
        f"import torch\ndef batch(n):\n    if n == 4:\n        {body}\n    return {{'x': torch.ones(n, 4)}}\n",
    )
    workload = load(tmp_path, "net.py:build", batch_factory="huge.py:batch")
    assert workload.make_batch(2)["x"].shape == (2, 4)
    with pytest.raises(error, match=text):
        workload.make_batch(4)

from __future__ import annotations

from importlib import metadata

import pytest

from tuner.export.base import ExportError, StackVersion
from tuner.export.registry import EXPORTERS
from tuner.export.versions import choose_version, installed_misfit

HUGGINGFACE = EXPORTERS["huggingface"]
ACCELERATE = EXPORTERS["accelerate"]


@pytest.mark.parametrize(
    "wanted, name",
    [
        (None, "5.23"),
        ("5.24.0", "5.23"),
        ("5.22.1", "5.17"),
        ("5.16", "5.16"),
        ("5.16.9", "5.16"),
        ("5.15.0", "5.0"),
        ("4.57.6", "4.57"),
        ("4.40", "4.57"),
    ],
)
def test_a_release_finds_the_entry_that_it_is_written_like(wanted: str | None, name: str) -> None:
    assert choose_version(HUGGINGFACE, wanted).name == name


def test_a_variant_is_found_by_its_name_only() -> None:
    assert choose_version(ACCELERATE, "fsdp1").name == "fsdp1"
    assert choose_version(ACCELERATE, "1.10").name == "1.14"
    with pytest.raises(ExportError, match=r"--stack-version is '1\.2'; accelerate is written for 1\.15 \(acc"):
        choose_version(ACCELERATE, "1.2")


@pytest.mark.parametrize("wanted", ["4.20", "6.0", "newest", ""])
def test_a_release_that_nothing_is_known_of_is_refused(wanted: str) -> None:
    with pytest.raises(ExportError, match=f"--stack-version is '{wanted}'; huggingface is written for .*; name one of"):
        choose_version(HUGGINGFACE, wanted)


def test_a_slip_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(ExportError, match=r"did you mean fsdp1\?"):
        choose_version(ACCELERATE, "fdsp1")


@pytest.mark.parametrize("target", EXPORTERS)
def test_names_are_told_apart_and_releases_do_not_overlap(target: str) -> None:
    versions = EXPORTERS[target].versions
    assert len({version.name for version in versions}) == len(versions)
    for version in versions:
        if version.by_release and version.since is not None:
            assert choose_version(EXPORTERS[target], version.since) is version


def test_another_release_than_the_installed_one_is_said() -> None:
    installed = metadata.version("pytest")
    old = StackVersion("1", "pytest 1", "pytest", since="1", until="2")
    assert installed_misfit(old) == (
        f"pytest {installed} is installed here, but this file is for pytest 1; for this machine name --stack-version "
        f"{installed}"
    )
    assert installed_misfit(StackVersion("now", "pytest", "pytest", since="1")) is None
    assert installed_misfit(StackVersion("1", "a stack", "no-such-package", since="1", until="2")) is None
    assert installed_misfit(StackVersion("1", "our own")) is None

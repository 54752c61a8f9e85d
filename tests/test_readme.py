"""README and docs promise files, commands, keys, defaults and figures: here they are held to it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from runners.proof.compare import BASE_TOLERANCE, recompute_tolerance, split_tolerance
from search_spaces.capacity_model import segmented_activation_bytes
from tuner import cli, console
from tuner.config import SearchConfig
from tuner.export.registry import EXPORTERS
from tuner.search_file.load import load_search_file
from tuner.search_file.schema import json_schema

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
pages = pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
REQUIRED = ("model.factory", "batch.global_batch_size", "memory_cap")
MIB = 2**20


def code_blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def all_blocks(language: str) -> list[tuple[str, str]]:
    return [(page.name, block) for page in PAGES for block in code_blocks(page, language)]


def table_rows(page: Path, first_cell: str) -> list[list[str]]:
    """Cells of the rows below the header that begins with ``first_cell``."""
    lines = iter(page.read_text().splitlines())
    for line in lines:
        if line.startswith(f"| {first_cell} |"):
            break
    next(lines)
    rows: list[list[str]] = []
    for line in lines:
        if not line.startswith("|"):
            return rows
        rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return rows


def headings(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pages
def test_files_and_headings_that_a_page_links_exist(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    for link in (link for link in links if "://" not in link):
        name, _, heading = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not heading or heading in headings(target), link


def test_six_files_to_read_first_are_six() -> None:
    rows = table_rows(ROOT / "README.md", "file")
    assert len(rows) == 6


@pages
def test_files_that_a_page_names_in_commands_exist(page: Path) -> None:
    named = re.findall(r"\bexamples/[\w./-]+\.\w+|\btests/[\w./-]+\.py", page.read_text())
    missing = [name for name in named if not (ROOT / name).exists()]
    assert missing == []


def shown_commands() -> Iterator[str]:
    for page in PAGES:
        inline = re.findall(r"`((?:tune|python -m tuner) [^`]+)`", page.read_text())
        lines = [line for block in code_blocks(page, "") for line in block.splitlines()]
        for line in [*inline, *lines]:
            command = line.partition("#")[0].partition(" > ")[0].strip()
            if re.match(r"(tune|python -m tuner) [a-z]", command):
                yield command.removeprefix("python -m tuner").removeprefix("tune").strip()


@pytest.mark.parametrize("arguments", sorted(set(shown_commands())))
def test_commands_that_are_shown_parse(arguments: str) -> None:
    name, *rest = shlex.split(arguments)
    command = commands()[name]
    if not rest and name not in ("ui", "schema"):
        return  # Named in a sentence, not shown as a command to type.
    with command.make_context(name, rest) as context:
        if "export_format" in context.params:
            assert context.params["export_format"] in EXPORTERS


def test_commands_that_are_shown_are_found_at_all() -> None:
    assert len(set(shown_commands())) > 8


def commands() -> dict[str, Any]:
    return typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]  # the app is a group


def test_the_table_of_commands_has_every_command() -> None:
    listed = {row[0].strip("`").split()[1] for row in table_rows(ROOT / "README.md", "command")}
    assert listed == set(commands())


def test_the_table_of_exit_codes_is_the_programs() -> None:
    codes = {int(row[0]) for row in table_rows(ROOT / "README.md", "exit code")}
    assert codes == {value for name, value in vars(console).items() if name.startswith("EXIT_")}


def search_files() -> Iterator[Any]:
    for name, block in all_blocks("yaml"):
        if isinstance(yaml.safe_load(block), dict):
            yield pytest.param(block, id=f"{name}: {block.split(chr(10))[0][:30]}")


@pytest.mark.parametrize("text", list(search_files()))
def test_search_files_that_are_shown_are_valid(tmp_path: Path, text: str) -> None:
    for factory in re.findall(r"\bfactory: (\w+\.py):", text):
        (tmp_path / factory).write_text("")
    (tmp_path / "search.yaml").write_text(text)
    load_search_file(tmp_path / "search.yaml")


def test_the_whole_search_file_shows_every_key_with_its_default() -> None:
    page = ROOT / "docs" / "search-file.md"
    text = next(block for block in code_blocks(page, "yaml") if block.startswith("study:"))
    shown = dict(leaves(yaml.safe_load(text)))
    assert set(shown) == set(defaults())
    for key, default in defaults().items():
        assert key in (*REQUIRED, "study") or shown[key] == default, key


def test_the_table_of_keys_has_every_key_with_its_default() -> None:
    rows = table_rows(ROOT / "docs" / "search-file.md", "key")
    listed = {row[0].strip("`"): row[1] for row in rows}
    assert set(listed) == set(defaults())
    assert listed.pop("study") == "the file's name"
    for key, shown in listed.items():
        assert shown == "required" if key in REQUIRED else yaml.safe_load(shown.strip("`")) == defaults()[key], key


def defaults() -> dict[str, Any]:
    """Every key of search.yaml with its default; None where it has none."""
    return dict(_defaults_below(json_schema(), ""))


def _defaults_below(node: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, child in node["properties"].items():
        reference = child.get("$ref")
        section = json_schema()["$defs"][reference.rpartition("/")[2]] if reference else child
        if "properties" in section:
            yield from _defaults_below(section, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", child.get("default")


def leaves(data: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    sections = {name for name, field in SearchConfig.model_fields.items() if hasattr(field.annotation, "model_fields")}
    for key, value in data.items():
        if prefix == "" and key in sections:
            yield from leaves(value, f"{key}.")
        else:
            yield f"{prefix}{key}", value


@pytest.mark.parametrize(("name", "block"), all_blocks("python"))
def test_python_that_is_shown_compiles(name: str, block: str) -> None:
    compile(block, name, "exec")


def test_the_model_of_ones_own_in_the_readme_trains() -> None:
    block = next(b for b in code_blocks(ROOT / "README.md", "python") if b.startswith("# model.py"))
    names: dict[str, Any] = {}
    exec(block, names)
    loss = names["build_model"](depth=2)(**names["make_batch"](4))
    loss.backward()
    assert loss.shape == ()


def test_the_capacity_model_gives_what_the_page_on_recompute_says() -> None:
    page = ROOT / "docs" / "recompute.md"
    (block,) = code_blocks(page, "python")
    exec(block, {})
    rows = {row[0]: row[1] for row in table_rows(page, "placement")}
    sizes = {1: "segments of 1 (each block)", **{k: f"segments of {k}" for k in (2, 3, 4, 6)}, 12: "one segment of 12"}
    for size, label in sizes.items():
        held = segmented_activation_bytes(12, size, boundary_bytes=MIB // 2, internal_bytes=int(9.03125 * MIB))
        assert rows[label] == f"{held / MIB:.1f} MiB"


def test_the_page_on_proof_shows_the_tolerances_in_force() -> None:
    rows = {row[0]: row[1:] for row in table_rows(ROOT / "docs" / "proof.md", "lowest precision in the step")}
    assert set(rows) == {str(dtype).removeprefix("torch.") for dtype in BASE_TOLERANCE}
    for dtype in BASE_TOLERANCE:
        allowed = [float(text) for text in rows[str(dtype).removeprefix("torch.")]]
        assert allowed == pytest.approx([recompute_tolerance(dtype, 0.0), split_tolerance(dtype)])


def test_the_picture_is_a_small_png() -> None:
    picture = (ROOT / "docs" / "images" / "front.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 150_000

"""A program: inputs for the readers of files, each made from earlier ones that reached code which none before had.

``coverage_guided.py FOLDER [options of libFuzzer]`` keeps the telling inputs in the folder. The first byte of an input
chooses the reader, and whether the rest is the file itself or chooses edits of a good one.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris
import conftest  # noqa: F401  # where the other modules are

with atheris.instrument_imports(include=["search_spaces", "tuner", "table_file", "recorded_table", "yaml"]):
    from edited_files import SNIPPETS, edited_text
    from readers import READERS, Reader, check_reader

from hypothesis import HealthCheck, given, settings

#: Longer inputs are slower and say little more.
_MAX_INPUT_BYTES = 60_000


def main() -> None:
    corpus, *options = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        checks = [check for reader in READERS.values() for check in _checks(reader, Path(tempfile.mkdtemp(dir=folder)))]
        for index, reader in enumerate(READERS.values()):
            (Path(corpus) / f"sample-{index}").write_bytes(bytes([2 * index]) + reader.sample.encode())
        dictionary = Path(folder) / "dictionary"
        dictionary.write_text("".join(f'"{_escaped(snippet)}"\n' for snippet in SNIPPETS))

        def try_one(data: bytes) -> None:
            checks[data[0] % len(checks) if data else 0](data[1:])

        limits = [f"-max_len={_MAX_INPUT_BYTES}", "-timeout=60", "-rss_limit_mb=4096", f"-dict={dictionary}"]
        atheris.Setup([sys.argv[0], *limits, *options, corpus], try_one)
        atheris.Fuzz()


def _checks(reader: Reader, folder: Path) -> list[Callable[[bytes], object]]:
    """Of bytes that are the file, and of bytes that choose edits of the sample."""

    @settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(edited_text(reader.sample))
    def edit(content: bytes) -> None:
        check_reader(reader, content, folder)

    return [lambda content: check_reader(reader, content, folder), edit.hypothesis.fuzz_one_input]


def _escaped(text: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in text.encode("utf-8", errors="surrogatepass"))


if __name__ == "__main__":
    main()

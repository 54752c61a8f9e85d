"""Keys that no file may have, or must: unknown, twice, missing."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from search_texts import SMALLEST, WHOLE, load, refusal

from search_spaces.strict_yaml import parse_yaml
from tuner.search_file.load import ConfigError
from tuner.search_file.schema import known_keys


def _mistyped(word: str) -> Iterator[str]:
    """The word with two neighbouring letters exchanged, or one letter changed."""
    for index in range(len(word) - 1):
        yield word[:index] + word[index + 1] + word[index] + word[index + 2 :]
    for index in range(len(word)):
        yield word[:index] + "q" + word[index + 1 :]


_KEYS = [(key,) for key in known_keys(())] + [
    (section, key) for section in known_keys(()) for key in known_keys((section,))
]


@pytest.mark.usefixtures("folder")
class TestKeys:
    @pytest.mark.parametrize("path", _KEYS, ids=".".join)
    def test_a_mistyped_key_is_refused_with_its_line_and_the_right_name(self, path: tuple[str, ...]) -> None:
        number = parse_yaml(WHOLE, where="search.yaml").lines[path]
        for wrong in set(_mistyped(path[-1])) - set(known_keys(path[:-1])):
            lines = WHOLE.splitlines()
            lines[number - 1] = re.sub(rf"\b{path[-1]}:", f"{wrong}:", lines[number - 1], count=1)
            start = f"search.yaml:{number}: {'.'.join((*path[:-1], wrong))} is no known key; allowed "
            answers = [line for line in refusal("\n".join(lines)) if line.startswith(start)]
            assert len(answers) == 1, wrong
            assert answers[0].endswith(f"; did you mean {path[-1]}?"), wrong

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            (
                "num_trials: 3",
                "num_trials is no known key; allowed at the top level: study, model, .*mean search.num_trials",
            ),
            (
                "search: {memory_cap: 1GiB}",
                "search.memory_cap is no known key; allowed in search: .*; did you mean memory_cap",
            ),
            ("sequence_len: 8", "sequence_len is no known key; .*; did you mean batch.sequence_length"),
            ("micro_batch_size: 2", "micro_batch_size is no known key; .*; did you mean batch.micro_batch_sizes"),
            ("search: {zzz: 1}", "search.zzz is no known key; allowed in search: num_trials, .*, seed; remove it"),
            ("'a b': 1", "'a b' is no known key"),
            ('"<list>": 1', "'<list>' is no known key"),
            ('"a\\x1bb": 1', r"'a\\x1bb' is no known key"),
            ("polices: 1", "polices is no known key"),
        ],
    )
    def test_an_unknown_key_is_answered_with_the_known_ones(self, line: str, message: str) -> None:
        with pytest.raises(ConfigError, match=rf"^search\.yaml:4: {message}"):
            load(SMALLEST + line)

    def test_keys_that_stand_twice_are_refused_with_both_lines(self) -> None:
        text = SMALLEST + "search: {seed: 1}\n" + "# more\n" * 40 + "memory_cap: 1GiB\nsearch:\n  seed: 2\n"
        assert refusal(text) == [
            "search.yaml:45: memory_cap stands twice, on lines 3 and 45; remove one of the two",
            "search.yaml:46: search stands twice, on lines 4 and 46; remove one of the two",
        ]

    @pytest.mark.parametrize(
        ("text", "missing"),
        [
            ("study: x", ["1: model.factory", "1: batch.global_batch_size", "1: memory_cap"]),
            (
                "memory_cap: 1GiB\nmodel: {dtype: float32}\nbatch:\n  sequence_length: 2",
                ["2: model.factory", "3: batch.global_batch_size"],
            ),
        ],
    )
    def test_missing_options_are_named(self, text: str, missing: list[str]) -> None:
        lines = refusal(text)
        assert [line.split(" is missing; allowed: ")[0] for line in lines] == [
            f"search.yaml:{item}" for item in missing
        ]
        assert all(line.endswith("; add it") for line in lines)

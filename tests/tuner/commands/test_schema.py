from __future__ import annotations

import json
from collections.abc import Callable

from click.testing import Result

from tuner.search_file.schema import json_schema


def test_the_schema_is_one_json_document(tune: Callable[..., Result]) -> None:
    result = tune("schema")
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == json_schema()

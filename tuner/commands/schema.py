"""`tune schema`: the JSON schema of search.yaml."""

from __future__ import annotations

import json

from tuner.console import EXIT_DONE, show_text
from tuner.search_file.schema import json_schema


def schema_command() -> int:
    """Prints the schema; gives back the exit code."""
    show_text(json.dumps(json_schema(), indent=2))
    return EXIT_DONE

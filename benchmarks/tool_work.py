"""What is trained in a comparison of tools: the model, batch and optimizer of a search file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from runners.trial import WorkloadSpec
from tuner import assemble
from tuner.search_file.load import load_search_file

#: Sections and options that our searches get from the comparison itself.
_NOT_TAKEN = ("study", "memory_cap", "output_dir")
_COMPILER_OPTIONS = ("compile", "compile_memory_budget")


@dataclass(frozen=True)
class Work:
    """What is trained and how often it is measured.

    Attributes:
        name: Of the model, for a page.
        search: Sections of a search file that all of our searches have in common.
        search_time_limit_s: Of one search.
        blocks: Paths of the model's lists of blocks.
        micro_batch_sizes: Descending, the first one the whole batch or the largest that may be tried.
        num_rounds: Steps of each candidate that count.
    """

    name: str
    search: dict[str, Any]
    search_time_limit_s: float
    spec: WorkloadSpec
    blocks: tuple[str, ...]
    global_batch_size: int
    micro_batch_sizes: tuple[int, ...]
    num_rounds: int
    with_compiler: bool

    @classmethod
    def read(cls, path: Path, *, num_rounds: int, with_compiler: bool) -> Work:
        """The work of a search file; looks at the model.

        Raises:
            UserError: The file cannot be used.
            RunnerError: Its model cannot.
        """
        config = load_search_file(path)
        inspector = assemble.local_inspector()
        try:
            shape = inspector.inspect(assemble.inspection_spec(config)).shape
        finally:
            inspector.close()
        written = yaml.safe_load(path.read_text())
        search = {key: value for key, value in written.items() if key not in _NOT_TAKEN}
        model = {key: value for key, value in search["model"].items() if key not in _COMPILER_OPTIONS}
        # Our searches lie in another folder.
        for section in (model, search["batch"]):
            if ".py:" in section.get("factory", ""):
                section["factory"] = str(path.parent.resolve() / section["factory"])
        spec = assemble.workload_spec(config).model_copy(update={"compile": None, "compile_memory_budget": None})
        return cls(
            name=config.model.factory,
            search={**search, "model": model},
            search_time_limit_s=config.search.time_limit_s,
            spec=spec,
            blocks=tuple(blocks.path for blocks in shape.block_lists),
            global_batch_size=config.batch.global_batch_size,
            micro_batch_sizes=assemble.micro_batch_sizes(config)[::-1],
            num_rounds=num_rounds,
            with_compiler=with_compiler,
        )

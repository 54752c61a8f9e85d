"""Search files as text: the smallest, the whole one, and what is said of a wrong one in the current folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.config import SearchConfig
from tuner.search_file.load import ConfigError, load_search_file

SMALLEST = "model: {factory: huggingface:gpt2}\nbatch: {global_batch_size: 8}\nmemory_cap: 600MiB\n"

WHOLE = """\
study: gpt2-12l
model:
  factory: huggingface:gpt2
  args: {n_layer: 12, n_embd: 256, n_head: 8, vocab_size: 4096}
  dtype: float32
  autocast: null
  compile: null
  compile_memory_budget: null
batch:
  global_batch_size: 8
  micro_batch_sizes: auto
  sequence_length: 256
  factory: null
optimizer: {name: adamw, args: {lr: 0.0001}}
memory_cap: 600MiB
placement:
  blocks: auto
  units: auto
  actions: [none, attention, mlp, attention+mlp, block, segment]
  segment_sizes: auto
  preserve_rng_state: true
  target: null
search: {num_trials: 30, time_limit: 10m, sampler: tpe, seed: 0}
measurement: {warmup_steps: 2, min_steps: 5, max_steps: 50, relative_spread: 0.02, verify: true}
runner:
  device: auto
  ray_address: null
  ship_code: true
  accelerator_type: null
  max_parallel_trials: null
  priority: 1.0
  resources_per_trial: auto
  data_parallel_degree: 1
  strategy: none
  pipeline_stages: 1
  reshard_after_forward: true
  trial_timeout: 10m
  isolation: worker
storage: null
tracking: {uri: null, experiment: null}
output_dir: runs
"""


def load(text: str | bytes, name: str = "search.yaml") -> SearchConfig:
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_search_file(name)


def refusal(text: str | bytes) -> list[str]:
    with pytest.raises(ConfigError, match=r"^search\.yaml(:\d+)?: ") as caught:
        load(text)
    assert str(caught.value).splitlines() == list(caught.value.lines)
    return list(caught.value.lines)


def with_sections(**changes: str) -> str:
    """The smallest file with other lines for the named sections."""
    sections = {
        "model": "{factory: huggingface:gpt2}",
        "batch": "{global_batch_size: 8}",
        "memory_cap": "600MiB",
        **changes,
    }
    return "".join(f"{key}: {value}\n" for key, value in sections.items())

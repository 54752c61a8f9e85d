"""Configs of other programs get one line, and mistakes in a search file one line each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.search_file.load import ConfigError, load_search_file

_SEARCH = "model: {factory: huggingface:gpt2}\nbatch: {global_batch_size: 8}\nmemory_cap: 600MiB\n"
_OTHER_PROGRAMS = {
    "axolotl": "base_model: a/b\ndatasets: [{path: c, type: alpaca}]\nmicro_batch_size: 2\noptimizer: adamw_8bit\n"
    "gradient_checkpointing_kwargs: {use_reentrant: false}\noutput_dir: out\n",
    "LLaMA-Factory": "model_name_or_path: a/b\nstage: sft\nfinetuning_type: lora\nlearning_rate: 1.0e-4\n",
    "DeepSpeed": '{"train_batch_size": "auto", "bf16": {"enabled": true}, "optimizer": {"type": "AdamW"},\n'
    ' "activation_checkpointing": {"cpu_checkpointing": true}}\n',
    "W&B": "program: train.py\nmethod: bayes\nmetric: {name: loss, goal: minimize}\nparameters: {lr: {values: [1]}}\n",
    "SkyPilot": "name: train\nresources: {accelerators: 'A100:8'}\nnum_nodes: 2\nrun: torchrun train.py\n",
    "Kubernetes": "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: b}]}\n",
}


def refusal(folder: Path, content: str) -> list[str]:
    path = folder / "other.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"other\.yaml:") as caught:
        load_search_file(path)
    return [line.removeprefix(f"{folder}/") for line in caught.value.lines]


@pytest.mark.parametrize("content", _OTHER_PROGRAMS.values(), ids=_OTHER_PROGRAMS)
def test_the_config_of_another_program_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    (line,) = refusal(tmp_path, content)
    assert line.startswith("other.yaml:1: is no search file: ")
    assert "and model, batch, memory_cap are missing" in line
    assert "write one beside it" in line


@pytest.mark.parametrize(
    ("content", "num_lines"),
    [
        (_SEARCH + "a: 1\nb: {c: {d: 1}}\ne: [{f: 1}, {g: 2}]\nsearch: {h: {i: 1}, j: {k: 1}}\n", 5),
        ("modle: {factory: huggingface:gpt2}\na: 1\nb: 2\n", 6),
        ("a: 1\nb: 2\n", 5),
    ],
    ids=["keys too many", "a needed key mistyped", "few keys"],
)
def test_each_mistake_in_a_search_file_is_a_line(tmp_path: Path, content: str, num_lines: int) -> None:
    assert len(refusal(tmp_path, content)) == num_lines


def test_sections_below_a_key_of_their_own_are_sent_to_the_top(tmp_path: Path) -> None:
    nested = "tuner:\n" + "".join(f"  {line}\n" for line in _SEARCH.splitlines())
    assert refusal(tmp_path, nested)[0].endswith("; write what is in it at the top level")


def test_a_path_as_a_key_is_sent_to_its_section(tmp_path: Path) -> None:
    (line,) = refusal(tmp_path, f"{_SEARCH}search.seed: 1\n")
    assert line.endswith("; write search: {seed: ...}")


@pytest.mark.parametrize(("written", "section"), [("30", "search: {num_trials"), ("cuda", "search: {num_trials")])
def test_a_value_in_the_place_of_a_section_is_sent_to_a_key_of_it(tmp_path: Path, written: str, section: str) -> None:
    (line,) = refusal(tmp_path, f"{_SEARCH}search: {written}\n")
    assert line.endswith(f"; write {section}: ...}}")

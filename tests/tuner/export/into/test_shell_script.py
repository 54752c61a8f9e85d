"""Launch scripts with a policy in them, judged by bash itself: what the training command gets before and after."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tuner.export.command_line import CommandLine
from tuner.export.into.config_text import UneditableError
from tuner.export.into.shell_script import argument_of, with_arguments

pytest.importorskip("tree_sitter_bash", reason="the extra recompute-tuner[shell] is not installed")

MEGATRON = CommandLine(separator="-", booleans="switch")
TRAINER = CommandLine(separator="_", booleans="word")
SETTINGS: dict[str, object] = {
    "micro_batch_size": 2,
    "global_batch_size": 16,
    "recompute_granularity": "full",
    "recompute_method": "block",
    "recompute_num_layers": 5,
    "recompute_modules": None,
    "distribute_saved_activations": False,
}
OBSOLETE = ("recompute_activations",)
WANTED = {
    "--micro-batch-size": ["2"],
    "--global-batch-size": ["16"],
    "--recompute-granularity": ["full"],
    "--recompute-method": ["block"],
    "--recompute-num-layers": ["5"],
}
#: Words after each flag, in the scripts below and in what is wanted.
NUM_WORDS = {
    **dict.fromkeys(WANTED, 1),
    "--recompute-modules": 2,
    "--recompute-activations": 0,
    "--distribute-saved-activations": 0,
}

ARRAYS = """#!/bin/bash
# A 175B model; --micro-batch-size is set below
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS=8
NODES=${NODES:-1}
WORLD=$(($GPUS*$NODES))
DIST=(
    --nproc_per_node $GPUS\x20
    --nnodes $NODES
)
MODEL=(
    --num-layers 12
    --attention-backend auto # one of (flash/fused)
)
TRAINING=(
    --micro-batch-size 1   # per rank
    --global-batch-size 1536
    --lr 6.0e-5
    --recompute-activations

    --fp16
)
torchrun ${DIST[@]} pretrain_gpt.py \\
    ${MODEL[@]} \\
    "${TRAINING[@]}" --seed 1
"""
STRINGS = """#!/bin/bash
MEMORY="
    --recompute-granularity selective \\
    --recompute-modules core_attn mlp \\
    --distribute-saved-activations \\
"
GPT="
    --micro-batch-size 1 \\
    --global-batch-size 8 \\
    --lr 1e-6
"
torchrun $DIST pretrain_gpt.py \\
    $GPT \\
    $MEMORY | tee log.txt
"""
PROGRAM_LAST = """torchrun --recompute-activations --micro-batch-size 4 --distribute-saved-activations train.py
"""
ONE_COMMAND = """torchrun --nproc_per_node 8 pretrain_gpt.py \\
    --lr 1 --micro-batch-size=1 \\
    --global-batch-size "8" \\
    --tokenizer 'a b' \\
    --recompute-granularity selective \\
    --recompute-modules core_attn mlp
"""
VARIABLES = """MBS=1
GBS="8"   # all ranks
SEED=3
torchrun pretrain_gpt.py --micro-batch-size $MBS --global-batch-size ${GBS} --seed $SEED --recompute-activations >log
"""
SCRIPTS = {
    "arrays": ARRAYS,
    "strings": STRINGS,
    "one command": ONE_COMMAND,
    "program last": PROGRAM_LAST,
    "variables": VARIABLES,
}


def given_to_torchrun(script: str, folder: Path) -> list[str]:
    """Runs the script with a torchrun that notes its arguments."""
    folder.mkdir(exist_ok=True)
    noted = folder / "noted"
    torchrun = folder / "torchrun"
    torchrun.write_text(f'#!/bin/bash\nprintf "%s\\0" "$@" > {noted}\n')
    torchrun.chmod(0o755)
    (folder / "launch.sh").write_bytes(script.encode())
    subprocess.run(
        ["bash", "launch.sh"], cwd=folder, env={"PATH": f"{folder}:/usr/bin:/bin"}, check=True, capture_output=True
    )
    return noted.read_text().split("\0")[:-1]


def divided(words: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Our arguments with their words, and all other words in their order."""
    ours, others = {}, []
    while words:
        flag, equals, value = words[0].partition("=")
        if flag not in NUM_WORDS:
            others.append(words[0])
            words = words[1:]
            continue
        number = 0 if equals else NUM_WORDS[flag]
        assert flag not in ours
        ours[flag] = [value] if equals else words[1 : 1 + number]
        words = words[1 + number :]
    return ours, others


@pytest.mark.parametrize("name", SCRIPTS)
def test_bash_gives_the_wanted_arguments_and_all_others_as_before(name: str, tmp_path: Path) -> None:
    after = with_arguments(SCRIPTS[name], MEGATRON, SETTINGS, OBSOLETE)
    _, others_before = divided(given_to_torchrun(SCRIPTS[name], tmp_path / "before"))
    ours, others = divided(given_to_torchrun(after, tmp_path / "after"))
    assert ours == WANTED
    assert others == others_before


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_second_time_changes_nothing(name: str) -> None:
    after = with_arguments(SCRIPTS[name], MEGATRON, SETTINGS, OBSOLETE)
    assert with_arguments(after, MEGATRON, SETTINGS, OBSOLETE) == after


def test_only_the_lines_of_these_arguments_change() -> None:
    assert with_arguments(ARRAYS, MEGATRON, SETTINGS, OBSOLETE) == ARRAYS.replace(
        "    --micro-batch-size 1   # per rank\n    --global-batch-size 1536\n",
        "    --micro-batch-size 2   # per rank\n    --global-batch-size 16\n    --recompute-granularity full\n"
        "    --recompute-method block\n    --recompute-num-layers 5\n",
    ).replace("    --recompute-activations\n", "")


def test_arguments_in_a_string_keep_their_backslashes() -> None:
    assert with_arguments(STRINGS, MEGATRON, SETTINGS, OBSOLETE) == STRINGS.replace(
        "granularity selective \\\n    --recompute-modules core_attn mlp \\\n    --distribute-saved-activations \\\n",
        "granularity full \\\n    --recompute-method block \\\n    --recompute-num-layers 5 \\\n",
    ).replace("size 1 ", "size 2 ").replace("size 8 ", "size 16 ")


def test_the_last_arguments_of_a_command_leave_no_backslash_behind() -> None:
    nothing = {**dict.fromkeys(SETTINGS), "micro_batch_size": 1, "global_batch_size": 8}
    assert with_arguments(ONE_COMMAND, MEGATRON, nothing, OBSOLETE) == ONE_COMMAND.replace(
        " \\\n    --recompute-granularity selective \\\n    --recompute-modules core_attn mlp", ""
    )


def test_a_variable_with_one_use_is_followed_to_its_value() -> None:
    after = with_arguments(VARIABLES, MEGATRON, SETTINGS, OBSOLETE)
    assert after.startswith('MBS=2\nGBS="16"   # all ranks\nSEED=3\n')
    assert "--micro-batch-size $MBS --global-batch-size ${GBS} --recompute-granularity full" in after


def test_line_ends_of_windows_and_a_missing_last_one_stay() -> None:
    unix = ARRAYS.replace(" \\\n   ", "")
    script = unix.replace("\n", "\r\n").removesuffix("\r\n")
    after = with_arguments(script, MEGATRON, SETTINGS, OBSOLETE)
    assert after == with_arguments(unix, MEGATRON, SETTINGS, OBSOLETE).replace("\n", "\r\n").removesuffix("\r\n")


def test_words_after_flags_and_json_as_the_trainer_of_transformers_takes_them() -> None:
    script = (
        "torchrun train.py --per-device-train-batch-size 8 --gradient_checkpointing "
        """--gradient_checkpointing_kwargs '{"use_reentrant": true}'\n"""
    )
    settings: dict[str, object] = {
        "per_device_train_batch_size": 2,
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
    }
    after = with_arguments(script, TRAINER, settings, ())
    assert after == script.replace("size 8", "size 2").replace("true}", "false}")
    assert with_arguments(after.replace('{"use', '{ "use'), TRAINER, settings, ()) == after.replace('{"use', '{ "use')
    off = with_arguments(script, TRAINER, {"gradient_checkpointing": False, "gradient_checkpointing_kwargs": None}, ())
    assert off == "torchrun train.py --per-device-train-batch-size 8 --gradient_checkpointing False\n"


@pytest.mark.parametrize(
    "script, line, message",
    [
        (
            "run --micro-batch-size ${MBS:-4}\n",
            1,
            r"gives --micro-batch-size as \$\{MBS:-4\}, which cannot be followed",
        ),
        ("run --micro-batch-size $1\n", 1, r"gives --micro-batch-size as \$1, which cannot be followed"),
        ("run --micro-batch-size $MBS\n", 1, r"as \$MBS, which is not set once in this script by a plain value"),
        ("MBS=$1\nrun --micro-batch-size $MBS\n", 2, r"as \$MBS, which is not set once in this script by a plain"),
        ("MBS=1\nMBS=2\nrun --micro-batch-size $MBS\n", 3, r"as \$MBS, which is not set once in this script"),
        ("MBS=1\nrun --micro-batch-size $MBS\necho $MBS\n", 2, r"as \$MBS, which other places of the script use"),
        ("run --micro-batch-size 1\nrun --micro-batch-size 1\n", 2, r"gives --micro-batch-size, which line 1 gives as"),
        ("if true; then\n  run --micro-batch-size 1\nfi\n", 2, r"gives --micro-batch-size in a branch or loop"),
        ('ssh node "run --micro-batch-size 1"\n', 1, r"gives --micro-batch-size where it cannot be followed"),
        (
            "run --recompute-modules mlp train.py --micro-batch-size 1\n",
            1,
            r"has train\.py after --recompute-modules, which may be a part of it or not",
        ),
        ('run --micro-batch-size 1\nssh node "run --micro-batch-size 1"\n', 2, r"where it cannot be followed"),
        ("A='--micro-batch-size 1'\nB=\"$A --micro-batch-size 2\"\n", 2, r"which line 1 gives as well"),
        ("cat <<E\n--micro-batch-size 1\nE\nrun --global-batch-size 4\n", 2, r"where it cannot be followed"),
        ("run --micro-batch-size 1 (\n", 1, r"is not plain bash from here on"),
        ("run \\\r\n --micro-batch-size 1\r\n", 1, r"a Windows line break, so that bash does not continue the line"),
        ("A=1\nB='x \\\r\n --micro-batch-size 1'\n", 2, r"a Windows line break, so that bash does not continue"),
        ("echo hello\n", None, r"has none of the arguments --micro-batch-size"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_line(script: str, line: int | None, message: str) -> None:
    with pytest.raises(UneditableError, match=message) as caught:
        with_arguments(script, MEGATRON, SETTINGS, OBSOLETE)
    assert caught.value.line == line


@pytest.mark.parametrize(
    "script, value",
    [
        ("run --pipeline-model-parallel-size 4\n", "4"),
        ("PP=2\nrun --pipeline-model-parallel-size $PP\n", "2"),
        ("run --fp16\n", None),
    ],
)
def test_one_argument_can_be_asked_for(script: str, value: str | None) -> None:
    assert argument_of(script, MEGATRON, "pipeline_model_parallel_size") == value


def test_one_argument_that_cannot_be_followed_is_refused() -> None:
    with pytest.raises(UneditableError, match="gives --pipeline-model-parallel-size in a way that cannot be followed"):
        argument_of("run --pipeline-model-parallel-size $PP\n", MEGATRON, "pipeline_model_parallel_size")


def test_json_words_are_compared_by_what_they_say() -> None:
    script = "run --kwargs '" + json.dumps({"b": 1, "a": [2]}) + "'\n"
    assert with_arguments(script, TRAINER, {"kwargs": {"a": [2], "b": 1}}, ()) == script

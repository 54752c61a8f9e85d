"""Mistakes in what a search file says of compiled models, selective recompute, offload, ranks and pipelines."""

from __future__ import annotations

from error_cases import in_model, in_search, in_section

IN_MODES = (
    in_model(
        "budget",
        "compile_memory_budget: 0.5",
        ".yaml:2: model.compile_memory_budget | is 0.5 | allowed with model.compile | remove compile_memory_budget",
    ),
    in_model("compile", "compile: true", ".yaml:2: model.compile | is true | allowed: blocks, model or null"),
    in_section(
        "no operator",
        "placement: {actions: ['selective:mm']}",
        ".yaml:5: placement.actions[0] | 'mm' names no operator | allowed: namespace.operator.overload",
    ),
    in_section(
        "two presets",
        "placement: {actions: ['selective:matmuls+every_second_matmul']}",
        ".yaml:5: placement.actions[0] | every_second_matmul | allowed: matmuls or | name one of the two",
    ),
    in_section(
        "offload with a unit",
        "placement: {actions: [offload+mlp]}",
        ".yaml:5: placement.actions[0] | is 'offload+mlp' | allowed: none, block | joined by +",
    ),
    in_section(
        "segment sizes",
        "placement: {actions: [none, block], segment_sizes: [2]}",
        ".yaml:5: placement.segment_sizes | is set | has no segment | add it there or remove",
    ),
    in_section(
        "ranks alone",
        "runner: {data_parallel_degree: 2}",
        ".yaml:5: runner.data_parallel_degree | is 2 | none has 1 rank | set the second to ddp",
    ),
    in_section(
        "ranks that do not divide",
        "runner: {data_parallel_degree: 3, strategy: ddp}",
        ".yaml:5: runner.data_parallel_degree | is 3 | allowed: 1, 2, 4, 8 | change one",
    ),
    in_section(
        "strategy",
        "runner: {strategy: fsdp}",
        ".yaml:5: runner.strategy | is 'fsdp' | allowed: none, ddp | mean fsdp2?",
    ),
    in_section(
        "resharding",
        "runner: {reshard_after_forward: search}",
        ".yaml:5: runner.reshard_after_forward | is search | allowed: true; | or set runner.strategy to fsdp2",
    ),
    in_section(
        "a part of a device",
        "runner: {resources_per_trial: {GPU: 0.5}}",
        ".yaml:5: runner.resources_per_trial | asks GPU: 0.5 | allowed: whole devices | distort each other",
    ),
    in_model(
        "a budget above one",
        "compile: blocks, compile_memory_budget: 1.5",
        ".yaml:2: model.compile_memory_budget | is 1.5 | allowed: a number from 0 to 1 | or a list",
    ),
    in_model(
        "a budget twice",
        "compile: blocks, compile_memory_budget: [0.5, 0.25, 0.5]",
        ".yaml:2: model.compile_memory_budget[2] | is 0.5, as | [0] is already | remove one of the two",
    ),
    in_search(
        "a budget for a target",
        "{factory: model.py:build}",
        "{factory: model.py:build, compile: model, compile_memory_budget: [0.5]}\nplacement: {target: megatron}",
        ".yaml:2: model.compile_memory_budget | is [0.5] | megatron cannot say | policy or null | remove",
    ),
    in_search(
        "compiled ranks",
        "{factory: model.py:build}",
        "{factory: model.py:build, compile: blocks}\nrunner: {strategy: ddp, data_parallel_degree: 2}",
        ".yaml:3: runner.strategy | is ddp, but model.compile is blocks | allowed together: | change one of the two",
    ),
    in_section(
        "selective of nothing",
        "placement: {actions: ['selective:']}",
        ".yaml:5: placement.actions[0] | is 'selective:' | allowed: selective | name",
    ),
    in_section(
        "selective and a unit",
        "placement: {actions: [selective+mlp]}",
        ".yaml:5: placement.actions[0] | is 'selective+mlp' | allowed: none, block | joined by +",
    ),
    in_section(
        "a unit of the user's that is not named",
        "placement: {units: {mlp: mlp}, actions: [attention, norm]}",
        ".yaml:5: placement.actions[0] | is 'attention', but placement.units has no attention | allowed: | joined by",
    ),
    in_section(
        "random numbers of a target",
        "placement: {target: accelerate, preserve_rng_state: true}",
        ".yaml:5: placement.preserve_rng_state | is true | accelerate can say false only | remove",
    ),
    in_section(
        "stages alone",
        "runner: {pipeline_stages: 2}",
        ".yaml:5: runner.pipeline_stages | is 2, but runner.strategy is none | allowed: 2 or more with pipeline",
    ),
    in_section(
        "a pipeline without stages",
        "runner: {strategy: pipeline}",
        "runner.pipeline_stages | is 1, but runner.strategy is pipeline | allowed: 2 or more | change one of the two",
    ),
    in_section(
        "more stages than samples",
        "runner: {strategy: pipeline, pipeline_stages: 9}",
        ".yaml:5: runner.pipeline_stages | is 9, but batch.global_batch_size is 8 | from 2 to 8 | lower the first",
    ),
    in_section(
        "replicas of a pipeline",
        "runner: {strategy: pipeline, pipeline_stages: 2, data_parallel_degree: 2}",
        ".yaml:5: runner.data_parallel_degree | is 2, but runner.strategy is pipeline | allowed: 1; | change one",
    ),
    in_section(
        "offload in a pipeline",
        "placement: {actions: [none, offload]}\nrunner: {strategy: pipeline, pipeline_stages: 2}",
        ".yaml:5: placement.actions[1] | is offload, but runner.strategy is pipeline | any other action | change one",
    ),
    in_section(
        "a pipeline for a target",
        "placement: {target: huggingface}\nrunner: {strategy: pipeline, pipeline_stages: 2}",
        ".yaml:5: placement.target | is huggingface, but runner.strategy is pipeline | null or policy | change one",
    ),
    in_search(
        "too few micro-batches for the stages",
        "sequence_length: 16}",
        "micro_batch_sizes: [2, 8], sequence_length: 16}\nrunner: {strategy: pipeline, pipeline_stages: 2}",
        ".yaml:3: batch.micro_batch_sizes[1] | is 8, which divides | into 1 | allowed: 1, 2, 4; | change one",
    ),
    in_search(
        "several lengths in a pipeline",
        "sequence_length: 16}",
        "sequence_length: [16, 32]}\nrunner: {strategy: pipeline, pipeline_stages: 2}",
        ".yaml:3: batch.sequence_length | is a list, but runner.strategy is pipeline | a single length | change one",
    ),
    in_search(
        "sizes that the ranks' parts do not allow",
        "sequence_length: 16}",
        "micro_batch_sizes: [8], sequence_length: 16}\nrunner: {strategy: fsdp2, data_parallel_degree: 2}",
        ".yaml:3: batch.micro_batch_sizes[0] | is 8 | the part of each of 2 ranks | allowed: 1, 2, 4; | change one",
    ),
    in_section(
        "an accelerator without one asked for",
        "runner: {device: cuda, resources_per_trial: {CPU: 1}}",
        ".yaml:5: runner.resources_per_trial | asks CPU, but runner.device cuda needs GPU | add GPU: 1",
    ),
    in_section(
        "one asked for and not used",
        "runner: {device: cpu, resources_per_trial: {NPU: 1}}",
        ".yaml:5: runner.resources_per_trial | asks NPU, but runner.device cpu uses no NPU | remove it or change",
    ),
    in_section(
        "no resources",
        "runner: {resources_per_trial: {CPU: 0}}",
        ".yaml:5: runner.resources_per_trial.CPU | is 0 | allowed: a number above 0",
    ),
    in_section(
        "priority", "runner: {priority: 0}", ".yaml:5: runner.priority | is 0 | allowed: a number above 0 and up to"
    ),
    in_section(
        "no trials at once",
        "runner: {max_parallel_trials: 0}",
        ".yaml:5: runner.max_parallel_trials | is 0 | allowed: a whole number of at least 1 or null",
    ),
    in_section(
        "isolation", "runner: {isolation: thread}", ".yaml:5: runner.isolation | is 'thread' | allowed: worker, process"
    ),
    in_section(
        "a bare time-out",
        "runner: {trial_timeout: 90}",
        ".yaml:5: runner.trial_timeout | is '90', a number without a unit | write 90s or 90m",
    ),
)

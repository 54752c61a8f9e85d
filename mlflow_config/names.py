"""Every metric, parameter, tag and artifact name that a study writes, once.

Metrics and parameters are called as in ``results.json``, which leaves the relative errors of predictions to its reader.
Names hold what MLflow allows and nothing else: letters, digits, ``_``, ``-``, ``.`` and space.
"""

from __future__ import annotations

# Metrics of a trial.
SAMPLES_PER_SECOND = "samples_per_second"
TOKENS_PER_SECOND = "tokens_per_second"
STEP_TIME_S = "step_time_s"
STEP_TIME_SPREAD_S = "step_time_spread_s"
NUM_STEPS = "num_steps"
RELATIVE_SPEED = "relative_speed"
RELATIVE_SPEED_SPREAD = "relative_speed_spread"
REFERENCE_STEP_TIME_S = "reference_step_time_s"
REFERENCE_DRIFT_RATIO = "reference_drift_ratio"
FORWARD_TIME_S = "forward_time_s"
BACKWARD_TIME_S = "backward_time_s"
RECOMPUTE_TIME_S = "recompute_time_s"
OPTIMIZER_TIME_S = "optimizer_time_s"
RECOMPUTED_FLOPS_RATIO = "recomputed_flops_ratio"
OFFLOADED_BYTES = "offloaded_bytes"
COMPILE_TIME_S = "compile_time_s"
NUM_RECOMPILES = "num_recompiles"
DEVICE_PROBE_S = "device_probe_s"
MFU = "mfu"
HFU = "hfu"
PEAK_MEMORY_BYTES = "peak_memory_bytes"
PEAK_ALLOCATED_BYTES = "peak_allocated_bytes"
PEAK_RESERVED_BYTES = "peak_reserved_bytes"
#: What each kind holds at the peak begins with it: `memory_bytes.activations` and so on.
MEMORY_BYTES = "memory_bytes"
#: What ranks sent each other begins with it: `communication.all_gather.calls` and so on.
COMMUNICATION = "communication"
STAGE_PEAK_MEMORY_BYTES = "stage_peak_memory_bytes"
PREDICTED_PEAK_MEMORY_BYTES = "predicted_peak_memory_bytes"
PREDICTED_STEP_TIME_S = "predicted_step_time_s"
PREDICTED_STEP_TIME_SPREAD_S = "predicted_step_time_spread_s"
#: Predicted over measured, minus one.
PREDICTED_PEAK_MEMORY_RELATIVE_ERROR = "predicted_peak_memory_relative_error"
PREDICTED_STEP_TIME_RELATIVE_ERROR = "predicted_step_time_relative_error"
VERIFICATION_MAX_RELATIVE_ERROR = "verification.max_relative_error"
VERIFICATION_TOLERANCE = "verification.tolerance"
VERIFICATION_NUM_STEPS = "verification.num_steps"
WALL_TIME_S = "wall_time_s"

# Parameters of a trial.
POLICY_KEY = "policy_key"
POLICY_SUMMARY = "policy_summary"
MICRO_BATCH_SIZE = "micro_batch_size"
GRADIENT_ACCUMULATION_STEPS = "gradient_accumulation_steps"
DATA_PARALLEL_DEGREE = "data_parallel_degree"
GLOBAL_BATCH_SIZE = "global_batch_size"
PRESERVE_RNG_STATE = "preserve_rng_state"
RESHARD_AFTER_FORWARD = "reshard_after_forward"
COMPILE_MEMORY_BUDGET = "compile_memory_budget"

# Parameters of a study.
MODEL = "model"
MEMORY_CAP_BYTES = "memory_cap_bytes"
SAMPLER = "sampler"
SEED = "seed"

# Metrics of a study.
NUM_TRIALS = "num_trials"
NUM_FEASIBLE_TRIALS = "num_feasible_trials"
NUM_FRONT_TRIALS = "num_front_trials"

# Tags of a trial. True and false are written as `true` and `false`.
STATUS = "status"
VERDICT = "verdict"
FEASIBLE = "feasible"
ON_FRONT = "on_front"
IS_BEST = "is_best"
REASON = "reason"
NODE = "node"
DEVICE = "device"
TRIAL_NUMBER = "trial_number"
VERIFICATION_REASON = "verification.reason"
VERIFICATION_REFERENCE = "verification.reference"
VERIFICATION_WORST_TENSOR = "verification.worst_tensor"

# Tags of a study; a trial carries the first one too.
STUDY = "study"
STUDY_ID = "study_id"
STOP_REASON = "stop_reason"
BEST_TRIAL = "best_trial"

#: Value of the tag `status` of a trial that its driver left behind.
STATUS_CANCELLED = "CANCELLED"

# Artifacts of a study. MLflow lists them by name: the front comes first.
FRONT_FILE = "front.html"
INSPECTION_FILE = "model.json"
POLICY_FILE = "policy.yaml"
REPORT_FILE = "report.html"
RESULTS_FILE = "results.json"
SEARCH_FILE = "search.yaml"
TRIALS_FILE = "trials.json"
UNIT_COSTS_FILE = "unit_costs.json"

#: Folder of the timelines.
TIMELINES = "timeline"

# Artifacts of a trial.
DETAIL_FILE = "detail.txt"


def placement_param(block_list: str) -> str:
    """Parameter with the short form of what one list of blocks recomputes."""
    return f"placement.{block_list}"


def timeline_file(step: str, extension: str) -> str:
    """Artifact of a study with the timeline of one of its steps, for example of its ``winner``."""
    return f"{TIMELINES}/{step}.{extension}"

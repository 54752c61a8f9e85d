#!/usr/bin/env bash
# Every check of the device on this machine, within 8 minutes on one GPU or NPU, as one JSON file with what was measured.
# usage: tests/device/run_all.sh [OUTPUT.json]
# exit code: 0 all passed, 1 some failed or were not reached, 3 there is no accelerator
set -u
output=$(realpath -m "${1:-device-checks.json}")
cd "$(dirname "$0")/../.." || exit 1
exec "${PYTHON:-python3}" tests/device/run_all.py "$output"

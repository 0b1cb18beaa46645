#!/usr/bin/env bash
# build.sh PRESET JOBS TARGET...: configures with a preset of CMakePresets.json when that is due
# and builds. `programs` stands for the two programs alone.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1 jobs=$2
shift 2
folder=build-$preset
[ "$preset" = dev ] && folder=build

# A folder configured with another Python, or half configured, is configured anew.
python=$PWD/.venv/bin/python
if [ ! -f "$folder/build.ninja" ] ||
  ! grep -qxF "PRIMERL_PYTHON:FILEPATH=$python" "$folder/CMakeCache.txt"; then
  cmake --preset "$preset" -DPRIMERL_PYTHON="$python"
fi
cmake --build "$folder" --parallel "$jobs" --target "$@"

#!/usr/bin/env bash
# build.sh PRESET JOBS TARGET...: configures with a preset of CMakePresets.json when that is due
# and builds. `programs` stands for the two programs alone. WERROR=ON makes warnings errors, OFF
# does not; left out, a folder stays as it is, and a new one takes warnings for what they are.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1 jobs=$2
shift 2
folder=build-$preset
[ "$preset" = dev ] && folder=build

# A folder configured with another Python or another WERROR, or half configured, is configured anew.
python=$PWD/.venv/bin/python
configured() { [ -f "$folder/build.ninja" ] && grep -qxF "$1" "$folder/CMakeCache.txt"; }
if ! configured "PRIMERL_PYTHON:FILEPATH=$python" ||
  { [ -n "${WERROR:-}" ] && ! configured "PRIMERL_WERROR:BOOL=$WERROR"; }; then
  cmake --preset "$preset" -DPRIMERL_PYTHON="$python" -DPRIMERL_WERROR="${WERROR:-OFF}"
fi
cmake --build "$folder" --parallel "$jobs" --target "$@"

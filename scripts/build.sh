#!/usr/bin/env bash
# build.sh PRESET JOBS TARGET...: configures with a preset of CMakePresets.json if needed
# and builds. `programs` means only the two programs. WERROR=ON makes warnings errors, OFF does not.
# Without it a configured folder keeps its setting, and a new one does not make warnings errors.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1 jobs=$2
shift 2
folder=build-$preset
[ "$preset" = dev ] && folder=build

# A folder is configured again if its Python or WERROR differs, or if it is half configured.
python=$PWD/.venv/bin/python
configured() { [ -f "$folder/build.ninja" ] && grep -qxF "$1" "$folder/CMakeCache.txt"; }
if ! configured "PRIMERL_PYTHON:FILEPATH=$python" ||
  { [ -n "${WERROR:-}" ] && ! configured "PRIMERL_WERROR:BOOL=$WERROR"; }; then
  cmake --preset "$preset" -DPRIMERL_PYTHON="$python" -DPRIMERL_WERROR="${WERROR:-OFF}"
fi
cmake --build "$folder" --parallel "$jobs" --target "$@"

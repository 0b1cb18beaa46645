#!/usr/bin/env bash
# run_tests.sh FOLDER JOBS REGEX [LABELS]: CTest, then one line 'N passed, N failed'. Fails when a
# test fails, and when one is skipped that tests/skips.txt does not allow (PRIMERL_SKIPS names
# another list). LABELS is a regular expression: 'unit|sim'. Without it all but `soak` are run.
set -uo pipefail
cd "$(dirname "$0")/.."
folder=$1 jobs=$2 regex=$3
chosen=(-R "$regex") complete=()
if [ -n "${4:-}" ]; then
  chosen+=(-L "^($4)\$")
else
  chosen+=(-LE '^soak$')
  [ "$regex" = . ] && complete=(complete)
fi
summary=$(realpath "$folder")/tests.xml
rm -rf "$summary" "$folder/gtest"
ctest --test-dir "$folder" --output-on-failure --no-tests=error -j "$jobs" "${chosen[@]}" \
  --output-junit "$summary"
status=$?
[ -f "$summary" ] || exit $((status == 0 ? 1 : status))
python3 scripts/judge_tests.py "$folder" "${PRIMERL_SKIPS:-tests/skips.txt}" "${complete[@]}"
judged=$?
exit $((status == 0 ? judged : status))

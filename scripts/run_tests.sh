#!/usr/bin/env bash
# run_tests.sh FOLDER JOBS REGEX [LABEL]: CTest, then one line 'N passed, N failed'.
set -uo pipefail
cd "$(dirname "$0")/.."
folder=$1 jobs=$2 regex=$3
labels=()
[ -n "${4:-}" ] && labels=(-L "^$4\$")
summary=$PWD/$folder/tests.xml
rm -f "$summary"
ctest --test-dir "$folder" --output-on-failure --no-tests=error -j "$jobs" -R "$regex" \
  "${labels[@]}" --output-junit "$summary"
status=$?
[ -f "$summary" ] || exit $((status == 0 ? 1 : status))

count() { grep -m1 -oP "\b$1=\"\K[0-9]+" "$summary" || echo 0; }
total=$(count tests) failed=$(count failures) skipped=$(count skipped) disabled=$(count disabled)
passed=$((total - failed - skipped - disabled))
line="$passed passed, $failed failed"
[ "$skipped" -gt 0 ] && line+=", $skipped skipped"
echo "$line"
exit $status

#!/usr/bin/env bash
# run_benches.sh FOLDER: the machine's line, then every *_bench program of the folder.
set -euo pipefail
cd "$(dirname "$0")/../$1"
echo "machine: $(grep -m1 -oP 'model name\s*: \K.*' /proc/cpuinfo), $(nproc) cores," \
  "$(awk '/MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo), Linux $(uname -r)"
shopt -s nullglob
for program in bin/*_bench; do
  echo "== ${program#bin/}"
  "$program" --benchmark_repetitions=3 --benchmark_report_aggregates_only=true
done

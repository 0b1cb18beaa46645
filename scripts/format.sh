#!/usr/bin/env bash
# clang-format over every C++ file of the tree.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v clang-format >/dev/null || {
  echo "format: error: clang-format is missing: apt-get install clang-format" >&2
  exit 1
}
git ls-files -co --exclude-standard '*.h' '*.cc' '*.cu' '*.cuh' | xargs -r clang-format -i

#!/usr/bin/env bash
# Compiles what needs CUDA on a machine without a CUDA device: kernels with nvcc, and the syntax of
# engine, learner, device tests and benches against the headers of the CPU build of PyTorch. It runs
# nothing. nvcc and the headers of the CUDA runtime come from PyPI, into build-cuda-check/.
#
#   scripts/check_cuda.sh           all files
#   scripts/check_cuda.sh FILE...   these files
#
# Files that were checked and have not changed since, with the headers that they read, are skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Wheels of one release of CUDA: nvcc, its front end's library, headers.
packages=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88
          nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85)
folder=$PWD/build-cuda-check
toolkit=$folder/site/nvidia/cu13
python=.venv/bin/python
[ -x "$python" ] || scripts/setup.sh
if [ ! -x "$toolkit/bin/nvcc" ]; then
  echo "installing nvcc 13.0 into $folder (100 MB)"
  "$python" -m pip install -q --no-deps --target "$folder/site" "${packages[@]}"
  chmod +x "$toolkit"/bin/* "$toolkit"/nvvm/bin/*
fi
where='import pathlib, torch; print(pathlib.Path(torch.__file__).parent / "include")'
torch=$("$python" -c "$where")
# The one header that a CUDA build of PyTorch generates.
mkdir -p "$folder/stub/c10/cuda/impl" "$folder/done"
printf '#pragma once\n#define C10_CUDA_BUILD_SHARED_LIBS\n' \
  >"$folder/stub/c10/cuda/impl/cuda_cmake_macros.h"

if [ $# -gt 0 ]; then
  files=("$@")
else
  mapfile -t files < <(ls kernels/cuda/ops/*.cu; find kernels/cuda tests/device bench/device \
    -name '*.cc' -not -path '*/aten/*')
fi

check() {
  local file=$1 mark=$folder/done/${1//\//_}
  if [ -f "$mark" ] && [ -z "$(find $(sed -e 's/^[^:]*://' -e 's/\\$//' "$mark") -newer "$mark" \
    2>&1 | head -1)" ]; then
    return 0
  fi
  # Hopper's own instructions are in one file alone.
  local arch=sm_90
  case $file in *grouped_fp8.cu) arch=sm_90a ;; esac
  case $file in
    *.cu)
      "$toolkit/bin/nvcc" -std=c++20 -I. "-gencode=arch=${arch/sm/compute},code=$arch" \
        -Xcompiler=-Wall,-Wextra -Werror=all-warnings -MD -MF "$mark.new" -c "$file" \
        -o "$folder/object.${BASHPID}.o" && rm -f "$folder/object.${BASHPID}.o"
      ;;
    *)
      g++ -std=c++20 -fsyntax-only -DPRIMERL_CUDA_ENGINE -DFMT_SHARED -DPRIMERL_SOURCE_DIR='""' \
        -DPRIMERL_WEIGHTS_CHILD='""' -Wall -Wextra -Wpedantic -Wshadow -I. \
        -idirafter "$torch" -isystem "$folder/stub" -isystem "$toolkit/include" \
        -MD -MF "$mark.new" "$file"
      ;;
  esac || { rm -f "$mark.new"; echo "does not compile: $file" >&2; return 1; }
  mv "$mark.new" "$mark"
}

export -f check
export folder toolkit torch
if printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "${JOBS:-$(nproc)}" bash -c 'check "$1"' _; then
  echo "${#files[@]} files compile for CUDA"
else
  exit 1
fi

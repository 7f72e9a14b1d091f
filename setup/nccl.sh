# shellcheck shell=bash
# Where Horovod's build finds CUDA and NCCL; sourced by setup/horovod.sh.
#
# PyTorch from PyPI brings NCCL as a package, under a name that no linker looks for, and the
# toolkit's headers, but no compiler. What the user has set stays as it is.

# use_packaged_nccl PYTHON FOLDER: sets the variables of Horovod's build where HOROVOD_GPU_OPERATIONS
# asks for NCCL, with links to its files in FOLDER.
use_packaged_nccl() {
    local python=$1 folder=$2 package
    [[ ${HOROVOD_GPU_OPERATIONS:-} = NCCL ]] || return 0

    if [[ -z ${HOROVOD_CUDA_HOME:-} ]]; then
        HOROVOD_CUDA_HOME=$(cuda_toolkit) || {
            echo "HOROVOD_GPU_OPERATIONS=NCCL needs a CUDA toolkit: set HOROVOD_CUDA_HOME to its folder" >&2
            return 1
        }
    fi
    # PyTorch guesses its own from where nvcc is linked.
    export HOROVOD_CUDA_HOME CUDA_HOME=${CUDA_HOME:-$HOROVOD_CUDA_HOME}
    export LIBRARY_PATH=$HOROVOD_CUDA_HOME/lib64${LIBRARY_PATH:+:$LIBRARY_PATH}

    [[ -z ${HOROVOD_NCCL_HOME:-}${HOROVOD_NCCL_INCLUDE:-} ]] || return 0
    package=$(nccl_package "$python")
    # Without the package, Horovod looks in the system's folders.
    [[ -n $package ]] || return 0
    mkdir -p "$folder/lib"
    ln -sfn "$package/include" "$folder/include"
    ln -sf "$package/lib/libnccl.so.2" "$folder/lib/libnccl.so"
    export HOROVOD_NCCL_HOME=$folder HOROVOD_NCCL_LINK=SHARED
}

# The folder of the package nvidia-nccl-cu12 or -cu13; nothing where there is none.
nccl_package() {
    "$1" - <<'PY'
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

# The first whole toolkit of CUDA_HOME, that of the compiler on PATH, and the usual folder. The compiler
# on PATH may be a script outside of it.
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

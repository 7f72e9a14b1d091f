#!/usr/bin/env bash
# Makes the image's virtual environment with setup/environment.sh, then removes what only building needs.
set -euo pipefail
export VENV=/opt/venv PIP_NO_CACHE_DIR=1
driver=/opt/driver
folders=/etc/ld.so.conf.d/hvdtrain.conf
mkdir "$driver"
: >"$folders"

# $1: name of PyTorch's index. PyPI has only the build for the newest CUDA.
torch_for() { export PIP_EXTRA_INDEX_URL=${TORCH_INDEX:-https://download.pytorch.org/whl/$1}; }

for_cuda() {
    # Replace pins by those for CUDA. The doctor in the image compares with this file, too.
    local pins=setup/stacks/all/constraints.txt
    awk -F '==' 'NR == FNR { print; pinned[$1]; next } !($1 in pinned)' docker/constraints-cuda.txt "$pins" >/tmp/constraints.txt
    mv /tmp/constraints.txt "$pins"
    # Horovod uses the NCCL that PyTorch installs, with its headers. The package lacks libnccl.so, which the linker needs:
    # make that link before the package is installed.
    local nvidia=$VENV/lib/python3.11/site-packages/nvidia
    ln -s "$nvidia/nccl/lib/libnccl.so.2" "$driver/libnccl.so"
    export HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_LINK=SHARED HOROVOD_CUDA_HOME=/usr
    export HOROVOD_NCCL_INCLUDE=$nvidia/nccl/include HOROVOD_NCCL_LIB=$driver
    # Debian's nvcc 11.8 supports g++ up to version 11, and CMake gives it the default compiler.
    export CC=gcc-11 CXX=g++-11 CUDAHOSTCXX=/usr/bin/g++-11
    # There is no driver during a build: the toolkit's stub replaces it when MXNet is imported.
    cp /usr/lib/x86_64-linux-gnu/stubs/libcuda.so "$driver/libcuda.so.1"
    # MXNet finds CUDA's libraries through the dynamic loader.
    printf '%s\n' "$nvidia"/{cublas,cuda_nvrtc,cuda_runtime,cudnn,cufft,curand,cusolver,cusparse,nccl,nvtx}/lib >"$folders"
    LD_LIBRARY_PATH=$driver$(sed 's/^/:/' "$folders" | tr -d '\n')
    export LD_LIBRARY_PATH
}

case $DEVICE in
    cpu)
        export HVDTRAIN_EXTRAS=${FRAMEWORKS:-pytorch,mxnet,tensorflow,mpi}
        torch_for cpu
        ;;
    cuda)
        export HVDTRAIN_EXTRAS=${FRAMEWORKS:-pytorch,mxnet-cu112,tensorflow-cuda,mpi}
        torch_for cu118
        for_cuda
        ;;
    *) echo "DEVICE=$DEVICE: give cpu or cuda" >&2; exit 2 ;;
esac
setup/environment.sh

site=$(echo "$VENV"/lib/python3*/site-packages)
# What only building needs. TensorFlow requires libclang but does not load it.
"$VENV/bin/pip" uninstall -q -y cmake libclang
find "$VENV" -name '*.a' -delete
rm -rf "$site"/{torch,tensorflow,mxnet}/include "$site"/torch/{test,share} "$site"/torch/bin/{*Test,test_*,protoc*} "$HOME/.cache"
# The packages' own tests.
find "$site" -type d -name tests -prune -exec rm -rf {} +
# Debugging symbols.
find "$site" -type f \( -path "$site/horovod/*.so" -o -path "$site/torch/lib/libtorch*.so" \
    -o -path "$site/tensorflow/libtensorflow*.so*" \) -exec strip --strip-unneeded {} +

#!/usr/bin/env bash
# The image's virtual environment, by the set-up that every machine has, and then without what only building needs.
set -euo pipefail
export VENV=/opt/venv PIP_NO_CACHE_DIR=1
driver=/opt/driver
folders=/etc/ld.so.conf.d/hvdtrain.conf
mkdir "$driver"
: >"$folders"

# $1: a build of PyTorch. On PyPI there is one only, for the newest CUDA.
torch_for() { export PIP_EXTRA_INDEX_URL=${TORCH_INDEX:-https://download.pytorch.org/whl/$1}; }

for_cuda() {
    # The pins for CUDA in the place of those of their names. The doctor of the image compares with them, too.
    awk -F '==' 'NR == FNR { print; pinned[$1]; next } !($1 in pinned)' docker/constraints-cuda.txt setup/constraints.txt \
        >/tmp/constraints.txt
    mv /tmp/constraints.txt setup/constraints.txt
    # Horovod joins gradients by the NCCL that PyTorch brings; its headers lie beside it. The package has no name for
    # the linker: give it one before it is there.
    local nvidia=$VENV/lib/python3.11/site-packages/nvidia
    ln -s "$nvidia/nccl/lib/libnccl.so.2" "$driver/libnccl.so"
    export HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_LINK=SHARED HOROVOD_CUDA_HOME=/usr
    export HOROVOD_NCCL_INCLUDE=$nvidia/nccl/include HOROVOD_NCCL_LIB=$driver
    # Debian's nvcc 11.8 takes no later g++ than 11, and CMake hands it the one that compiles all else.
    export CC=gcc-11 CXX=g++-11 CUDAHOSTCXX=/usr/bin/g++-11
    # A build has no driver: the toolkit's stub stands for it where MXNet is imported.
    cp /usr/lib/x86_64-linux-gnu/stubs/libcuda.so "$driver/libcuda.so.1"
    # MXNet looks for CUDA's libraries where the loader does.
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
# What only building needs. TensorFlow asks for libclang, and does not load it.
"$VENV/bin/pip" uninstall -q -y cmake libclang
find "$VENV" -name '*.a' -delete
rm -rf "$site"/{torch,tensorflow,mxnet}/include "$site"/torch/{test,share} "$site"/torch/bin/{*Test,test_*,protoc*} "$HOME/.cache"
# The libraries' own tests.
find "$site" -type d -name tests -prune -exec rm -rf {} +
# Symbols that only a debugger reads.
find "$site" -type f \( -path "$site/horovod/*.so" -o -path "$site/torch/lib/libtorch*.so" \
    -o -path "$site/tensorflow/libtensorflow*.so*" \) -exec strip --strip-unneeded {} +

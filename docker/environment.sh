#!/usr/bin/env bash
# The image's virtual environment, by the set-up that every machine has, and then without what only building needs.
set -euo pipefail
export VENV=/opt/venv PIP_NO_CACHE_DIR=1

for_cuda() {
    export HVDTRAIN_EXTRAS=${FRAMEWORKS:-pytorch,mxnet-cu112,tensorflow-cuda,mpi}
    export HVDTRAIN_CONSTRAINTS=/tmp/constraints.txt
    export PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cu118
    # The pins for CUDA come before those of their names in the other file.
    awk -F '==' 'NR == FNR { print; pinned[$1]; next } !($1 in pinned)' docker/constraints-cuda.txt setup/constraints.txt \
        >"$HVDTRAIN_CONSTRAINTS"
    # Horovod joins gradients by the NCCL that PyTorch brings; its headers lie beside it.
    local nvidia=$VENV/lib/python3.11/site-packages/nvidia
    export HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_LINK=SHARED HOROVOD_CUDA_HOME=/usr
    export HOROVOD_NCCL_INCLUDE=$nvidia/nccl/include HOROVOD_NCCL_LIB=$nvidia/nccl/lib
    # Debian's nvcc 11.8 takes g++ 11. A build has no driver: the toolkit's stub stands for it where MXNet is imported.
    export NVCC_PREPEND_FLAGS='-ccbin g++-11'
    mkdir -p /tmp/driver
    ln -sf /usr/lib/x86_64-linux-gnu/stubs/libcuda.so /tmp/driver/libcuda.so.1
    # MXNet looks for CUDA's libraries where the loader does.
    printf '%s\n' "$nvidia"/{cublas,cuda_nvrtc,cuda_runtime,cudnn,cufft,curand,cusolver,cusparse,nccl,nvtx}/lib \
        >/etc/ld.so.conf.d/hvdtrain.conf
    export LD_LIBRARY_PATH=/tmp/driver
    LD_LIBRARY_PATH+=$(sed 's/^/:/' /etc/ld.so.conf.d/hvdtrain.conf | tr -d '\n')
}

case $DEVICE in
    cpu)
        export HVDTRAIN_EXTRAS=${FRAMEWORKS:-pytorch,mxnet,tensorflow,mpi}
        : >/etc/ld.so.conf.d/hvdtrain.conf
        ;;
    cuda) for_cuda ;;
    *) echo "DEVICE=$DEVICE: give cpu or cuda" >&2; exit 2 ;;
esac
setup/environment.sh

site=$(echo "$VENV"/lib/python3*/site-packages)
"$VENV/bin/pip" uninstall -q -y cmake
# Headers and static libraries.
find "$VENV" -name '*.a' -delete
rm -rf "$site"/{torch,tensorflow,mxnet}/include "$site"/torch/{test,share} /root/.cache
# Symbols that only a debugger reads.
find "$site/horovod" -name '*.so' -exec strip --strip-unneeded {} +

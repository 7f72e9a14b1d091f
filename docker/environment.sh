#!/usr/bin/env bash
# Makes the image's virtual environment with setup/environment.sh, then removes what only building needs.
#
# It reads STACK, DEVICE, EXTRAS, TORCH_VERSION and TORCH_INDEX, which docker/Dockerfile describes, and /wheels.
set -euo pipefail
# uv leaves compiling to the first import, but nobody may write there then.
export VENV=/opt/venv PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1
constraints=setup/stacks/$STACK/constraints.txt
extra_index=${TORCH_INDEX:-}
torch=${TORCH_VERSION:-}
driver=/opt/driver
folders=/etc/ld.so.conf.d/hvdtrain.conf
mkdir "$driver"
: >"$folders"

die() { printf 'docker/environment.sh: %s\n' "$*" >&2; exit 2; }

# Extras of the stack that training needs: others are for tests and for export.
stack_extras() {
    # shellcheck source=/dev/null
    (source "setup/stacks/$STACK/stack.conf" && tr , '\n' <<<"$EXTRAS" | grep -vx -e dev -e onnx | paste -sd ,)
}

pip_install() { "$VENV/bin/python" -m pip install -q "$@"; }

# The folder of site-packages in which PyPI's CUDA libraries lie.
nvidia() { "$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib") + "/nvidia")'; }

# MXNet and its last CUDA. The toolkit is Debian's.
for_cuda_11() {
    # Replace pins by those for CUDA. The doctor in the image also compares with this file.
    awk -F '==' 'NR == FNR { print; pinned[$1]; next } !($1 in pinned)' docker/constraints-cuda.txt "$constraints" \
        >/tmp/constraints.txt
    mv /tmp/constraints.txt "$constraints"
    export HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_CUDA_HOME=/usr
    # Debian's nvcc 11.8 supports g++ up to version 11, and CMake gives it the default compiler.
    export CC=gcc-11 CXX=g++-11 CUDAHOSTCXX=/usr/bin/g++-11
    # There is no driver during a build: the toolkit's stub replaces it when MXNet is imported.
    cp /usr/lib/x86_64-linux-gnu/stubs/libcuda.so "$driver/libcuda.so.1"
    # MXNet finds CUDA's libraries through the dynamic loader.
    printf '%s\n' "$(nvidia)"/{cublas,cuda_nvrtc,cuda_runtime,cudnn,cufft,curand,cusolver,cusparse,nccl,nvtx}/lib >"$folders"
    LD_LIBRARY_PATH=$driver$(sed 's/^/:/' "$folders" | tr -d '\n')
    export LD_LIBRARY_PATH
}

# The CUDA of PyPI's PyTorch. PyPI also has its compiler, which goes into the folder that PyTorch's CUDA libraries share.
for_cuda_13() {
    local cuda
    cuda=$(nvidia)/cu13
    pip_install --no-deps --require-hashes -r docker/toolkit-cuda.txt
    # Names by which compilers look for what is there.
    ln -s lib "$cuda/lib64"
    ln -s libcudart.so.13 "$cuda/lib/libcudart.so"
    export HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_CUDA_HOME=$cuda
    # From Turing to Blackwell.
    export HOROVOD_BUILD_CUDA_CC_LIST=75,80,86,89,90,100,120
    # horovodrun looks at Horovod's libraries before PyTorch has loaded these.
    printf '%s\n' "$(nvidia)"/{cu13,nccl}/lib >"$folders"
}

python3 -m venv "$VENV"
case $STACK-$DEVICE in
    all-cpu | pytorch-cpu)
        # PyPI's build would bring along CUDA: an error is better. Each Python has a pin of its own.
        sed -i -E 's/^torch==[^ ;+]+/&+cpu/' "$constraints"
        : "${extra_index:=https://download.pytorch.org/whl/cpu}"
        ;;
    tensorflow-cpu) ;;
    all-cuda)
        : "${EXTRAS:=pytorch,mxnet-cu112,tensorflow-cuda,mpi,plots,report,web,completion,tensorboard}"
        : "${extra_index:=https://download.pytorch.org/whl/cu118}"
        for_cuda_11
        ;;
    pytorch-cuda) for_cuda_13 ;;
    tensorflow-cuda) die "STACK=tensorflow has no image for CUDA: give STACK=all, or DEVICE=cpu" ;;
    *) die "STACK=$STACK DEVICE=$DEVICE: give all, pytorch or tensorflow, and cpu or cuda" ;;
esac
if compgen -G "/wheels/*.whl" >/dev/null; then
    export PIP_FIND_LINKS=/wheels
    # Wheels of PyTorch replace its index.
    ! compgen -G "/wheels/torch-*.whl" >/dev/null || extra_index=''
    ! compgen -G "/wheels/horovod-*.whl" >/dev/null || export HOROVOD_WHEELS=/wheels
fi
[[ -z $torch ]] || sed -i -E "s/^torch==[^ ;]+/torch==$torch/" "$constraints"
[[ -z $extra_index ]] || export PIP_EXTRA_INDEX_URL=$extra_index
HVDTRAIN_EXTRAS=${EXTRAS:-$(stack_extras)} setup/environment.sh

site=$(echo "$VENV"/lib/python3*/site-packages)
for framework in torch mxnet tensorflow; do
    [[ ! -d $site/$framework ]] || echo "$framework"
done >"$VENV/.hvdtrain-frameworks"

# What only building needs. TensorFlow requires libclang but does not load it.
unneeded=(cmake libclang)
# Of a compiler that the image does not have: CUDA's, and Triton, which torch.compile uses together with a C compiler.
[[ $STACK-$DEVICE != pytorch-cuda ]] ||
    mapfile -O 2 -t unneeded < <(echo triton; sed -n 's/^\(nvidia.*\)==.*/\1/p' docker/toolkit-cuda.txt)
"$VENV/bin/python" -m pip uninstall -q -y "${unneeded[@]}"
find "$VENV" -name '*.a' -delete
rm -rf "$site"/{torch,tensorflow,mxnet}/include "$site"/torch/{test,share} "$site"/torch/bin/{*Test,test_*,protoc*} "$HOME/.cache"
if [[ -d $site/nvidia ]]; then
    # Headers, and a library and GPU code that PyTorch does not use: a solver on several GPUs, NVSHMEM inside kernels.
    find "$site/nvidia" -type d \( -name include -o -name cccl -o -name nvvm \) -prune -exec rm -rf {} +
    rm -f "$site"/nvidia/cu13/lib/libcusolverMg.so* "$site"/nvidia/nvshmem/lib/*.bc
fi
# The packages' own tests.
find "$site" -type d -name tests -prune -exec rm -rf {} +
# Debugging symbols.
find "$site" -type f \( -path "$site/horovod/*.so" -o -path "$site/torch/lib/libtorch*.so" \
    -o -path "$site/tensorflow/libtensorflow*.so*" \) -exec strip --strip-unneeded {} +

#!/usr/bin/env bash
# Builds, runs or tests the image of a stack: docker/image.sh {build [OPTIONS OF THE ENGINE'S BUILD...]|run|test}
#
#   STACK    all, pytorch or tensorflow (default: all)
#   DEVICE   cpu or cuda (default: cuda where nvidia-smi finds a GPU)
#   WHEELS   folder of wheels that the build uses beside the package indexes, such as PyTorch's or `make wheel`'s
#   NP       ranks (default: 2)
#   CMD      command to run instead of training
#   ENGINE   docker or podman (default: the first that answers)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() { printf 'docker/image.sh: %s\n' "$*" >&2; exit 2; }

# The first engine that works: a client alone, without a daemon that answers, does not.
engine() {
    local name mute=()
    for name in ${ENGINE:-docker podman}; do
        command -v "$name" >/dev/null || continue
        if "$name" version >/dev/null 2>&1; then
            printf '%s\n' "$name"
            return
        fi
        mute+=("$name")
    done
    if ((${#mute[@]})); then
        die "${mute[0]} is installed, but does not answer: start its daemon (systemctl start docker), or install podman, which needs none"
    fi
    die "no ${ENGINE:-docker and no podman} on PATH: install one (apt-get install podman); docs/docker.md says what podman needs in a container"
}

has_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; }

# Only the stack with MXNet and that of PyTorch have an image for CUDA.
default_device() { if [[ $stack != tensorflow ]] && has_gpu; then echo cuda; else echo cpu; fi; }

engine=$(engine)
stack=${STACK:-all}
[[ $stack = all || $stack = pytorch || $stack = tensorflow ]] || die "STACK=$stack: give all, pytorch or tensorflow"
device=${DEVICE:-$(default_device)}
[[ $device = cpu || $device = cuda ]] || die "DEVICE=$device: give cpu or cuda"
[[ $stack-$device != tensorflow-cuda ]] || die "STACK=tensorflow has no image for CUDA: give STACK=all, or DEVICE=cpu"
np=${NP:-2}
image=hvdtrain:$stack-$device
# shellcheck source=/dev/null
read -ra trained < <(source "setup/stacks/$stack/stack.conf" && echo "$FRAMEWORKS")
gpus=()
if [[ $device = cuda ]] && has_gpu; then
    if [[ $engine = docker ]]; then gpus=(--gpus all); else gpus=(--device nvidia.com/gpu=all); fi
fi
# Ranks of a host communicate through /dev/shm, of which a container has only 64 MB: use the host's. A volume keeps the runs.
run=("$engine" run --rm --ipc=host ${gpus[@]+"${gpus[@]}"} -v hvdtrain-runs:/home/hvdtrain/runs "$image")

is_built() {
    "$engine" image inspect "$image" >/dev/null 2>&1 ||
        die "there is no image $image: make docker-build STACK=$stack DEVICE=$device"
}

case ${1:-} in
    build)
        # Older versions of docker use BuildKit, which supports --mount, only if this is set.
        export DOCKER_BUILDKIT=1
        wheels=()
        if [[ -n ${WHEELS:-} ]]; then
            compgen -G "$WHEELS/*.whl" >/dev/null || die "WHEELS=$WHEELS is not a folder with wheels"
            wheels=(--build-context "wheels=$(cd "$WHEELS" && pwd)")
        fi
        exec "$engine" build -f docker/Dockerfile --build-arg "STACK=$stack" --build-arg "DEVICE=$device" \
            ${wheels[@]+"${wheels[@]}"} -t "$image" "${@:2}" .
        ;;
    run)
        is_built
        if [[ -n ${CMD:-} ]]; then
            exec "${run[@]}" bash -c "$CMD"
        fi
        exec "${run[@]}" horovodrun -np "$np" python -m "hvdtrain.${trained[0]}_lenet"
        ;;
    test)
        is_built
        "${run[@]}" python -m hvdtrain doctor
        for framework in "${trained[@]}"; do
            "${run[@]}" horovodrun -np "$np" python -m "hvdtrain.${framework}_lenet" --max-steps 20
        done
        ;;
    *) die "usage: docker/image.sh {build|run|test}" ;;
esac

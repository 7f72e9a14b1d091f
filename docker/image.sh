#!/usr/bin/env bash
# Builds, runs or tests the image: docker/image.sh {build|run|test}
#
#   DEVICE   cpu or cuda (default: cuda where nvidia-smi finds a GPU)
#   NP       ranks (default: 2)
#   CMD      what to run instead of training
#   ENGINE   docker or podman (default: the first that is there)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() { printf 'docker/image.sh: %s\n' "$*" >&2; exit 2; }

engine() {
    local name
    for name in ${ENGINE:-docker podman}; do
        if command -v "$name" >/dev/null; then
            # A client without its daemon is no engine.
            "$name" version >/dev/null 2>&1 || die "$name is installed, but does not answer: start its daemon, or give ENGINE=podman"
            printf '%s\n' "$name"
            return
        fi
    done
    die "neither docker nor podman is on PATH: install one of them (apt-get install podman), or build as docs/docker.md says"
}

has_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; }

engine=$(engine)
device=${DEVICE:-$(has_gpu && echo cuda || echo cpu)}
[[ $device = cpu || $device = cuda ]] || die "DEVICE=$device: give cpu or cuda"
np=${NP:-2}
image=hvdtrain:$device
gpus=()
if [[ $device = cuda ]] && has_gpu; then
    if [[ $engine = docker ]]; then gpus=(--gpus all); else gpus=(--device nvidia.com/gpu=all); fi
fi
# Ranks of a host share memory in /dev/shm, of which a container has 64 MB: take the host's.
run=("$engine" run --rm --ipc=host ${gpus[@]+"${gpus[@]}"} "$image")

case ${1:-} in
    build) exec "$engine" build -f docker/Dockerfile --build-arg "DEVICE=$device" -t "$image" . ;;
    run)
        "$engine" image inspect "$image" >/dev/null 2>&1 || die "there is no image $image: make docker-build DEVICE=$device"
        if [[ -n ${CMD:-} ]]; then
            exec "${run[@]}" bash -c "$CMD"
        fi
        exec "${run[@]}" horovodrun -np "$np" python -m hvdtrain.mxnet_lenet
        ;;
    test)
        "${run[@]}" python -m hvdtrain doctor
        for framework in torch mxnet tensorflow; do
            "${run[@]}" horovodrun -np "$np" python -m "hvdtrain.${framework}_lenet" --max-steps 20
        done
        ;;
    *) die "say build, run or test" ;;
esac

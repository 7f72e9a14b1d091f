#!/usr/bin/env bash
# The image's virtual environment, by the set-up that every machine has, and then without what only building needs.
set -euo pipefail
export VENV=/opt/venv PIP_NO_CACHE_DIR=1
case $DEVICE in
    cpu) export HVDTRAIN_EXTRAS=${FRAMEWORKS:-pytorch,mxnet,tensorflow,mpi} ;;
    cuda)
        export HVDTRAIN_EXTRAS=${FRAMEWORKS:-pytorch,mxnet-cu112,tensorflow-cuda,mpi}
        export HVDTRAIN_CONSTRAINTS=setup/constraints-cuda.txt
        export PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cu118
        export HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_LINK=SHARED
        ;;
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

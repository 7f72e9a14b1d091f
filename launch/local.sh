#!/usr/bin/env bash
# Wrapper of hvdtrain's launcher on this machine: launch/local.sh -n 2 -- python -m hvdtrain.torch_lenet
exec python -m hvdtrain launch local "$@"

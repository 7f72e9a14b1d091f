#!/usr/bin/env bash
# Starts training on this machine alone: launch/local.sh -n 2 -- python -m hvdtrain.torch_lenet
exec python -m hvdtrain launch local "$@"

#!/usr/bin/env bash
# Starts training on the nodes of a Slurm allocation: launch/srun.sh -n 2 -- python -m hvdtrain.torch_lenet
exec python -m hvdtrain launch srun "$@"

#!/usr/bin/env bash
# Wrapper of hvdtrain's launcher with srun, in a Slurm allocation: launch/srun.sh -n 2 -- python -m hvdtrain.torch_lenet
exec python -m hvdtrain launch srun "$@"

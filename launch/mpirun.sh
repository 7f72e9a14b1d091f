#!/usr/bin/env bash
# Wrapper of hvdtrain's launcher with mpirun: launch/mpirun.sh -n 4 -H node1:2,node2:2 -- python -m hvdtrain.torch_lenet
exec python -m hvdtrain launch mpirun "$@"

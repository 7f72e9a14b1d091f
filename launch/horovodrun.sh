#!/usr/bin/env bash
# Wrapper of hvdtrain's launcher with horovodrun: launch/horovodrun.sh -n 4 -H node1:2,node2:2 -- python -m hvdtrain.mxnet_lenet
exec python -m hvdtrain launch horovodrun "$@"

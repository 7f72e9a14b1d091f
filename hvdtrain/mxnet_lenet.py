"""LeNet in MXNet, on as many processes as a launcher starts.

One process:          python -m hvdtrain.mxnet_lenet
Two on this host:     python -m hvdtrain.mxnet_lenet -n 2
Eight, Gloo:          horovodrun --gloo -np 8 python -m hvdtrain.mxnet_lenet
Eight, Open MPI:      horovodrun --mpi -np 8 python -m hvdtrain.mxnet_lenet
Open MPI alone:       mpirun -np 8 --oversubscribe --bind-to none python -m hvdtrain.mxnet_lenet
Two hosts:            horovodrun -np 8 -H host1:4,host2:4 python -m hvdtrain.mxnet_lenet
The book's training:  horovodrun -np 2 python -m hvdtrain.mxnet_lenet --recipe book
All options:          python -m hvdtrain.mxnet_lenet --help all
"""

from hvdtrain.__main__ import main

if __name__ == "__main__":
    main(framework="mxnet", program="python -m hvdtrain.mxnet_lenet")

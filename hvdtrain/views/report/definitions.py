"""What each figure of the report means."""

from __future__ import annotations

NONE = "—"
NOTE = "settings that differ from most runs"

DEFINITIONS = (
    (
        "Row",
        "Runs that are repetitions of each other: same framework, strategy, ranks, devices, layers, settings, "
        "OMP_NUM_THREADS and machine, which is the host of rank 0. Seeds may differ.",
    ),
    (
        "Most images/s, fastest",
        "The row of the largest median of images/s in its table. It is called the fastest if all its repetitions were "
        "faster than all those of the others, and no row ran only once.",
    ),
    (
        "Images/s per core",
        "Images/s divided by the CPU cores that the job computes with: the threads (OMP_NUM_THREADS) of all devices of "
        "all ranks, but on each host no more than the cores that its ranks may use. Not on GPUs.",
    ),
    (
        "GFLOP/s per core",
        "Images/s per core times the floating-point operations of an image, in 10^9: 2 for each multiplication and "
        "addition of a convolution or dense layer in forward, and twice as many in backward, without those for the "
        "gradient of the images (Chowdhery et al., PaLM, 2022, appendix B). Not on GPUs.",
    ),
    (
        "Step: computing / communication / waiting for rows",
        "The median time of a step, and the shares of its parts: of all ranks together, without the first logging "
        "interval, the mean of the runs. Communication is the time from a rank's last gradient until all are combined, "
        "so what overlaps computing counts as computing; it is unknown where the strategy cannot tell it.",
    ),
    (
        "Scaling efficiency",
        "S / p for p replicas, where the speedup S is images/s divided by those of the base: the row of one replica "
        "with strategy single, else with the same strategy, of the same framework, precision, network, data, threads "
        "and machine. Strong: the base has the same global batch (Amdahl, AFIPS 1967). Weak, which is named: it has "
        "the batch of one replica (Gustafson, CACM 31(5), 1988).",
    ),
    (
        "Test accuracy, and other scores",
        "The score of a run is the metric that --score names, else its accuracy, else its test loss, after the last "
        "step: the median of the runs, and their minimum and maximum. The 95 % interval of an accuracy is what chance "
        "in the choice of the test rows gives around the median (Wilson, JASA 22(158), 1927).",
    ),
    (
        "Max difference",
        "max |a - b| over all parameters at the last step, where b is a run with strategy single of the same "
        "framework, else of the one named, with the same data, seed, network, batches and options. The maximum of "
        "the runs.",
    ),
    (
        "Hash of weights",
        "The first 16 hexadecimal digits of a SHA-256 over all parameters at the last step. Runs with --shards and the "
        "same options are to have the same one: only framework and device must be equal.",
    ),
    (
        "Test accuracy of classes",
        "By the name that the data gives a class: the median of all runs, with minimum and maximum, where there are at "
        "most 20 classes.",
    ),
    (
        "Time of each rank",
        "As the parts of a step, for each rank: the one that communicates least is the one that the others wait for.",
    ),
    (NONE, "Not measured, or no run to compare with."),
)

"""What each figure of the report means."""

from __future__ import annotations

NONE = "—"

NOTE = "settings that differ from most runs"

DEFINITIONS = (
    (
        "Row",
        "Runs that are repetitions of each other: same framework, strategy, ranks, devices, layers, settings, "
        "OMP_NUM_THREADS and machine. Seeds may differ. Where runs of one --model differ in their layers, a checksum "
        "names these.",
    ),
    (
        "Most images/s, fastest",
        "The row of the largest median of images/s in its table: of one framework, data set, network and machine. It "
        "is called the fastest if all its repetitions were faster than all those of the others, and no row ran only "
        "once. The range of a ratio of speeds is that of the extremes of both rows.",
    ),
    ("Machine", "The host of rank 0."),
    ("Ranks × devices", "Processes, times the devices of each; p, the number of replicas, is their product."),
    (
        "Images/s",
        "Training images per second (of tasks and scripts: rows/s) over all ranks: the median interval of a run. Over "
        "several runs, the median, minimum and maximum.",
    ),
    ("Epoch", "Training time of one epoch in seconds, on the slowest rank; the median of the runs."),
    (
        "Images/s per core",
        "Images/s divided by the CPU cores that the job computes with: the threads (OMP_NUM_THREADS) of all devices of "
        "all ranks, but on each host no more than the cores that its ranks may use. The median of the runs; none on "
        "GPUs.",
    ),
    (
        "GFLOP/s per core",
        "Images/s per core times the floating-point operations of an image, in 10^9: 2 for each multiplication and "
        "addition of a convolution or dense layer in forward, and twice as many in backward, without those for the "
        "gradient of the images (as for model FLOPs utilization: Chowdhery et al., PaLM, 2022, appendix B). The peak "
        "of a core in float32 is its clock rate times 32 with AVX2 and two units for fused multiply-add. The median of "
        "the runs; none on GPUs.",
    ),
    (
        "Step: computing / communication / waiting for rows",
        "The median time of a step, and the shares that its parts take: of all ranks together, without the first "
        "logging interval, the mean of the runs. Communication is the time from a rank's last gradient until all are "
        "combined (transfer, and waiting for other ranks), so what overlaps computing counts as computing. It is "
        "unknown, and counts as computing, where the strategy cannot tell it: with several devices in a process, on "
        "GPUs, and where the framework communicates by itself. Computing also has the update and hvdtrain's own loop.",
    ),
    (
        "Scaling efficiency",
        "S / p, where the speedup S is images/s divided by the images/s of the base: the row of one replica with "
        "strategy single, else with the same strategy, of the same framework, precision, network, data, "
        "OMP_NUM_THREADS and machine. "
        "Strong: the base has the same global batch (Amdahl, Validity of the single processor approach to achieving "
        "large scale computing capabilities, AFIPS 1967). Weak: the base has the batch of one replica (Gustafson, "
        "Reevaluating Amdahl's law, CACM 31(5), 1988). With bases of both kinds, a run with --batch-scope per-rank is "
        "compared with the weak one. 1 is ideal; weak scaling is named, and a row of one replica has none.",
    ),
    (
        "Karp–Flatt serial fraction",
        "e = (1/S - 1/p) / (1 - 1/p), for strong scaling with p above 1: the part of the work that would have to be "
        "serial to explain S. If it grows with p, communication limits the speed rather than serial work; below 0, the "
        "speedup exceeds p; above 1, the job is slower than its base (Karp and Flatt, Measuring parallel processor "
        "performance, CACM 33(5), 1990).",
    ),
    ("Peak memory", "The largest resident set of any rank, in MB of 2^20 bytes; the maximum of the runs."),
    (
        "Test accuracy, and other scores",
        "The score of a run is the metric that --score names, else its accuracy, else its test loss, after the last "
        "step: the median of the runs, and their minimum and maximum. Accuracy is the share of test images classified "
        "correctly. Its 95 % interval is what chance in the choice of the test rows gives around the median (Wilson, "
        "Probable inference, the law of succession, and statistical inference, JASA 22(158), 1927): rows whose "
        "intervals overlap do not differ by more than that. Other seeds vary it further. A task's own accuracy varies "
        "less where a row is right in parts. Of many rows, a few differ so by chance.",
    ),
    (
        "Max difference",
        "max |a - b| over all parameters at the last step, where b is a run with strategy single: of the same "
        "framework, else of the one named; with the same data, seed, initial weights, network, global batch, learning "
        "rate, other options and number of steps. The maximum of the runs; compression may differ.",
    ),
    (
        "Hash of weights",
        "The first 16 hexadecimal digits of a SHA-256 over names, shapes and bits of all parameters at the last step "
        "(and with --shards of the running statistics), as in result.json. Runs with --shards and the same options are "
        "to have the same one: only framework and device must be equal, not ranks, strategy or launcher.",
    ),
    (
        "Learning curves",
        "The losses and the metrics that a run wrote to metrics.jsonl. Of many rows, the lines have the colors of "
        "their frameworks, and those that end with the lowest and the highest loss are named. Long curves are drawn as "
        "means of neighboring values. The band around accuracies is their 95 % interval.",
    ),
    (
        "Time of each rank",
        "Of all training steps but those of the first logging interval: the shares in which a rank computes, "
        "communicates (from its last gradient until all are combined: transfer, and waiting for other ranks) and waits "
        "for rows. The rank that communicates least is the one that the others wait for. Where the strategy cannot "
        "tell communication from computing, both are one part.",
    ),
    (
        "Changes of ranks",
        "In a job that survives lost ranks: which were lost and joined, for how long training paused, and how many "
        "steps were done again for that; shards that moved between ranks; and with --audit, shards that a second rank "
        "computed to other bits.",
    ),
    (NONE, "Not measured, or no run to compare with."),
    (
        "Test accuracy of classes",
        "For each class, by the name that the data gives it: the median of all runs, with minimum and maximum. The 20 "
        "classes of the lowest accuracy are listed.",
    ),
)

"""PyTorch as in Horovod's own MNIST example: Dataset, DistributedSampler, DataLoader, the loss read in ten steps."""

import bare
import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Images(Dataset):
    """One image at a time, as torchvision's data sets give them."""

    def __init__(self, images, labels):
        self.images, self.labels = (images * 255).astype("uint8"), labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, row):
        return torch.from_numpy(self.images[row]).to(torch.float32).div(255), int(self.labels[row])


name, steps = bare.arguments()
hvd.init()
torch.set_num_threads(1)
images, labels, weights = bare.load(name)
dataset = Images(images, labels)
sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(dataset, batch_size=bare.GLOBAL_BATCH // hvd.size(), sampler=sampler, drop_last=True)
net = nn.Sequential(
    nn.Conv2d(1, 20, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
    nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10),
)  # fmt: skip
hvd.broadcast_parameters(net.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(net.parameters(), lr=bare.LR), named_parameters=net.named_parameters()
)
clock, step, epoch = bare.Clock(), 0, 0
while step < steps:
    sampler.set_epoch(epoch)
    epoch += 1
    for batch, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(batch), target)
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            loss.item()
        clock.tick(step, loss.item)
        step += 1
        if step == steps:
            break
if hvd.rank() == 0:
    clock.report()

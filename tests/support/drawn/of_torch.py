"""Pieces of models, losses and scripts in PyTorch, for `drawn_models`."""

from __future__ import annotations

import contextlib
import functools
import os
import random
from typing import Any

import numpy as np
import torch
from support.drawn_models import BATCH, CLASSES, FEATURES, LR, Drawn, Piece, PlainRun
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

STRATEGIES = ("ring", "ring", "horovod", "ddp")


def linear() -> nn.Linear:
    return nn.Linear(FEATURES, FEATURES)


class Layer(nn.Module):
    """A layer, and a function of this module and its inputs; buffers by their names."""

    def __init__(self, function, layer=linear, **buffers):
        super().__init__()
        self.function, self.layer = function, layer()
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x):
        return self.function(self, x)


# A: gradients in the forward pass, checkpoints of activations, rows that depend on each other.
def forces(module, x):
    x = x if x.requires_grad else x.requires_grad_(True)
    energy = torch.tanh(module.layer(x)).sum()
    return torch.autograd.grad(energy, x, create_graph=True)[0]


def enabled_forces(module, x):
    with torch.enable_grad():
        return forces(module, x)


def backward_inside(module, x):
    """Its own backward pass of a copy of its inputs, whose gradient is a factor."""
    with torch.enable_grad():
        copy = x.detach().requires_grad_(True)
        copy.tanh().sum().backward()
    return module.layer(x) * copy.grad


def checkpointed(reentrant):
    def forward(module, x):
        return checkpoint(module.layer, torch.tanh(x), use_reentrant=reentrant)

    return forward


def fixed_batch(module, x):
    return module.layer(x + 0.1 * x.view(BATCH, FEATURES).mean(0))


def stateful(module, x):
    if module.training:
        module.state.copy_((0.5 * module.state + x.detach()).view(BATCH, FEATURES))
    return module.layer(x + 0.1 * module.state.mean(0))


# B: weights and buffers that the forward pass changes.
def changing(change, always=False, by_data=False):
    def forward(module, x):
        if module.training or always:
            weight = module.layer.weight
            if by_data:
                weight.data = change(weight.data.clone())
            else:
                with torch.no_grad():
                    weight.copy_(change(weight))
        return module.layer(x)

    return lambda: Layer(forward)


def normalized(weight):
    return weight / weight.norm()


class Looked(nn.Module):
    """Looks up rows of an embedding by the signs of its inputs."""

    def __init__(self, **options):
        super().__init__()
        self.table = nn.Embedding(8, FEATURES, **options)

    def forward(self, x):
        numbers = ((x[:, :3] > 0).long() * torch.tensor([4, 2, 1])).sum(1)
        return x + self.table(numbers)


def bag():
    class Bag(Looked):
        def __init__(self):
            super().__init__()
            self.table = nn.EmbeddingBag(8, FEATURES, max_norm=0.5)

        def forward(self, x):
            return x + self.table((x[:, :4] > 0).long() + 2)

    return Bag()


def centered(module, x):
    module.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    return module.layer(x - module.mean)


def counted(module, x):
    module.calls += 1
    return module.layer(x) / (1 + 0.01 * module.calls)


class Always(nn.BatchNorm1d):
    """Normalizes by the rows in evaluations, too."""

    def train(self, mode=True):
        return super().train(True)


def as_float(buffer):
    return (buffer.real if buffer.is_complex() else buffer).float()


def buffered(dtype, changes):
    def forward(module, x):
        if changes and module.training:
            module.kept.copy_(~module.kept if dtype is torch.bool else module.kept + 1)
        return module.layer(x * (as_float(module.kept) + 1) / 4)

    return lambda: Layer(forward, kept=torch.ones(FEATURES).to(dtype))


def resized(module, x):
    if not len(module.kept):
        module.kept.resize_(FEATURES).fill_(0)
    if module.training:
        module.kept.lerp_(x.detach().mean(0), 0.2)
    return module.layer(x - module.kept)


def quantization_aware(backend):
    def make():
        import torch.ao.quantization as quantization

        model = nn.Sequential(quantization.QuantStub(), linear(), nn.ReLU(), linear(), quantization.DeQuantStub())
        model.qconfig = quantization.get_default_qat_qconfig(backend)
        return quantization.prepare_qat(model.train())

    return make


class Noisy(nn.Module):
    """Draws in training, by all generators."""

    def forward(self, x):
        return x + 0.1 * torch.randn_like(x) * np.random.rand() * random.random() if self.training else x


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = linear(), linear()
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class Branch(nn.Module):
    """A layer of training only, one that is frozen and one that is not used."""

    def __init__(self):
        super().__init__()
        self.main, self.extra, self.unused = linear(), linear(), linear()
        self.frozen = linear().requires_grad_(False)

    def forward(self, x):
        x = self.frozen(self.main(x))
        return x + self.extra(x) if self.training else x


DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float64", "complex64")
ODD = functools.partial(Piece, refused=True)
STATE = functools.partial(Piece, by_row=False, refused=True)
EVALUATED = functools.partial(Piece, by_row=False, refused=True, in_evaluation=True)
PIECES = {
    "linear": Piece(linear),
    "shared": Piece(Shared),
    "branch": Piece(Branch),
    "weight norm": Piece(lambda: parametrizations.weight_norm(linear())),
    "layer norm": Piece(lambda: nn.LayerNorm(FEATURES)),
    "dropout": Piece(lambda: nn.Dropout(0.3), draws=True),
    "noise": Piece(Noisy, draws=True),
    "forces": ODD(lambda: Layer(forces)),
    "enabled forces": Piece(lambda: Layer(enabled_forces)),
    "backward inside": ODD(lambda: Layer(backward_inside)),
    "reentrant checkpoint": Piece(lambda: Layer(checkpointed(True))),
    "checkpoint": Piece(lambda: Layer(checkpointed(False))),
    "batch norm": STATE(lambda: nn.BatchNorm1d(FEATURES)),
    "batch norm without momentum": STATE(lambda: nn.BatchNorm1d(FEATURES, momentum=None)),
    "batch norm without statistics": STATE(lambda: nn.BatchNorm1d(FEATURES, track_running_stats=False)),
    "frozen batch norm": Piece(lambda: nn.Sequential(nn.BatchNorm1d(FEATURES), linear()).eval()),
    "always batch norm": EVALUATED(lambda: Always(FEATURES)),
    "fixed batch": STATE(lambda: Layer(fixed_batch), fixed=True),
    "stateful": STATE(lambda: Layer(stateful, state=torch.zeros(BATCH, FEATURES)), fixed=True),
    "normalized weight": ODD(changing(normalized)),
    "always normalized weight": ODD(changing(normalized, always=True), in_evaluation=True),
    "clamped weight": ODD(changing(lambda weight: weight.clamp(-0.3, 0.3))),
    "clamped weight, always": ODD(changing(lambda weight: weight.clamp(-0.3, 0.3), always=True), in_evaluation=True),
    "decayed weight": STATE(changing(lambda weight: 0.9 * weight)),
    "weight by data": ODD(changing(normalized, by_data=True)),
    "spectral norm": STATE(lambda: parametrizations.spectral_norm(linear())),
    "old spectral norm": STATE(lambda: nn.utils.spectral_norm(linear())),
    "embedding": Piece(Looked),
    "largest norm": ODD(lambda: Looked(max_norm=0.5), in_evaluation=True),
    "largest norm of a bag": ODD(bag, in_evaluation=True),
    "centered": EVALUATED(lambda: Layer(centered, mean=torch.zeros(FEATURES))),
    "counted": EVALUATED(lambda: Layer(counted, calls=torch.zeros((), dtype=torch.int64))),
    "resized buffer": STATE(lambda: Layer(resized, kept=torch.zeros(0))),
    "quantization fbgemm": STATE(quantization_aware("fbgemm"), coarse=True),
    "quantization x86": STATE(quantization_aware("x86"), coarse=True),
    "quantization qnnpack": STATE(quantization_aware("qnnpack"), coarse=True),
    **{f"buffer {name}": Piece(buffered(getattr(torch, name), False)) for name in DTYPES},
    **{f"changing buffer {name}": STATE(buffered(getattr(torch, name), True)) for name in DTYPES},
}


def cross_entropy(outputs, labels):
    return nn.functional.cross_entropy(outputs, labels, reduction="none")


def penalty_of_outputs(outputs, labels):
    """With the square of its gradient."""
    losses = cross_entropy(outputs, labels)
    (slope,) = torch.autograd.grad(losses.sum(), outputs, create_graph=True)
    return losses + slope.pow(2).sum(1)


def enabled_penalty(outputs, labels):
    with torch.enable_grad():
        free = outputs if outputs.requires_grad else outputs.requires_grad_(True)
        return penalty_of_outputs(free, labels)


LOSSES = {
    "plain": Piece(cross_entropy),
    "penalty of outputs": ODD(penalty_of_outputs),
    "enabled penalty of outputs": Piece(enabled_penalty),
    "squares": Piece(lambda outputs, labels: ((outputs - nn.functional.one_hot(labels, CLASSES)) ** 2).sum(1)),
}
ODDS = {
    "own backward": ODD(None),
    "own backward of the model": ODD(None),
    "chdir first": Piece(None),
    "chdir after setup": Piece(None),
    "chdir in the loop": Piece(None),
    "look": STATE(None),
    "look in evaluation mode": Piece(None, in_evaluation=True),
    "called twice": Piece(None, by_row=True, refused=True),
    "zeroed": Piece(None),
    "schedule": Piece(None),
    "clamped after the step": Piece(None),
    "clamped before the step": ODD(None),
    "gradient of inputs": ODD(None),
    "two models": Piece(None),
    "loop over epochs": Piece(None),
    "left early": Piece(None),
    "metrics": Piece(None),
    "evaluates in training mode": EVALUATED(None),
    "evaluates with gradients": Piece(None),
    "evaluates with bare gradients": ODD(None),
    "draws in evaluations": Piece(None, draws=True),
    "logs": Piece(None),
}


def model_of(drawn: Drawn) -> nn.Module:
    body = [layer for name in drawn.pieces for layer in (PIECES[name].make(), nn.Tanh())]
    return nn.Sequential(linear(), nn.Tanh(), *body, nn.Linear(FEATURES, CLASSES))


class Task:
    drawn: Drawn
    losses = property(lambda self: LOSSES[self.drawn.losses].make)

    def data(self):
        return self.drawn.data

    def model(self):
        return model_of(self.drawn)


class Two(nn.Module):
    """Two models, of which one gets the outputs of the other."""

    def __init__(self, first):
        super().__init__()
        self.models = nn.ModuleList([linear(), first])

    def forward(self, x):
        return self.models[1](torch.tanh(self.models[0](x)))


def script(drawn: Drawn, run: Any) -> None:
    """A script's training, by hvdtrain's run or a PlainRun."""
    odds, losses_of = {*(drawn.odds or ())}, LOSSES[drawn.losses].make

    def move(when: str) -> None:
        if when in odds:
            os.makedirs("elsewhere", exist_ok=True)
            os.chdir("elsewhere")

    model = Two(model_of(drawn)) if "two models" in odds else model_of(drawn)
    inner = model
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model, optimizer = run.setup(model, torch.optim.SGD(parameters, LR, 0.9), unused_parameters=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) if "schedule" in odds else None
    if schedule:
        run.register(schedule=schedule)
    move("chdir after setup")

    def clamp() -> None:
        with torch.no_grad():
            inner.get_parameter(last).clamp_(-0.3, 0.3)

    last = [name for name, _ in inner.named_parameters()][-2]

    def evaluate(numbers, labels):
        if "evaluates in training mode" in odds:
            model.train()
        if "draws in evaluations" in odds:
            numbers = numbers + torch.randn_like(numbers)
        if odds & {"evaluates with gradients", "evaluates with bare gradients"}:
            bare = "evaluates with bare gradients" in odds
            with contextlib.nullcontext() if bare else torch.enable_grad():
                numbers = numbers.requires_grad_(True)
                torch.autograd.grad(model(numbers).sum(), numbers)
        outputs = model(numbers)
        losses = losses_of(outputs, labels)
        return (losses, {"right": outputs.argmax(1) == labels}) if "metrics" in odds else losses

    def losses(numbers, labels):
        if "gradient of inputs" in odds:
            numbers = numbers.requires_grad_(True)
            found = losses_of(model(numbers), labels)
            (slope,) = torch.autograd.grad(found.sum(), numbers, create_graph=True)
            return found + slope.pow(2).sum(1)
        if "called twice" in odds:
            return losses_of(model(numbers), labels) + 0.5 * losses_of(model(-numbers), labels)
        return losses_of(model(numbers), labels)

    def trained(numbers, labels) -> bool:
        """Whether to leave the loop after this batch."""
        move("chdir in the loop")
        if "chdir in the loop" in odds:
            odds.remove("chdir in the loop")
        if "look" in odds:
            with torch.no_grad():
                model(numbers)
        if "look in evaluation mode" in odds:
            training = [module for module in inner.modules() if module.training]
            inner.eval()
            with torch.no_grad():
                inner(numbers)
            for module in training:
                module.training = True
        if "zeroed" in odds:
            optimizer.zero_grad()
        if "clamped before the step" in odds:
            clamp()
        if "own backward" in odds:
            (0.1 * sum(parameter.pow(2).sum() for parameter in parameters)).backward()
        if "own backward of the model" in odds:
            (0.1 * losses_of(model(numbers), labels).mean()).backward()
        found = losses(numbers, labels)
        if "logs" in odds:
            run.log(mean=found.mean())
        if run.step(found):
            if schedule:
                schedule.step()
            if "clamped after the step" in odds:
                clamp()
            return "left early" in odds and run.steps + 1 == 5
        return False

    train, test = drawn.data
    if "loop over epochs" in odds:
        for batches in run.each_epoch(train, test, evaluate):
            leaves = [leaves for leaves in (trained(*batch) for batch in batches) if leaves]
            if leaves:
                break
    else:
        for batch in run.batches(train, test, evaluate):
            if trained(*batch):
                break


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


class Framework:
    """The parts of a PlainRun."""

    tensor = staticmethod(torch.from_numpy)

    @staticmethod
    def begin_step(run: PlainRun) -> None:
        run.optimizer.zero_grad()

    @staticmethod
    def update(run: PlainRun, losses: torch.Tensor) -> None:
        losses.mean().backward()
        run.optimizer.step()

    @staticmethod
    @contextlib.contextmanager
    def evaluating(model: nn.Module):
        training = [module for module in model.modules() if module.training]
        model.eval()
        yield
        for module in training:
            module.training = True


def plain(drawn: Drawn, evaluates: bool) -> dict[str, np.ndarray]:
    from hvdtrain.frameworks.torch import late_dynamo

    late_dynamo.postpone()  # which takes longer than all else
    run = PlainRun(drawn, evaluates, Framework)
    seed(drawn.seed)
    script(drawn, run)
    tensors = {**run.model.state_dict(), **dict(run.model.named_buffers(remove_duplicate=False))}
    return {name: host(value) for name, value in tensors.items() if isinstance(value, torch.Tensor)}


def host(tensor: torch.Tensor) -> np.ndarray:
    from hvdtrain.frameworks.torch.network import host_array

    return host_array(tensor)

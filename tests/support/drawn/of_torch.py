"""Pieces of models, losses and scripts in PyTorch, for `drawn_models`."""

from __future__ import annotations

import contextlib
import copy
import itertools
import random
from typing import Any

import numpy as np
import torch
from support import drawn_models
from support.drawn.pieces import Framework, common
from support.drawn_models import (
    BATCH,
    CLASSES,
    EVALUATED,
    FEATURES,
    KEPT,
    LR,
    ODD,
    OUTSIDE,
    STATE,
    Drawn,
    Piece,
    PlainRun,
)
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import hvdtrain

STRATEGIES = ("ring", "ring", "horovod", "ddp")
OPTIONS = ({"optimizer": "adam"},)


def linear() -> nn.Linear:
    return nn.Linear(FEATURES, FEATURES)


class Layer(nn.Module):
    """A layer, and a function of this module and its inputs; buffers and other parts by their names."""

    def __init__(self, function, layer=linear, **parts):
        super().__init__()
        self.function, self.layer = function, layer()
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

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


def of_function(module, x):
    return torch.func.vmap(torch.func.grad(lambda row: torch.tanh(module.layer(row)).sum()))(x)


def in_inference_mode(module, x):
    with torch.inference_mode(not module.training):
        return module.layer(x)


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


def stateful(module, x):
    if module.training:
        module.state.copy_((0.5 * module.state + x.detach()).view(BATCH, FEATURES))
    return module.layer(x + 0.1 * module.state.mean(0))


# B: weights and buffers that the forward pass changes.
COMMON = Framework(
    layer=lambda function, **arrays: Layer(lambda module, x: function(module, x, module.training), **arrays),
    ones=lambda shape, kind: torch.ones(shape).to(getattr(torch, kind)),
    get=lambda module, name: module.layer.weight if name == "weight" else getattr(module, name),
    put=lambda module, name, value: COMMON.get(module, name).copy_(value),
    paused=torch.no_grad,
    mean=lambda x: x.mean(0, keepdim=True),
    reshape=torch.Tensor.view,
    norm=torch.norm,
    clip=lambda weight: weight.clamp(-0.3, 0.3),
    noise=torch.randn_like,
    as_float=lambda buffer: (buffer.real if buffer.is_complex() else buffer).float(),
)


def by_data(module, x):
    if module.training:
        weight = module.layer.weight
        weight.data = weight.data / weight.data.norm()
    return module.layer(x)


def taught(module, x):
    if module.training:
        with torch.no_grad():
            module.teacher.lerp_(module.layer.weight, 0.5)
    return module.layer(x)


def teacher():
    """Another weight, which is equal at first and follows."""
    module = Layer(taught)
    module.teacher = nn.Parameter(module.layer.weight.detach().clone(), requires_grad=False)
    return module


def of_frozen_weight():
    module = PIECES["weight by rows"].make()
    module.layer.weight.requires_grad_(False)
    return module


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


def counted(module, x):
    module.calls += 1
    return module.layer(x) / (1 + 0.01 * module.calls)


class Running(nn.Module):
    """A running mean of its inputs, which is subtracted; assigned: it becomes another tensor in each step."""

    def __init__(self, persistent, assigned=False):
        super().__init__()
        self.register_buffer("mean", torch.zeros(FEATURES), persistent)
        self.register_buffer("constant", torch.ones(1).expand(FEATURES), False)
        self.assigned = assigned

    def forward(self, x):
        if self.training:
            mean = self.mean.lerp(x.detach().mean(0), 0.3)
            if self.assigned:
                self.mean = mean
            else:
                self.mean.copy_(mean)
        return x - self.mean * self.constant


class Caching(nn.Module):
    """A mean that its first call makes, and a table that grows with the rows."""

    def __init__(self, persistent):
        super().__init__()
        self.register_buffer("mean", None, persistent)
        self.register_buffer("table", torch.ones(1), persistent)

    def forward(self, x):
        if len(self.table) < len(x):
            self.table = torch.ones(100)
        mean = x.detach().mean(0)
        if self.mean is None:
            self.mean = mean
        elif self.training:
            self.mean = self.mean.lerp(mean, 0.3)
        return (x - self.mean) * self.table[: len(x), None]


class Counter(nn.Module):
    """Scales by the number of its calls in training, an attribute."""

    calls = 0

    def forward(self, x):
        self.calls += self.training
        return x * (1 + self.calls / 10)


def remembering(module, x):
    """With what it has made of the rows before."""
    before, module.before = getattr(module, "before", None), x.detach().mean(0)
    return module.layer(x if before is None else x + before)


def following():
    """Another weight follows the layer's, and belongs to no module."""
    followers = []

    def forward(module, x):
        if not followers:
            followers.append(module.layer.weight.detach().clone())
        followers[0].lerp_(module.layer.weight.detach(), 0.5)
        return module.layer(x) + x @ followers[0]

    return Layer(forward)


def drawing():
    generator = torch.Generator().manual_seed(1)
    return Layer(lambda module, x: module.layer(x + 0.1 * torch.randn(x.shape, generator=generator)))


def asking(module, x):
    now = hvdtrain.progress()
    return module.layer(x) * (1 + now.step / 10 + now.epoch) + now.training


def in_a_list(module, x):
    """Through a layer that PyTorch does not find."""
    return module.others[0](module.layer(x))


class LeftOut(nn.Linear):
    """A layer that is trained, and that state_dict() leaves out."""

    def __init__(self):
        super().__init__(FEATURES, FEATURES)

    def _save_to_state_dict(self, *_):
        pass

    def _load_from_state_dict(self, *_):
        pass


class Always(nn.BatchNorm1d):
    """Normalizes by the rows in evaluations, too."""

    def train(self, mode=True):
        return super().train(True)


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


def shared():
    """One layer in two places, and a weight that is tied to another's."""
    first, tied = linear(), linear()
    tied.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), first, nn.Tanh(), tied)


def branched(module, x):
    x = module.frozen(module.layer(x))
    return x + module.extra(x) if module.training else x


def branch():
    """A layer of training only, one that is frozen, and one and a parameter that are not used."""
    lonely = nn.Parameter(torch.ones(3))
    return Layer(branched, extra=linear(), unused=linear(), frozen=linear().requires_grad_(False), lonely=lonely)


def hooked():
    layer = linear()
    layer.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
    layer.register_forward_hook(lambda module, inputs, output: output + 1)
    layer.register_full_backward_hook(
        lambda module, of_inputs, of_outputs: tuple(g if g is None else g / 2 for g in of_inputs)
    )
    layer.weight.register_hook(lambda gradient: gradient * 3)
    return layer


def clipping():
    layer = linear()
    layer.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return layer


def transposed():
    layer = linear()
    layer.weight = nn.Parameter(layer.weight.detach().t().contiguous().t())
    return layer


def imaged(module, x):
    return module.layer(x.view(-1, 3, 1, 2)).mean((2, 3)) + module.table.mean(1)


def channels_last():
    """A kernel in that layout, and a buffer that is transposed."""
    table = torch.arange(2.0 * FEATURES).view(2, FEATURES).t() / 8
    return Layer(imaged, lambda: nn.Conv2d(3, FEATURES, (1, 2)).to(memory_format=torch.channels_last), table=table)


def autocast(module, x):
    """bfloat16 inside, with parameters in float32."""
    with torch.autocast("cpu", torch.bfloat16):
        return module.layer(x).to(x.dtype)


def in_bfloat16(module, x):
    return module.layer(x.bfloat16()).to(x.dtype)


def complex_values(module, x):
    """Of a complex layer and a complex number."""
    values = module.layer(x.to(torch.complex64)) * module.turn
    return (values * values.conj()).real.to(x.dtype)


def of_complex():
    turn = nn.Parameter(torch.tensor(1 + 1j))
    return Layer(complex_values, lambda: nn.Linear(FEATURES, FEATURES, dtype=torch.complex64), turn=turn)


def scripted(body):
    return lambda: torch.jit.script(body())


def traced():
    return torch.jit.trace(nn.Sequential(linear(), nn.Tanh()), torch.zeros(2, FEATURES))


class RunningOfScript(nn.Module):
    """A running mean that TorchScript can compile, in a buffer that it replaces."""

    def __init__(self):
        super().__init__()
        self.layer = linear()
        self.register_buffer("mean", torch.zeros(FEATURES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = self.mean.lerp(x.detach().mean(0), 0.3)
        return self.layer(x - self.mean)


class WithoutClosure(torch.optim.SGD):
    """Its step() takes nothing."""

    def step(self):
        return super().step()


class ScheduleFree(torch.optim.Optimizer):
    """Its weights of training are between those of steps and their average, which evaluations have."""

    def __init__(self, parameters, lr=0.1, beta=0.9):
        super().__init__(parameters, {"lr": lr, "beta": beta, "count": 0, "is_on": False})

    @torch.no_grad()
    def _to(self, is_on):
        for group in self.param_groups:
            weight = 1 - group["beta"] if is_on else 1 - 1 / group["beta"]
            for parameter in group["params"] if group["is_on"] != is_on else ():
                if "z" in self.state[parameter]:
                    parameter.lerp_(self.state[parameter]["z"], weight)
            group["is_on"] = is_on

    def train(self):
        self._to(True)

    def eval(self):
        self._to(False)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            assert group["is_on"], "step() in the mode of evaluations"
            group["count"] += 1
            share = 1 / group["count"]
            for parameter in (parameter for parameter in group["params"] if parameter.grad is not None):
                z = self.state[parameter].setdefault("z", parameter.clone())
                parameter.lerp_(z, share)
                parameter.add_(parameter.grad, alpha=group["lr"] * (group["beta"] * (1 - share) - 1))
                z.sub_(parameter.grad, alpha=group["lr"])


DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float64", "complex64")
PIECES = {
    "linear": Piece(linear),
    "shared": Piece(shared),
    "branch": Piece(branch),
    "hooks": Piece(hooked),
    "clipping hook": ODD(clipping),
    "transposed": Piece(transposed),
    "channels last": Piece(channels_last),
    "lazy linear": Piece(lambda: nn.LazyLinear(FEATURES)),
    "bfloat16 inside": Piece(lambda: Layer(autocast), tolerance=2e-3),
    "bfloat16 parameters": Piece(lambda: Layer(in_bfloat16, lambda: linear().bfloat16()), alone=True, tolerance=3e-2),
    "complex parameters": Piece(of_complex),
    "scripted": Piece(scripted(lambda: nn.Sequential(linear(), nn.Tanh()))),
    "scripted batch norm": STATE(scripted(lambda: nn.BatchNorm1d(FEATURES))),
    "scripted running mean": STATE(scripted(RunningOfScript), local=True),
    "traced": Piece(traced),
    "weight norm": Piece(lambda: parametrizations.weight_norm(linear())),
    "old weight norm": Piece(lambda: nn.utils.weight_norm(linear())),
    "orthogonal": Piece(lambda: parametrizations.orthogonal(linear())),
    "layer norm": Piece(lambda: nn.LayerNorm(FEATURES)),
    "dropout": Piece(lambda: nn.Dropout(0.3), draws=True),
    "noise": Piece(Noisy, draws=True),
    "forces": ODD(lambda: Layer(forces)),
    "enabled forces": Piece(lambda: Layer(enabled_forces)),
    "torch.func": Piece(lambda: Layer(of_function)),
    "inference mode": Piece(lambda: Layer(in_inference_mode)),
    "backward inside": ODD(lambda: Layer(backward_inside)),
    "reentrant checkpoint": ODD(lambda: Layer(checkpointed(True))),  # by DDP that looks for unused parameters
    "checkpoint": Piece(lambda: Layer(checkpointed(False))),
    "batch norm": STATE(lambda: nn.BatchNorm1d(FEATURES)),
    "batch norm without momentum": STATE(lambda: nn.BatchNorm1d(FEATURES, momentum=None)),
    "batch norm without statistics": STATE(lambda: nn.BatchNorm1d(FEATURES, track_running_stats=False)),
    "lazy batch norm": STATE(nn.LazyBatchNorm1d),
    "frozen batch norm": Piece(lambda: nn.Sequential(nn.BatchNorm1d(FEATURES), linear()).eval()),
    "always batch norm": EVALUATED(lambda: Always(FEATURES)),
    "stateful": STATE(lambda: Layer(stateful, state=torch.zeros(BATCH, FEATURES)), fixed=True, local=True),
    "weight of a teacher": STATE(teacher),
    "frozen weight by rows": STATE(of_frozen_weight),
    "weight by data": ODD(lambda: Layer(by_data)),
    "spectral norm": STATE(lambda: parametrizations.spectral_norm(linear())),
    "old spectral norm": STATE(lambda: nn.utils.spectral_norm(linear())),
    "embedding": Piece(Looked),
    "largest norm": ODD(lambda: Looked(max_norm=0.5), in_evaluation=True),
    "largest norm that is rare": ODD(lambda: Looked(max_norm=100.0), in_evaluation=True),
    "largest norm of a bag": ODD(bag, in_evaluation=True),
    "counter": KEPT(Counter),
    "hidden state": KEPT(lambda: Layer(remembering)),
    "copy that follows": KEPT(following),
    "own generator": KEPT(drawing),
    "asking": Piece(lambda: Layer(asking)),
    "left out": OUTSIDE(LeftOut),
    "in a list": ODD(lambda: Layer(in_a_list, others=[linear()]), outside="tasks"),
    "running mean": STATE(lambda: Running(True), local=True),
    "running mean, not persistent": STATE(lambda: Running(False), local=True),
    "running mean, assigned": STATE(lambda: Running(True, True), local=True),
    "running mean, assigned, not persistent": STATE(lambda: Running(False, True), local=True),
    "growing buffers": EVALUATED(lambda: Caching(True), local=True),
    "growing buffers, not persistent": EVALUATED(lambda: Caching(False), local=True),
    "counted": EVALUATED(lambda: Layer(counted, calls=torch.zeros((), dtype=torch.int64))),
    "resized buffer": STATE(lambda: Layer(resized, kept=torch.zeros(0)), local=True),
    "quantization fbgemm": EVALUATED(quantization_aware("fbgemm"), local=True, tolerance=1e-3),
    "quantization x86": EVALUATED(quantization_aware("x86"), local=True, tolerance=1e-3),
    "quantization qnnpack": EVALUATED(quantization_aware("qnnpack"), local=True, tolerance=1e-3),
    **common(COMMON, DTYPES, refused=False),
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


def squares(values, labels):
    """The squared distance of rows to one-hot labels."""
    return ((values - nn.functional.one_hot(labels, CLASSES)) ** 2).sum(1)


def penalty_of_inputs(outputs, labels):
    values, x = outputs
    (slope,) = torch.autograd.grad(values.sum(), x, create_graph=True)
    return cross_entropy(values, labels) + (slope.norm(dim=1) - 1) ** 2


def with_inputs(body, last):
    """Its outputs, and the inputs that have a gradient."""
    return Layer(
        lambda module, x: (module.layer(x := x.detach().requires_grad_(True)), x), lambda: sequence(body, last)
    )


def complex_outputs(body, last):
    """Whose imaginary parts have a layer of their own."""
    parts = {"real": last, "imaginary": copy.deepcopy(last)}
    return Layer(
        lambda module, x: torch.complex(module.real(x := module.layer(x)), module.imaginary(x)), lambda: body, **parts
    )


def in_form(form):
    """A model with its outputs in another form."""
    return lambda body, last: Layer(lambda module, x: form(module.layer(x)), lambda: sequence(body, last))


def in_double(body, last):
    return Layer(lambda module, x: module.layer(x.double()), lambda: sequence(body, last).double())


def sequence(body, last):
    return nn.Sequential(*body, last)


CALLS = itertools.count(1)
FACTOR = nn.Parameter(torch.ones(CLASSES))
TENSOR = torch.zeros(CLASSES, requires_grad=True)
TEACHER = nn.Linear(CLASSES, CLASSES).requires_grad_(False)


def asked(outputs, labels):
    now = hvdtrain.progress()
    smoothed = nn.functional.cross_entropy(outputs, labels, reduction="none", label_smoothing=0.2 * now.training)
    return smoothed + min(now.step / 10, 0.3) * outputs.square().sum(1)


LOSSES = {
    "plain": Piece(cross_entropy, form=sequence),
    "asked": Piece(asked, form=sequence),
    "counted": KEPT(lambda x, labels: cross_entropy(x, labels) * (1 + next(CALLS) / 10), form=sequence),
    "own parameter": ODD(lambda x, labels: cross_entropy(x * FACTOR, labels), form=sequence, outside="tasks"),
    "own tensor": ODD(lambda x, labels: cross_entropy(x + TENSOR, labels), form=sequence, outside="tasks"),
    "own parameter, frozen": Piece(lambda x, labels: cross_entropy(TEACHER(x), labels), form=sequence),
    "own parameter, detached": Piece(lambda x, labels: cross_entropy(x * FACTOR.detach(), labels), form=sequence),
    "penalty of inputs": ODD(penalty_of_inputs, form=with_inputs),
    "penalty of outputs": ODD(penalty_of_outputs, form=sequence),
    "enabled penalty of outputs": Piece(enabled_penalty, form=sequence),
    "squares": Piece(squares, form=sequence),
    "complex": Piece(lambda x, labels: squares(x.real, labels) + squares(x.imag, labels), form=complex_outputs),
    "double": Piece(lambda x, labels: squares(x, labels) if x.dtype is torch.float64 else x.bool(), form=in_double),
    "dict": Piece(lambda x, labels: squares(x["values"][0], labels), form=in_form(lambda x: {"values": (x, 0)})),
    "bfloat16": Piece(
        lambda x, labels: squares(x[0].float(), labels), form=in_form(lambda x: [x.bfloat16()]), tolerance=2e-3
    ),
}


class Slowing(torch.optim.SGD):
    """Counts its updates in an attribute."""

    def __init__(self, parameters):
        super().__init__(parameters, LR, 0.9)
        self.count = 0

    def step(self, closure=None):
        self.count += 1
        for group in self.param_groups:
            group["lr"] = LR / self.count
        super().step(closure)


class Keeping(torch.optim.SGD):
    """Keeps tensors that its state_dict() does not have."""

    kept = None

    def step(self, closure=None):
        gradients = [parameter.grad for group in self.param_groups for parameter in group["params"]]
        for gradient, before in zip(gradients, self.kept or [], strict=bool(self.kept)):
            gradient.add_(before)
        self.kept = [gradient.clone() for gradient in gradients]
        super().step(closure)


def in_groups(parameters):
    """The last parameter first, in a group of its own."""
    *others, last = parameters
    return torch.optim.SGD([{"params": [last], "lr": 0.2, "momentum": 0.5}, {"params": others}], LR, weight_decay=0.01)


of = torch.optim
# With a large epsilon, as rounding is the sign of a gradient without it.
OPTIMIZERS = {
    "groups": Piece(in_groups),
    "AdamW": Piece(lambda parameters: of.AdamW(parameters, 0.01, eps=0.01, amsgrad=True, weight_decay=0.1)),
    "NAdam": Piece(lambda parameters: of.NAdam(parameters, 0.01, eps=0.01)),
    "RAdam": Piece(lambda parameters: of.RAdam(parameters, 0.01, eps=0.01)),
    "RMSprop": Piece(lambda parameters: of.RMSprop(parameters, 0.01, eps=0.01, momentum=0.9, centered=True)),
    "Adagrad": Piece(lambda parameters: of.Adagrad(parameters, 0.05, lr_decay=0.1, eps=0.01)),
    "ASGD": Piece(lambda parameters: of.ASGD(parameters, LR, t0=2)),
    "slowing": Piece(Slowing),
    "keeping": OUTSIDE(lambda parameters: Keeping(parameters, LR)),
}
ODDS = drawn_models.ODDS | {
    "own backward of the model": ODD(None),
    "look": STATE(None),
    "look in evaluation mode": Piece(None, in_evaluation=True),
    "zeroed": Piece(None),
    "gradient of inputs": ODD(None),
    "evaluates with bare gradients": ODD(None),
    "optimizer without closure": Piece(None),
    "optimizer with modes": Piece(None),
}


def model_of(drawn: Drawn) -> nn.Module:
    body = [layer for name in drawn.pieces for layer in (PIECES[name].make(), nn.Tanh())]
    return LOSSES[drawn.losses].form(nn.Sequential(linear(), nn.Tanh(), *body), nn.Linear(FEATURES, CLASSES))


class Two(nn.Module):
    """Two models, of which one gets the outputs of the other."""

    def __init__(self, first):
        super().__init__()
        self.models = nn.ModuleList([linear(), first])

    def forward(self, x):
        return self.models[1](torch.tanh(self.models[0](x)))


@contextlib.contextmanager
def evaluating(model: nn.Module):
    """In evaluation mode, without gradients."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    with torch.no_grad():
        yield
    for module in training:
        module.training = True


def script(drawn: Drawn, run: Any) -> None:
    """A script's training, by hvdtrain's run or a PlainRun."""
    odds, losses_of = {*(drawn.odds or ())}, LOSSES[drawn.losses].make
    inner = Two(model_of(drawn)) if "two models" in odds else model_of(drawn)
    if any(map(nn.parameter.is_lazy, inner.parameters())):
        with evaluating(inner):
            inner(torch.from_numpy(drawn.data[0][0][:4]))
    parameters = [parameter for parameter in inner.parameters() if parameter.requires_grad]
    is_adam = drawn.options.get("optimizer") == "adam"
    optimizer = torch.optim.Adam(parameters, LR) if is_adam else torch.optim.SGD(parameters, LR, 0.9)
    if "optimizer without closure" in odds:
        optimizer = WithoutClosure(parameters, LR, 0.9)
    if "optimizer with modes" in odds:
        optimizer = ScheduleFree(parameters, LR)
        optimizer.train()
    if drawn.optimizer:
        optimizer = OPTIMIZERS[drawn.optimizer].make(parameters)
    model, optimizer = run.setup(inner, optimizer, unused_parameters=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) if "schedule" in odds else None
    if schedule:
        run.register(schedule=schedule)
    last = [name for name, _ in inner.named_parameters()][-2]

    def clip() -> None:
        with torch.no_grad():
            inner.get_parameter(last).clamp_(-0.3, 0.3)

    def evaluate(numbers, labels):
        if "evaluates in training mode" in odds:
            model.train()
        if "draws in evaluations" in odds:
            numbers = numbers + torch.randn_like(numbers)
        if odds & {"evaluates with gradients", "evaluates with bare gradients"}:
            bare = "evaluates with bare gradients" in odds
            with contextlib.nullcontext() if bare else torch.enable_grad():
                numbers = numbers.requires_grad_(True)
                torch.autograd.grad(losses_of(model(numbers), labels).sum(), numbers, allow_unused=True)
        losses = losses_of(model(numbers), labels)
        return (losses, {"right": losses < 1}) if "metrics" in odds else losses

    def losses(numbers, labels):
        if "gradient of inputs" in odds:
            numbers = numbers.requires_grad_(True)
            found = losses_of(model(numbers), labels)
            (slope,) = torch.autograd.grad(found.sum(), numbers, create_graph=True)
            return found + slope.pow(2).sum(1)
        if "called twice" in odds:
            return losses_of(model(numbers), labels) + 0.5 * losses_of(model(-numbers), labels)
        return losses_of(model(numbers), labels)

    def before(numbers, labels):
        if "look" in odds:
            with torch.no_grad():
                model(numbers)
        if "look in evaluation mode" in odds:
            with evaluating(inner):
                inner(numbers)
        if "zeroed" in odds:
            optimizer.zero_grad()
        if "own backward" in odds:
            (0.1 * sum(parameter.abs().pow(2).sum() for parameter in parameters)).backward()
        if "own backward of the model" in odds:
            (0.1 * losses_of(model(numbers), labels).mean()).backward()

    after = schedule.step if schedule else drawn_models.nothing
    drawn_models.loop(drawn, run, odds, losses, evaluate, clip, before, after)


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


class Parts:
    """Those of a PlainRun."""

    tensor = staticmethod(torch.from_numpy)

    @staticmethod
    def update(run: PlainRun, losses: torch.Tensor) -> None:
        losses.mean().backward()
        for parameter in run.model.parameters():
            if parameter.requires_grad and parameter.grad is None:  # which counts as zero (docs/own.md)
                parameter.grad = torch.zeros_like(parameter)
        run.optimizer.step()
        run.optimizer.zero_grad()

    @staticmethod
    @contextlib.contextmanager
    def evaluating(model: nn.Module):
        with evaluating(model), torch.enable_grad():
            yield


def plain(drawn: Drawn, evaluates: bool) -> dict[str, np.ndarray]:
    from hvdtrain.frameworks.torch import late_dynamo
    from hvdtrain.frameworks.torch.network import host_array

    late_dynamo.postpone()  # which takes longer than all else
    run = PlainRun(drawn, evaluates, Parts)
    seed(drawn.seed)
    script(drawn, run)
    tensors = {**run.model.state_dict(), **dict(run.model.named_buffers(remove_duplicate=False))}
    return {name: host_array(value) for name, value in tensors.items() if "constant" not in name}

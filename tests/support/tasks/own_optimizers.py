"""Tasks in PyTorch that bring their optimizer and their schedule."""

import torch
from of_torch import Classifier, Regression
from torch.optim import lr_scheduler


class Wide(torch.optim.Optimizer):
    """SGD with a sum in float64 for parameters in float32, a counter, and noise."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                wide = parameter.dtype if parameter.is_complex() else torch.float64
                state.setdefault("sum", torch.zeros_like(parameter, dtype=wide))
                state.setdefault("calls", torch.zeros((), dtype=torch.int64)).add_(1)
                state["sum"].mul_(0.9).add_(parameter.grad)
                parameter.sub_((group["lr"] * (state["sum"] + 1e-3 * torch.randn(()))).to(parameter.dtype))


class Grouped(Classifier):
    """AdamW in groups by name; a warm-up by steps, and a decay by epochs."""

    def optimizer(self, parameters):
        decayed = [parameter for name, parameter in parameters if name.endswith("weight")]
        others = [parameter for name, parameter in parameters if not name.endswith("weight")]
        return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "lr": 3e-3}], lr=0.01)

    def schedule(self, optimizer, steps, epochs):
        warmup = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
        return [warmup, (lr_scheduler.StepLR(optimizer, 1, gamma=0.5), "epoch")]


class Noisy(Regression):
    """An optimizer of its own, whose state has other types than the parameters."""

    def optimizer(self, parameters):
        return Wide(parameters, lr=0.01)

    def schedule(self, optimizer, steps, epochs):
        return lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / (steps + 1))


class OnlyScheduled(Regression):
    """The optimizer of the options, with a schedule of its own."""

    def schedule(self, optimizer, steps, epochs):
        return lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=steps)

"""Learning rates that change from step to step, with the names and formulas of `torch.optim.lr_scheduler`.

    optimizer = SGD(model.parameters(), lr=0.1)
    schedule = SequentialLR(optimizer, [LinearLR(optimizer, total_iters=100), CosineAnnealingLR(optimizer, 900)], [100])
    for images, labels in batches:
        ...
        optimizer.step()
        schedule.step()                 # sets `group["lr"]`, a Python float, of each group; waits for nothing

A schedule counts how often it was stepped, also for an optimiser's steps that were skipped, and sets what its formula
says for that count: whatever else set the learning rate meanwhile is written over. `ReduceLROnPlateau` alone goes by
what it is told, a number that you have awaited.
"""

from .formulas import CosineAnnealingLR, ExponentialLR, LambdaLR, LinearLR, MultiStepLR, SequentialLR, StepLR
from .one_cycle import OneCycleLR
from .plateau import ReduceLROnPlateau
from .schedule import Schedule

__all__ = [
    "CosineAnnealingLR", "ExponentialLR", "LambdaLR", "LinearLR", "MultiStepLR", "OneCycleLR", "ReduceLROnPlateau",
    "Schedule", "SequentialLR", "StepLR",
]  # fmt: skip

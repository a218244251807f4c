"""One process or several. Launched by accelerate, each takes a share of every batch, so the run is that of one process."""

from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from macs.errors import ConfigError


@dataclass(frozen=True)
class Workers:
    """The processes of a run, as accelerate found them in the environment."""

    accelerator: Accelerator

    @classmethod
    def found(cls, bf16: bool = False) -> "Workers":
        """Those that this process was launched with; ``bf16`` lets the network compute in bfloat16."""
        return cls(Accelerator(mixed_precision="bf16" if bf16 else "no", cpu=not torch.cuda.is_available()))

    @property
    def count(self) -> int:
        """How many there are."""
        return self.accelerator.num_processes

    @property
    def first(self) -> bool:
        """Whether this is the one that writes."""
        return self.accelerator.is_main_process

    def check(self, batch: int) -> None:
        """Refuse a batch that cannot be shared evenly: the mean of the means would not be the mean."""
        if batch % self.count:
            raise ConfigError(f"the batch must be a multiple of the {self.count} processes; got {batch}")

    def share(self, batch: tuple[Any, ...]) -> Any:
        """The part of a batch that falls to this process, on its device; a batch is a named tuple of tensors, or of None."""
        rank, device = self.accelerator.process_index, self.accelerator.device
        parts = (None if part is None else part[rank :: self.count].to(device) for part in batch)
        kind: Any = type(batch)
        return kind(*parts) if hasattr(batch, "_fields") else tuple(parts)

    def average_gradients(self, model: nn.Module) -> None:
        """Give every process the mean gradient of all, in one message."""
        if self.count == 1:
            return
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        mean: Tensor = self.accelerator.reduce(torch.cat([g.flatten() for g in grads]), "mean")
        for grad, part in zip(grads, mean.split([g.numel() for g in grads]), strict=True):
            grad.copy_(part.view_as(grad))

    def any(self, said: bool) -> bool:
        """Whether any of the processes said so; all must ask."""
        if self.count == 1:
            return said
        return bool(self.accelerator.reduce(torch.tensor(float(said), device=self.accelerator.device), "sum") > 0)

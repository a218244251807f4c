"""The training loop: one for every model, on one process or several, resumable bit for bit.

Batches, levels and noise are functions of (seed, step), so a checkpoint needs no random state: weights, their average,
the optimiser's moments and the step are the whole of it.
"""

import copy
import hashlib
import json
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from macs.errors import ConfigError, ModelError
from macs.training.checkpoint import load_checkpoint, locked, save_checkpoint, sweep
from macs.training.config import Stage, TrainConfig, plain_values
from macs.training.recipes import Consistency, Recipe
from macs.training.validation import Validation
from macs.training.workers import Workers


@dataclass(frozen=True)
class Progress:
    """Where a run stands."""

    stage: int
    step: int
    steps: int
    images: int
    loss: float
    images_per_second: float


class Run:
    """The state of a run: network, its average, optimiser, stage and step; saved to and restored from one file.

    ``compiled`` runs the backbone through ``torch.compile``: faster after a minute, with sums in another order, so a run
    is reproduced bit for bit only where all of it was compiled or none; the same holds for the number of processes and for
    ``workers`` that compute in bfloat16. ``validation`` are images, uint8, that are restored every so often. ``recipe`` is
    what is trained, a consistency model where nothing is said (:mod:`macs.training.recipes`).
    """

    def __init__(
        self,
        config: TrainConfig,
        images: Tensor,
        folder: Path,
        *,
        recipe: Recipe | None = None,
        validation: Tensor | None = None,
        workers: Workers | None = None,
        compiled: bool = False,
    ) -> None:
        self.config, self.images, self.folder, self.validation = config, images, folder, validation
        self.recipe = Consistency() if recipe is None else recipe
        self.workers = Workers.found() if workers is None else workers
        self.workers.check(config.batch)
        self.stage = self.step = self.skipped = 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.model = self.recipe.build(config).to(memory_format=torch.channels_last)
        self.model.to(self.workers.accelerator.device)
        self.average: Any = copy.deepcopy(self.model).requires_grad_(False)
        self.optimizer = self.new_optimizer()
        self.compiled = compiled
        self._teacher: Any = None
        if compiled:
            self.recipe.compile(self.model)
        if self.path.exists():
            self.restore()

    @property
    def path(self) -> Path:
        """The checkpoint."""
        return self.folder / "checkpoint.safetensors"

    def stage_path(self, stage: int) -> Path:
        """The averaged weights at the end of a stage."""
        return self.folder / f"stage{stage}.safetensors"

    @property
    def done(self) -> bool:
        """Whether all stages are finished."""
        return self.stage >= len(self.config.stages)

    @property
    def total_images(self) -> int:
        """The images seen so far, over all stages."""
        return self.config.batch * (self.step + sum(self.config.steps(i) for i in range(self.stage)))

    @property
    def last_loss(self) -> str:
        """The objective of the last step that was made, or of the first to come."""
        return self.config.stages[self.stage if self.step else max(self.stage - 1, 0)].loss

    @property
    def teacher(self) -> Any:
        """The network at the end of the last stage of denoising, for a stage that distils it."""
        if self.config.stages[self.stage].loss != "cd":
            return None
        if self._teacher is None:
            last = max(i for i in range(self.stage) if self.config.stages[i].loss == "edm")
            tensors, _ = load_checkpoint(self.stage_path(last))
            self._teacher = copy.deepcopy(self.average)
            self._teacher.load_state_dict(tensors)
            if self.compiled:
                self.recipe.compile(self._teacher)
        return self._teacher

    def new_optimizer(self) -> torch.optim.Optimizer:
        """Adam with a short second moment, for few steps."""
        return torch.optim.AdamW(self.model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0)

    def fingerprint(self) -> str:
        """A digest of all that must not change between a stop and the next start: data, and the stages already begun.

        Stages yet to come may be changed, and more may be appended to a finished run.
        """
        config = plain_values(self.config)
        config["stages"] = config["stages"][: self.stage + (self.step > 0)]
        digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
        digest.update(self.recipe.fingerprint())
        digest.update(str(tuple(self.images.shape)).encode())
        digest.update(self.images[:: max(len(self.images) // 256, 1)].contiguous().numpy().tobytes())
        return digest.hexdigest()

    def save(self) -> None:
        """Write the checkpoint, atomically; the first process does."""
        if not self.workers.first:
            return
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        tensors |= {f"average.{k}": v for k, v in self.average.state_dict().items()}
        for i, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{k}": v for k, v in state.items()}
        record = {"stage": self.stage, "step": self.step, "skipped": self.skipped, "fingerprint": self.fingerprint()}
        save_checkpoint(self.path, tensors, record)

    def restore(self) -> None:
        """Go on from the checkpoint."""
        tensors, record = load_checkpoint(self.path)
        self.stage, self.step, self.skipped = record["stage"], record["step"], record["skipped"]
        if record["fingerprint"] != self.fingerprint():
            raise ConfigError(
                f"{self.path} was made with another configuration or other data; go on with those, or use another folder"
            )
        self.model.load_state_dict(under("model.", tensors))
        self.average.load_state_dict(under("average.", tensors))
        states: dict[int, dict[str, Tensor]] = {}
        for name, tensor in under("optimizer.", tensors).items():
            index, key = name.split(".", 1)
            states.setdefault(int(index), {})[key] = tensor
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": states})

    def next_stage(self) -> None:
        """Keep the average of the stage that ended, and start the next one from it with a fresh optimiser."""
        tensors = dict(self.average.state_dict())
        if self.workers.first:
            save_checkpoint(self.stage_path(self.stage), tensors, {"stage": self.stage})
        self.model.load_state_dict(tensors)
        self.optimizer = self.new_optimizer()
        self.stage, self.step, self._teacher = self.stage + 1, 0, None


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin so, without that beginning."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def learning_rate(stage: Stage, step: int, steps: int) -> float:
    """A linear warm-up, then a cosine from ``lr`` to ``lr_end``."""
    cosine = (1 + math.cos(math.pi * step / max(steps, 1))) / 2
    return min(1.0, (step + 1) / stage.warmup) * (stage.lr_end + (stage.lr - stage.lr_end) * cosine)


def train_step(run: Run) -> float:
    """One step: draw the batch, descend, average. A step whose gradient is not finite is skipped and counted."""
    config, stage = run.config, run.config.stages[run.stage]
    steps = config.steps(run.stage)
    batch = run.workers.share(run.recipe.batch(run.images, run.stage * 10_000_000 + run.step, config))
    for group in run.optimizer.param_groups:
        group["lr"] = learning_rate(stage, run.step, steps)
    with run.workers.accelerator.autocast():
        loss = run.recipe.loss(run.model, batch, stage, run.step / steps, run.teacher)
    run.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    run.workers.average_gradients(run.model)
    norm = torch.nn.utils.clip_grad_norm_(run.model.parameters(), config.clip)
    if torch.isfinite(norm):
        run.optimizer.step()
    else:
        run.skipped += 1
        if run.skipped > 100:
            raise ModelError("more than 100 steps gave gradients that are not finite; lower the learning rate")
    decay = min(stage.ema, (1 + run.step) / (10 + run.step)) if run.stage == 0 else stage.ema
    with torch.no_grad():
        torch._foreach_lerp_(list(run.average.parameters()), list(run.model.parameters()), 1 - decay)
    run.step += 1
    return loss.item()


def train(
    run: Run,
    *,
    minutes: float = math.inf,
    save_every: float = 120.0,
    validate_every: float = 600.0,
    on_step: Callable[[Progress], None] | None = None,
    on_validation: Callable[[Validation], None] | None = None,
    asked_to_stop: Callable[[], bool] = lambda: False,
) -> None:
    """Train until the stages are done, ``minutes`` have passed or ``asked_to_stop`` says so; save at the end in any case.

    Every ``save_every`` seconds the checkpoint is written, every ``validate_every`` seconds and at the end of a stage the
    run's validation images are restored and given to ``on_validation``.
    """
    with locked(run.folder) if run.workers.first else nullcontext():
        if run.workers.first:
            sweep(run.folder)
        start = saved = validated = time.monotonic()
        seen = 0
        while not run.done and not run.workers.any(asked_to_stop() or time.monotonic() - start >= 60 * minutes):
            stage, steps = run.stage, run.config.steps(run.stage)
            loss = train_step(run)
            seen += run.config.batch
            if on_step is not None:
                rate = seen / (time.monotonic() - start)
                on_step(Progress(stage, run.step, steps, run.total_images, loss, rate))
            ended = run.step >= steps
            if ended:
                run.next_stage()
            if ended or time.monotonic() - saved > save_every:
                run.save()
                saved = time.monotonic()
            due = ended or time.monotonic() - validated > validate_every
            if due and on_validation is not None and run.validation is not None and run.workers.first:
                on_validation(run.recipe.validate(run.average, run.validation, run.config.stages[stage].loss))
                validated = time.monotonic()
        run.save()

"""A callback for Lightning: steps, and sections for training steps, validation and checkpoints.

from otel_fr.integrations.lightning import FaultToleranceCallback

trainer = Trainer(..., callbacks=[FaultToleranceCallback()])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_fr.fault_tolerance import sections

if TYPE_CHECKING:

    class Callback:
        """Stands for Lightning's class, which need not be installed to check types."""

else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback


class FaultToleranceCallback(Callback):
    """Reports the steps of a ``Trainer`` to otel-fr, and its other work as sections.

    The step is the trainer's global step. The sections are ``setup`` (up to the first batch), ``train_step``,
    ``validate`` and ``test`` (with a heartbeat after every batch), and ``save``.

    Args:
        setup_timeout, step_timeout, validate_timeout, test_timeout, save_timeout: seconds; None: the environment's
            timeout, if any.
    """

    def __init__(
        self,
        setup_timeout: float | None = None,
        step_timeout: float | None = None,
        validate_timeout: float | None = None,
        test_timeout: float | None = None,
        save_timeout: float | None = None,
    ) -> None:
        self._timeouts = {
            "setup": setup_timeout,
            "train_step": step_timeout,
            "validate": validate_timeout,
            "test": test_timeout,
            "save": save_timeout,
        }
        self._open: list[str] = []

    def _enter(self, name: str) -> None:
        self._leave(name, "save")
        self._open.append(name)
        sections.start_section(name, self._timeouts[name])

    def _leave(self, *names: str) -> None:
        for name in names:
            if name in self._open:
                self._open.remove(name)
                sections.end_section(name)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self._enter("setup")

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._leave("setup", "save")
        sections.step(trainer.global_step)
        self._enter("train_step")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._leave("train_step", "save")

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._enter("validate")

    def on_validation_batch_end(self, *args: Any, **kwargs: Any) -> None:
        sections.heartbeat()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._leave("validate", "save")

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        self._enter("test")

    def on_test_batch_end(self, *args: Any, **kwargs: Any) -> None:
        sections.heartbeat()

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        self._leave("test")

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        # Lightning has no event for the end of writing a checkpoint: the next event of any kind ends the section.
        self._enter("save")

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._leave("save")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._leave("save")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._leave(*list(self._open))

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._leave(*list(self._open))

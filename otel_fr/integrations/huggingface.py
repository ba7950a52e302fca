"""A callback for Hugging Face's ``Trainer``: steps, and sections for evaluation and saving.

from otel_fr.integrations.huggingface import FaultToleranceCallback

trainer = Trainer(..., callbacks=[FaultToleranceCallback()])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_fr.fault_tolerance import sections

if TYPE_CHECKING:

    class TrainerCallback:
        """Stands for the class of ``transformers``, which need not be installed to check types."""

else:
    from transformers import TrainerCallback


class FaultToleranceCallback(TrainerCallback):
    """Reports the steps of a ``Trainer`` to otel-fr, and its other work as sections.

    The step is the trainer's global step. The sections are ``train_step``, ``evaluate`` (also for predictions) and
    ``save``. A section that an exception leaves open ends with the next training, or with the process.

    Args:
        step_timeout, evaluate_timeout, save_timeout: seconds; None: the environment's timeout, if any.
    """

    def __init__(
        self,
        step_timeout: float | None = None,
        evaluate_timeout: float | None = None,
        save_timeout: float | None = None,
    ) -> None:
        self._timeouts = {"train_step": step_timeout, "evaluate": evaluate_timeout, "save": save_timeout}
        self._current = ""

    def _enter(self, name: str) -> None:
        self._leave()
        self._current = name
        sections.start_section(name, self._timeouts[name])

    def _leave(self, *names: str) -> None:
        """End the current section, if it is one of ``names`` or none are given."""
        if self._current and (not names or self._current in names):
            sections.end_section(self._current)
            self._current = ""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._leave()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        sections.step(state.global_step)
        self._enter("train_step")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._leave("train_step")
        # The trainer has no event for the beginning of an evaluation or a save.
        if control.should_evaluate:
            self._enter("evaluate")
        elif control.should_save:
            self._enter("save")

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._leave("train_step")
        if control.should_evaluate and self._current != "evaluate":
            self._enter("evaluate")
        elif control.should_save and not control.should_evaluate:
            self._enter("save")

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._current != "evaluate":
            self._enter("evaluate")
        sections.heartbeat()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._leave("evaluate")
        if control.should_save:
            self._enter("save")

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> None:
        self._leave("evaluate")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._leave("save")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._leave()

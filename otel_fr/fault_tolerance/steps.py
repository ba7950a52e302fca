"""Training steps as seen from optimizers.

If the program reports no steps, each step of an optimizer ends a training step. If it reports steps, a decision records
for each of them whether an optimizer made a step. A rank that skips that step, for example after an overflow, differs
from its peers from then on.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

from otel_fr.decision_names import MADE, OPTIMIZER, SKIPPED
from otel_fr.fault_tolerance import decisions, sections

_log = logging.getLogger("otel_fr")


class _State:
    """State of this process.

    Attributes:
        hooks: handles of the hooks on optimizers.
        stepped_in: activity number of the last reported step in which an optimizer began a step; 0: none yet.
    """

    def __init__(self) -> None:
        self.hooks: list[Any] = []
        self.stepped_in = 0


_state = _State()


def install() -> None:
    """Install hooks on all optimizers of this process. Never raises."""
    uninstall()
    try:
        module = importlib.import_module("torch.optim.optimizer")
        counting = module.register_optimizer_step_post_hook(_stepped)
        sections.count_steps_by(counting.remove)
        _state.hooks.append(module.register_optimizer_step_pre_hook(_begins))
        sections.watch_ends_by(_step_ended)
    except Exception as error:  # noqa: BLE001 - the rest works without steps
        _log.debug("otel-fr: cannot count steps of optimizers: %s", error)


def uninstall() -> None:
    """Undo `install`, except that `sections.detach` removes the hook that counts steps."""
    for hook in _state.hooks:
        hook.remove()
    _state.hooks.clear()
    _state.stepped_in = 0
    sections.watch_ends_by(None)


def _stepped(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
    sections.count_step()


def _begins(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
    """Called before an optimizer's step, because the step itself may wait for other ranks."""
    try:
        own = sections.own_step()
        if own is not None and own[0] != _state.stepped_in:
            _state.stepped_in = own[0]
            decisions.decided(OPTIMIZER, MADE, own[1])
    except Exception as error:  # noqa: BLE001 - the job comes first
        decisions.failed(error)


def _step_ended(number: int, step: int) -> None:
    """Called when a step that the program has reported ends. ``number`` is its number as an activity."""
    if _state.stepped_in and number != _state.stepped_in:
        decisions.decided(OPTIMIZER, SKIPPED, step)


sections.keep_out(_stepped, _begins)

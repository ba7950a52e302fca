"""Steps of a program that tells none: each step of an optimizer ends one."""

from __future__ import annotations

import importlib
import logging
from typing import Any

from otel_fr.fault_tolerance import sections

_log = logging.getLogger("otel_fr")


def install() -> None:
    """Count the steps of all optimizers of this process, unless the program calls `otel_fr.step`. Never raises."""
    try:
        handle = importlib.import_module("torch.optim.optimizer").register_optimizer_step_post_hook(_stepped)
    except Exception as error:  # noqa: BLE001 - without steps the rest works
        _log.debug("otel-fr: steps of optimizers are not counted: %s", error)
        return
    sections.count_steps_by(handle.remove)


def _stepped(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
    sections.count_step()

"""Entry point of the group ``torch.backends``: torch calls it at the end of ``import torch``."""

from __future__ import annotations


def torch_backend_loaded() -> None:
    """Instrument this process if the environment enables it. Never raises: that would break ``import torch``."""
    try:
        import otel_fr

        otel_fr.instrument()
    except Exception as error:  # noqa: BLE001
        import logging

        logging.getLogger("otel_fr").warning("otel-fr is off: %s: %s", type(error).__name__, error)

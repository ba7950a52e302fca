"""The callback for Lightning, with a real ``Trainer`` on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from otel_fr.ring import ActivityReader

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def needed() -> None:
    pytest.importorskip("lightning.pytorch", reason="lightning is not installed here")


def fit(folder: Path, callback: Any, model: Any, **options: Any) -> None:
    from lightning.pytorch import Trainer

    Trainer(
        accelerator="cpu",
        max_epochs=1,
        limit_train_batches=4,
        limit_val_batches=2,
        val_check_interval=2,
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback],
        **options,
    ).fit(model)


def test_steps_and_sections_of_a_fit(tmp_path: Path, activity: ActivityReader) -> None:
    from lightning.pytorch.demos.boring_classes import BoringModel

    from otel_fr.integrations.lightning import FaultToleranceCallback

    fit(tmp_path, FaultToleranceCallback(validate_timeout=60), BoringModel())
    ended = activity.ended(0)[0]
    names = [item.name for item in ended if not item.is_step]
    assert activity.open_sections() == []
    assert names.count("train_step") == 4
    assert names.count("validate") == 3, "the sanity check, and two validations"
    assert names.count("setup") == 1
    assert "save" in names
    assert {item.timeout_ms for item in ended if item.name == "validate"} == {60_000}
    step = activity.step()
    assert step is not None
    assert step.step == 3
    assert activity.beats().count >= 4 + 3 * 2
    assert activity.misuses == 0


def test_an_exception_leaves_no_section_open(tmp_path: Path, activity: ActivityReader) -> None:
    from lightning.pytorch.demos.boring_classes import BoringModel

    from otel_fr.integrations.lightning import FaultToleranceCallback

    class Failing(BoringModel):  # type: ignore[misc]
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 2:
                raise ValueError("bad sample 4711")
            return super().training_step(batch, batch_idx)

    with pytest.raises(ValueError, match="4711"):
        fit(tmp_path, FaultToleranceCallback(), Failing())
    assert activity.open_sections() == []
    assert activity.misuses == 0

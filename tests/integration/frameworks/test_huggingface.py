"""The callback for Hugging Face's ``Trainer``, with a real trainer on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from otel_fr.ring import ActivityReader

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def needed() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed here")
    pytest.importorskip("accelerate", reason="accelerate is not installed here")


class Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.layer(x)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}


class Failing(Model):
    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        raise ValueError("bad sample 4711")


def train(folder: Path, model: torch.nn.Module, callback: Any) -> None:
    from transformers import Trainer, TrainingArguments

    data = [{"x": torch.ones(2), "labels": torch.ones(1)} for _ in range(16)]
    arguments = TrainingArguments(
        output_dir=str(folder / "out"),
        max_steps=4,
        per_device_train_batch_size=2,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data, callbacks=[callback]).train()


def test_steps_and_sections_of_a_training(tmp_path: Path, activity: ActivityReader) -> None:
    from otel_fr.integrations.huggingface import FaultToleranceCallback

    train(tmp_path, Model(), FaultToleranceCallback(step_timeout=60))
    ended = activity.ended(0)[0]
    names = [item.name for item in ended if not item.is_step]
    assert activity.open_sections() == []
    order = ["train_step", "train_step", "evaluate", "save"]
    assert names == [*order, *order]
    assert {item.timeout_ms for item in ended if item.name == "train_step"} == {60_000}
    step = activity.step()
    assert step is not None
    assert step.step == 3
    assert activity.beats().count > 4
    assert activity.misuses == 0


def test_a_training_after_a_failed_one_begins_anew(tmp_path: Path, activity: ActivityReader) -> None:
    from otel_fr.integrations.huggingface import FaultToleranceCallback

    callback = FaultToleranceCallback()
    with pytest.raises(ValueError, match="4711"):
        train(tmp_path, Failing(), callback)
    assert [item.name for item in activity.open_sections()] == ["train_step"]
    train(tmp_path, Model(), callback)
    assert activity.open_sections() == []
    assert activity.misuses == 0

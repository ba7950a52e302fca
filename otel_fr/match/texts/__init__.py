"""The sentences of findings. Text only, no decisions."""

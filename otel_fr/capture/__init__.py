"""torch to ring: the only code of otel-fr that runs in the training process."""

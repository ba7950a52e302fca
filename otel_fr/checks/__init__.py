"""Checks of a node before it joins a job: ``otel-fr check``, and the rendezvous handler ``otel-fr`` of torchrun.

`settings` says what to check, and `plan` makes one `model.Task` for each check. `runner` runs each task with a time
limit in a process of its own (`child`), because a file system that does not answer blocks every process that uses it.
The child imports only the module of its check. `report` publishes what failed.
"""

"""Checks of a node before it joins a job: ``otel-fr check``, and the rendezvous handler ``otel-fr`` of torchrun.

`settings` says what is checked, `plan` makes one `model.Task` of each thing, and `runner` runs each task in a process
of its own (`child`) with a time limit, because a file system that does not answer blocks whoever touches it. There is a
module for each kind of check, which is imported in the child only. `report` publishes what failed.
"""

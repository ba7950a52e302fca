"""Records torch's collectives in the ring, inside the training process.

`hook` notices the first process group and starts a `session`. The session creates the ring, starts the monitor
(`launch`) and installs the kernels (`dispatcher`). A kernel runs for every call: `recorder` numbers the call and
writes it into the ring. It uses `operations` (what each operator is), `groups` (live process groups and their
counters), `definitions` (what is written once for equal calls) and `sites` (the user's line of code).
`completion` (a future) or `waits` (a wait) reports the end of a call. `responder` and `stacks` answer the monitor.
`exceptions` records uncaught exceptions.
"""

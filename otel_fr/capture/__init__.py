"""Records torch's collectives in the ring: the only code of otel-fr that runs in the training process.

The way of a call: `hook` notices the first process group and starts a `session`, which creates the ring, starts the
monitor (`launch`) and installs the kernels (`dispatcher`). A kernel runs for every call: `recorder` gives the call its
numbers and writes it into the ring, with `operations` (what each operator is), `groups` (live process groups and their
counters), `definitions` (what is written once for equal calls) and `sites` (the user's line of code).
The end of a call comes through `completion` (a future) or `waits` (a wait). `responder` and `stacks` answer the
monitor; `exceptions` records uncaught exceptions.
"""

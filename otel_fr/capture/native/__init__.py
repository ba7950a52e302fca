"""The compiled capture engine (README.md).

`_ringwriter`, a CPython extension, numbers calls and writes them into the ring; `kernel.cpp`, built for one torch,
calls it from torch's dispatcher. The Python engine in `otel_fr.capture` records the same without them.
"""

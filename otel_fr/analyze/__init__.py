"""The offline analyzer: flight-recorder files -> evidence -> match engine -> output.

`cli` reads the options. `analysis.load` does the rest in this order: `otel_fr.dumps.read` reads the files, `assemble`
builds the runs and their evidence from them, `otel_fr.match` judges the newest run. `output` has one module for each
form of the result, and `collectives` lists the calls of each collective for them. `notes` are what the files leave
open, and `open_calls` the calls in flight where no fault was found.

::

    from otel_fr.analyze import load

    analysis = load("/tmp/flight-recorder")
    for incident in analysis.incidents:
        print(incident["summary"])
"""

from otel_fr.analyze.analysis import FAULT, HEALTHY, UNDECIDED, UNUSABLE, Analysis, load
from otel_fr.analyze.collectives import Collective

__all__ = ["FAULT", "HEALTHY", "UNDECIDED", "UNUSABLE", "Analysis", "Collective", "load"]

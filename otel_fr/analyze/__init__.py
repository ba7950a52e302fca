"""The offline analyzer: flight-recorder files -> evidence -> match engine -> output.

`cli` reads the options. `analysis.load` does the rest in this order: `otel_fr.dumps.read` reads the files, `assemble`
builds the runs and their evidence, and `otel_fr.match` judges the newest run.

`output` has one module for each form of the result, and `collectives` lists the calls of each collective for them.
`notes` says what the files do not show, and `open_calls` finds the calls in flight if there is no fault. `report` is
the result for programs and notebooks, and `frames` turns it into data frames. `tables` has the calls as columns, and
`assemble.clocks` aligns the ranks' times.

::

    import otel_fr

    report = otel_fr.analyze.load("flight-recorder")
    for incident in report.incidents:
        print(incident["summary"])
"""

from otel_fr.analyze.analysis import FAULT, HEALTHY, UNDECIDED, UNUSABLE, Analysis
from otel_fr.analyze.collectives import Collective
from otel_fr.analyze.report import Report, load

__all__ = ["FAULT", "HEALTHY", "UNDECIDED", "UNUSABLE", "Analysis", "Collective", "Report", "load"]

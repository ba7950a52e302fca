"""The offline analyzer: flight-recorder files -> evidence -> the match engine -> a report.

::

    from otel_fr.analyze import load

    report = load("/tmp/flight-recorder")
    for incident in report.incidents:
        print(incident["summary"])
"""

from otel_fr.analyze.analysis import FAULT, HEALTHY, UNUSABLE, Analysis, load
from otel_fr.analyze.collectives import Collective

__all__ = ["FAULT", "HEALTHY", "UNUSABLE", "Analysis", "Collective", "load"]

"""``python -m otel_fr.analyze.brief DIR``: the verdict as one line of JSON, for the monitor that prints it.

A process of its own, so that no file, whatever is in it, can end or slow down a monitor.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from otel_fr.analyze.analysis import Analysis, load


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the verdict on the newest run in a folder. Return 0, whatever the verdict is."""
    parser = argparse.ArgumentParser(prog="python -m otel_fr.analyze.brief", description=__doc__)
    parser.add_argument("path")
    parser.add_argument("--prefix")
    options = parser.parse_args(arguments)
    print(json.dumps(brief(load(options.path, options.prefix))))
    return 0


def brief(analysis: Analysis) -> dict[str, object]:
    """The verdict as JSON.

    Its keys: ``run_id``; ``ranks``: the ranks with a file; ``world_size``: the number of known ranks; ``causes``, the
    first fault first: ``{"id", "category", "summary", "excused"}`` (`Finding.is_excused`); ``consequences``: the number
    of faults that follow from these.
    """
    run = analysis.run
    incidents = analysis.incidents
    causes = [pair for pair in zip(incidents, analysis.findings, strict=True) if not pair[0]["caused_by"]]
    return {
        "run_id": "" if run is None else run.run_id,
        "ranks": sorted(rank for rank, info in analysis.ranks.items() if info.file),
        "world_size": len(analysis.ranks),
        "causes": [
            {"id": one["id"], "category": one["category"], "summary": one["summary"], "excused": finding.is_excused}
            for one, finding in causes
        ],
        "consequences": len(incidents) - len(causes),
    }


if __name__ == "__main__":
    sys.exit(main())

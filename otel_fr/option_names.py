"""Unknown names of options and environment variables: what was probably meant, and which are no mistake."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterable
from typing import Final

OF_KUBERNETES: Final = re.compile(r"(^|_)(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)$")
"""Suffixes of the variables that Kubernetes adds to each pod's environment for a Service, after the Service's name."""
_PREFIX: Final = "OTEL_FR_"
_OF_OTHERS: Final = ("OTEL_FR_COLLECTOR_", "OTEL_FR_TEST_")
"""Prefixes of the collector's options (it refuses unknown ones), and of variables of otel-fr's tests."""
_MOST_DIFFERENT: Final = 2
"""Most letters of a mistyped name that may differ, if they are at most a third of the name."""


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return `` (did you mean NAME?)`` with the nearest of the known names; empty if none is near enough.

    Distance is the number of letters that differ. difflib's own measure, the share of those that agree, confuses long
    names that have a word or a prefix in common.
    """
    if not known:
        return ""

    def difference(other: str) -> int:
        blocks = difflib.SequenceMatcher(None, name, other, autojunk=False).get_matching_blocks()
        return max(len(name), len(other)) - sum(block.size for block in blocks)

    nearest = min(known, key=difference)
    own = max(len(name), len(nearest)) - len(os.path.commonprefix([name, *known]))  # noqa: RUF071 - they are no paths
    return f" (did you mean {nearest}?)" if difference(nearest) <= min(_MOST_DIFFERENT, own // 3) else ""


def unknown_variables(given: Iterable[str], known: Collection[str]) -> str:
    """Name in one sentence the variables that begin like otel-fr's own but do not exist; empty: there are none."""
    own = sorted(name for name in given if name.startswith(_PREFIX) and not name.startswith(_OF_OTHERS))
    unknown = [name for name in own if name not in known and not OF_KUBERNETES.search(name)]
    if not unknown:
        return ""
    told = ", ".join(name + did_you_mean(name, known) for name in unknown)
    return f"ignored, otel-fr has no such variable: {told}"


def misspelt(given: Iterable[str], known: Collection[str]) -> str:
    """Return the unknown names that are close to a known one, each with that one; empty: there are none."""
    others = sorted(set(given).difference(known))
    return ", ".join(name + meant for name in others if (meant := did_you_mean(name, known)))

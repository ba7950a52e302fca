"""``otel-fr`` with a match engine that takes a minute. ``slow_judge.py loop|aside ...`` says where it judges."""

from __future__ import annotations

import sys
import time

from otel_fr_collector import ending
from otel_fr_collector.incidents import judge

from otel_fr.cli import main

JUDGING_SECONDS = 60.0
LAST_WORDS = 3.0
"""Seconds reserved for the last message. The collector has twice as many to stop, because a busy machine is slow."""


def _diagnose(_: object) -> list[object]:
    print("judging", flush=True)
    time.sleep(JUDGING_SECONDS)
    return []


if __name__ == "__main__":
    vars(judge)["diagnose"] = _diagnose
    ending.MARGIN = ending.LOG_SECONDS = LAST_WORDS
    judge.MAX_SIZE_ON_LOOP = 10**9 if sys.argv[1] == "loop" else 0
    sys.exit(main(sys.argv[2:]))

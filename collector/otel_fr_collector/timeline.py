"""How long what must last before the collector believes it, tells it or forgets it: in the order of a job's life.

In seconds, where nothing else is said. Two times come from outside: `otel_fr.rank_report.DEFAULT_INTERVAL`, at which
a rank reports that waits or has just begun, and the stall time of a run, which its ranks report: a wait is long from
`otel_fr.match.WAIT_SHARE` of it. `triggers.due` applies most of the times between a fault and its verdict.
"""

from __future__ import annotations

from otel_fr.rank_report import DEFAULT_INTERVAL

# Ranks report.

REPORT_INTERVAL = 5.0
"""Between two progress reports of a rank that moves as usual, at most (otel_fr/monitor/rules.py): monitors choose
shorter ones where the stall time or the peer timeout is short."""
ALL_REPORTED = REPORT_INTERVAL + 2.0
"""Within which each rank that moves has reported. So long, a question about fingerprints that differ waits for members
that may not have come as far, and a run counts as one whose ranks report to this collector."""
STEPS_STALE = ALL_REPORTED + 1.0
"""Without a report of the rank whose steps are counted, after which another one is followed."""
GRACE = 1.5
"""After the time at which the next report of a rank was due, from which the rank counts as silent."""
SILENCE = DEFAULT_INTERVAL + GRACE
"""The same since the last report, of a rank that reports each second."""
EARLIER = 0.1
"""By which a report may date a call earlier than the one before did and still say the same: its way here was
shorter."""

# The collector may be behind, or cut off: in that time no silence counts.

TICK_GAP = 0.5
"""Between two steps of the collector from which it counts as blocked; they are a tenth of a second apart."""
MAX_TICK_GAP = 1.0
"""The same, from which silence during that time is ignored."""
QUIET = DEFAULT_INTERVAL
"""Without any report of a run: its ranks report as often where one waits."""
OUTAGE = 2 * DEFAULT_INTERVAL
"""The same, from which it may have been an outage: a rank that waits, or has just begun, reports each second."""
RECENT = int(REPORT_INTERVAL)
"""Over which the lags of a run's reports count; ranks that move as usual report as often at least."""
LOST_SECONDS = 10.0
"""For so long, time in which the collector was blocked counts. A longer silence is the rank's own."""
MAX_BEHIND = 30.0
"""That are allowed for at most: reports with made-up times delay the verdicts of their own run no longer."""
QUICKEST_SECONDS = 60.0
"""For so long at least, and twice as long at most, a rank's quickest report is what its others are compared with: one
that is later for longer has another way here, or its machine's clock was set."""
RECONNECT_SECONDS = 30.0
"""After a run's first report, for which its other ranks may still be reconnecting.

gRPC clients wait between two attempts to connect: 1 s at first, 1.6 times as long each time (gRPC's connection
backoff). After an outage of 20 s the next attempt comes within about 10 s of the collector's return; a monitor's
is made within `otel_fr.otlp_sender.CONNECT_SECONDS`.
"""
RETURN_SECONDS = 600.0
"""After the collector's start, from which no rank is expected to reconnect any more."""
SHARE_PATIENCE = 2.0
"""For which a new run is not judged. In this time the collector asks the others for their incidents of the run."""

# Something is wrong: what must settle before it is judged.

MIN_INTERVAL = 0.25
"""Between two judgements of one run."""
OPEN_PAUSE = 3.0
"""The same while the run has an open incident, in times of the pause without one: the ranks of a large job still
tell where they stand, and their reports go first."""
SLOW_AFTER = 30.0
"""Since anything has changed, from which a run is judged each `SLOW_INTERVAL` only."""
SLOW_INTERVAL = 2.0
FAILING_SECONDS = 300.0
"""For which each judgement of a run has failed, from which `/healthz` says so: memory that runs short for a while needs
nobody's attention."""
OPEN_SECONDS = 15.0
"""Since a wait was last seen to last, for which its group stands still: more than some `SLOW_INTERVAL`."""
FRESH_BEFORE = 0.3
"""Before a call's threshold, from which a report of a culprit counts as fresh."""
SAID_PATIENCE = REPORT_INTERVAL + GRACE
"""Since a wait became too long, in which it is not judged as long as ranks that it lacks have yet to say where they
stand."""
WITNESS_PATIENCE = 3.0
"""Stall times for which a verdict that names nobody is held back until the ranks that were asked have answered."""
ENDING_PATIENCE = 2.0
"""The same of one that names ranks whose peers have ended well: a job ends rank by rank."""
DIFFERENCE_SETTLE = 0.5
"""From a difference of fingerprints to the question, in which other ranks report theirs: it shows which ranks are few.
`ALL_REPORTED` is the latest."""
ANSWER_SECONDS = 3.0
"""For one round of questions to some ranks; then those count that have answered."""
ANSWER_PATIENCE = 3 * ANSWER_SECONDS
"""For which a round is longer if too few monitors have answered to continue."""
LATE_ANSWERS = 60.0
"""For which the last round's late answers are still taken: their calls may show that another rank is the odd one."""
MISMATCH_SETTLE = 0.3
"""After a mismatch, in which the other ranks' calls arrive: the majority shows which rank differs."""
MISMATCH_PATIENCE = 1.5
"""Longest wait for members whose call has not arrived: exporters send once a second. If monitors were asked for the
calls, their round is waited for, too (`ANSWER_SECONDS`)."""
BAD_END_MINIMUM = 0.2
"""Shortest wait after a bad end, when all others have reported since."""
BAD_END_SETTLE = 1.0
"""After a bad end, in which the others' reports arrive: all of them together show which failed first."""
STOPPED_SETTLE = 3.0
"""The same where the only ranks that ended badly were asked to stop, or killed in a hang: a job that is cancelled ends
rank by rank. Also while a rank leaves: how it ends shows whether the others failed for that. Once all have
ended, nothing more is waited for."""
SLOWNESS_INTERVAL = 1.0
"""Between two looks at who comes last in a run's groups."""

# An incident opens, and people are notified.

SAME_WAIT = 1.0
"""By which two judgements may place the begin of one wait apart; the first stands then."""
BEFORE_DETECTED = 10.0
"""By which a fault in which no rank waits may have begun before it was detected."""
AGAIN_SECONDS = 60.0
"""After a wait that ended well, in which one for the same ranks is the same fault. That has happened twice then, and is
over once it has not happened for as long."""
MISMATCH_AFTERMATH = 60.0
"""For which other faults of a mismatch's ranks count as its consequences: a job that runs longer has recovered."""
FILES_PATIENCE = 0.4
"""For which a new incident is held back from the terminal to wait for the paths of its files."""
PUBLISH_PATIENCE = 0.5
"""For which an incident change waits for the store before it is published; mostly that takes some milliseconds."""
TRACE_HOLD = 2.0
"""For which a new incident's trace is held back while it is not known where its culprits are: their stacks arrive some
tenths of a second after the incident opens, and a span cannot be changed."""
ALERT_RESEND = 60.0
"""Between two posts of a firing alert; Alertmanager asks its clients for 30 s to 3 minutes."""
ALERT_HOLD = 4 * ALERT_RESEND
"""After which Alertmanager resolves an alert that is no longer posted (four intervals, as in Prometheus)."""
TOLD_SECONDS = 120.0
"""After which people know of an incident: Alertmanager groups alerts for some time before it tells them (30 s by its
default), and forgets those that end before. If there is something to do, an incident's alert lasts as long at least,
also once it is resolved. From then on it may give way to one of a job that has as many."""

# The job is over, and is forgotten.

OVER_AFTER = REPORT_INTERVAL
"""Without telemetry of a run, after which it counts as over, unless a rank still reports."""
ENDED_SECONDS = 10.0
"""Without telemetry of a run all of whose ranks have ended, after which its incidents are resolved: monitors send the
last that they have after the end, as the paths of files, and what could not be sent at first. It may correct the
verdict."""
STOPPED_SECONDS = 60.0
"""The same if those who are accused were only stopped from outside: nodes may join the job, which then starts again. Or
if some ranks were never heard, which may still come."""
UNHEARD_SECONDS = 600.0
"""The same of any other run."""
OTHERS_UNHEARD = 15.0
"""The same of a job of another collector, which counts as over then: its line is written each 5 s."""
ESTABLISHED = 5.0
"""Over which a run must have sent telemetry before it is no longer evicted for a new one."""
CLEAN_FORGET = 60.0
"""After which a run that ended well is dropped; late spans arrive within that time."""
IDLE_FORGET = 3_600.0
"""Without telemetry, after which a run is dropped."""

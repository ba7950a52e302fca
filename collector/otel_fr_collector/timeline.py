"""How long something must last before the collector believes it, publishes it or forgets it, in order of a job's life.

Times are in seconds unless stated otherwise. Two times come from elsewhere: `otel_fr.rank_report.DEFAULT_INTERVAL`,
the interval between reports of a rank that waits or has just begun; and the stall time of a run, which its ranks
report. A wait is long from `otel_fr.match.WAIT_SHARE` of the stall time on. `triggers.due` applies most of the times
between a fault and its verdict.
"""

from __future__ import annotations

from otel_fr.rank_report import DEFAULT_INTERVAL

# Ranks report.

REPORT_INTERVAL = 5.0
"""Longest time between two progress reports of a rank that moves as usual (otel_fr/monitor/rules.py). Monitors choose
a shorter one if the stall time or the peer timeout is short."""
ALL_REPORTED = REPORT_INTERVAL + 2.0
"""Time within which each rank that moves has reported. A question about differing fingerprints waits this long for
members that may not have come as far. After its last telemetry, a run counts this long as reporting to this
collector."""
STEPS_STALE = ALL_REPORTED + 1.0
"""One rank's steps are counted. If it sends no report for this time, another rank's steps are."""
GRACE = 1.5
"""A rank counts as silent if its next report is overdue by this time."""
SILENCE = DEFAULT_INTERVAL + GRACE
"""A rank that reports each second counts as silent after this time without a report."""
EARLIER = 0.1
"""A report may date a call earlier than the previous report by this much, and the call still counts as the same: the
report may have arrived faster."""

# The collector may be behind or cut off. Silence during that time does not count.

TICK_GAP = 0.5
"""If two steps of the collector are this far apart, it was blocked. Usually they are a tenth of a second apart."""
MAX_TICK_GAP = 1.0
"""If two steps are this far apart, all silence before the second step is ignored."""
QUIET = DEFAULT_INTERVAL
"""Usual time without any report of a run: a rank that waits reports this often."""
OUTAGE = 2 * DEFAULT_INTERVAL
"""Time without any report of a run after which there may have been an outage: a rank that waits, or has just begun,
reports each second."""
RECENT = int(REPORT_INTERVAL)
"""Time over which the lags of a run's reports count. Ranks that move as usual report at least as often."""
LOST_SECONDS = 10.0
"""Time for which a blocked phase of the collector counts. Silence that lasts longer is the rank's own."""
MAX_BEHIND = 30.0
"""Longest time by which the collector counts as behind. Reports with made-up times delay their run's verdicts by no
more."""
QUICKEST_SECONDS = 60.0
"""A rank's reports are compared with its quickest report of this many seconds, or of up to twice as many. If they stay
later for longer, they take another route, or the machine's clock was set."""
RECONNECT_SECONDS = 30.0
"""Time after a run's first report for which its other ranks may still be reconnecting.

gRPC clients wait between two attempts to connect: 1 s at first, 1.6 times as long each time (gRPC's connection
backoff). After an outage of 20 s the next attempt comes within about 10 s of the collector's return; a monitor's
is made within `otel_fr.otlp_sender.CONNECT_SECONDS`.
"""
RETURN_SECONDS = 600.0
"""Time after the collector's start from which no rank is expected to reconnect any more."""
SHARE_PATIENCE = 2.0
"""Time for which a new run is not judged, while this collector asks the others for their incidents of the run."""

# Something is wrong: what must settle before it is judged.

MIN_INTERVAL = 0.25
"""Shortest time between two judgements of one run."""
OPEN_PAUSE = 3.0
"""Factor for the pause between two judgements while the run has an open incident. The ranks of a large job still report
where they are, and their reports come first."""
SLOW_AFTER = 30.0
"""Time without a change after which a run is judged only every `SLOW_INTERVAL`."""
SLOW_INTERVAL = 2.0
FAILING_SECONDS = 300.0
"""Time for which each judgement of a run must have failed before `/healthz` reports it: a short lack of memory needs
nobody's attention."""
OPEN_SECONDS = 15.0
"""Time for which a group counts as blocked after a wait was last seen in it: several `SLOW_INTERVAL`."""
FRESH_BEFORE = 0.3
"""A culprit's report counts as fresh from this time before a call's threshold on."""
SAID_PATIENCE = REPORT_INTERVAL + GRACE
"""After a wait became too long, time for which its judgement waits for reports of the awaited ranks."""
WITNESS_PATIENCE = 3.0
"""Most stall times for which a verdict that names nobody is held back, until asked ranks have answered."""
ENDING_PATIENCE = 2.0
"""Stall times for which a verdict is held back if it names ranks whose peers have ended well: a job ends rank by
rank."""
DIFFERENCE_SETTLE = 0.5
"""Time from a difference of fingerprints to the question about it. Other ranks report their fingerprints meanwhile,
which shows which ranks are the minority. `ALL_REPORTED` is the longest wait."""
ANSWER_SECONDS = 3.0
"""Time for one round of questions to ranks. After it, the answers that have come count."""
ANSWER_PATIENCE = 3 * ANSWER_SECONDS
"""Additional time for a round in which too few monitors have answered to continue."""
LATE_ANSWERS = 60.0
"""Time for which late answers to the last round are taken: their calls may show that another rank is the odd one."""
MISMATCH_SETTLE = 0.3
"""Time after a mismatch in which the other ranks' calls arrive: the majority shows which rank differs."""
MISMATCH_PATIENCE = 1.5
"""Longest wait for members whose call has not arrived: exporters send once a second. If monitors were asked for the
calls, it is longer by their round (`ANSWER_SECONDS`)."""
BAD_END_MINIMUM = 0.2
"""Shortest wait after a bad end, when all others have reported since."""
BAD_END_SETTLE = 1.0
"""Time after a bad end in which the other ranks' reports arrive: all of them together show which rank failed first."""
STOPPED_SETTLE = 3.0
"""Time after a bad end if all ranks that ended badly were asked to stop, or killed in a hang: a cancelled job ends rank
by rank. Also applies while a rank is exiting: how it ends shows whether the others failed because of it. The wait is
over once all ranks have ended."""
SLOWNESS_INTERVAL = 1.0
"""Time between two checks of who comes last in a run's groups."""

# An incident opens, and people are notified.

SAME_WAIT = 1.0
"""Two judgements may disagree by up to this time about the begin of a wait. Then the first judgement counts."""
BEFORE_DETECTED = 10.0
"""Longest time between the begin of a fault in which no rank waits and its detection."""
AGAIN_SECONDS = 60.0
"""After a wait that ended well, time in which another wait for the same ranks is the same fault. A fault that has
happened twice is over once it has not happened for this time."""
MISMATCH_AFTERMATH = 60.0
"""Time for which other faults of a mismatch's ranks count as its consequences: a job that runs longer has recovered."""
FILES_PATIENCE = 0.4
"""Time for which a new incident is held back from the terminal to wait for the paths of its files."""
PUBLISH_PATIENCE = 0.5
"""Longest time that an incident's change waits for the store before it is published; mostly some milliseconds."""
TRACE_HOLD = 2.0
"""Time for which a new incident's trace is held back while its culprits' stacks are not known: they arrive some tenths
of a second after the incident opens, and a span cannot be changed."""
ALERT_RESEND = 60.0
"""Time between two posts of a firing alert; Alertmanager asks its clients for 30 s to 3 minutes."""
ALERT_HOLD = 4 * ALERT_RESEND
"""Time after which Alertmanager resolves an alert that is no longer posted (four intervals, as in Prometheus)."""
TOLD_SECONDS = 120.0
"""Time after which people know of an incident: Alertmanager groups alerts for some time before it sends them (30 s by
default), and forgets alerts that end before. If there is something to do, an incident's alert lasts at least this long,
even if the incident is resolved. After this time, an incident may give way to an incident of a job without any."""

# The job is over, and is forgotten.

OVER_AFTER = REPORT_INTERVAL
"""Time without telemetry after which a run counts as over, unless a rank still reports."""
ENDED_SECONDS = 10.0
"""Time without telemetry after which the incidents of a run are resolved if all of its ranks have ended. After the end,
monitors still send the paths of files, and what they could not send before, which may correct the verdict."""
STOPPED_SECONDS = 60.0
"""The same if the accused ranks were only stopped from outside, because nodes may join the job, which then starts
again. Also if some ranks were never heard, because they may still come."""
UNHEARD_SECONDS = 600.0
"""The same for any other run."""
OTHERS_UNHEARD = 15.0
"""Time after which a job of another collector counts as over. That collector writes the job's line every 5 s."""
ESTABLISHED = 5.0
"""Time over which a run must have sent telemetry before it is no longer evicted for a new run of the same tenant."""
CLEAN_FORGET = 60.0
"""Time without telemetry after which a run that ended well is dropped. Late spans arrive within it."""
IDLE_FORGET = 3_600.0
"""Time without telemetry after which any other run is dropped."""

"""``python -m otel_fr.monitor --ring PATH [--fd N]``: started by the rank, one per rank."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from otel_fr import otlp_sender
from otel_fr.config import EXPORTERS, VARIABLES, Config
from otel_fr.monitor import logs
from otel_fr.monitor.control.client import ControlClient
from otel_fr.monitor.control.link import Link
from otel_fr.monitor.process.ending import RankProcess
from otel_fr.monitor.ring.cleanup import keep_ring, remove_stale_rings
from otel_fr.monitor.telemetry.endpoint_probe import EndpointTrouble
from otel_fr.monitor.telemetry.export import Exporter
from otel_fr.monitor.telemetry.reporter import Reporter
from otel_fr.monitor.wake import Wake
from otel_fr.monitor.watch import Monitor
from otel_fr.option_names import unknown_variables
from otel_fr.ring import RingFormatError, RingReader

NICENESS = 5
"""The monitor runs at a lower priority than the training job."""

_log = logging.getLogger("otel_fr.monitor")


def _sender(signal_name: otlp_sender.Signal, timeout: float | None = None) -> otlp_sender.Sender | None:
    if os.environ.get(EXPORTERS[signal_name], "").strip().lower() == "none":
        return None
    if signal_name == "metrics" and not otlp_sender.endpoint_of(signal_name)[1]:
        return None  # an endpoint for another signal need not accept metrics
    try:
        sender = otlp_sender.sender_from_env(signal_name, timeout=timeout)
    except Exception as error:  # noqa: BLE001 - watch the rank without export
        _log.error("cannot export %s: %s: %s", signal_name, type(error).__name__, error)
        return None
    return sender


def _control(
    target: otlp_sender.GrpcTarget,
    reporter: Reporter,
    exporter: Exporter,
    wake: Callable[[], None],
    not_offered: Callable[[], None],
    folder: Path,
) -> ControlClient:
    """Create the client that receives a collector's commands and shares one stream with this machine's monitors."""
    control = ControlClient(target, lambda: reporter.run.identity, wake, not_offered, folder)
    control.on_report = exporter.put_passed
    exporter.share(control.pass_report, lambda: control.siblings)
    return control


def _note_no_failures(monitor: Monitor, config: Config, why: str) -> None:
    """Warn, once on each machine, if this rank must act on failed peers but will not learn of them."""
    if config.on_peer_failure != "ignore" and monitor.is_first("nobody reports failed peers"):
        _log.warning("OTEL_FR_ON_PEER_FAILURE=%s has no effect: %s", config.on_peer_failure, why)


def _configure(*, is_first: bool) -> tuple[Config, logging.Handler]:
    """Read the settings, and set up the log. The first monitor of rank 0 warns of unknown variables, for all ranks."""
    with logs.silence():  # the rank has already warned of invalid values
        config = Config.from_env()
    handler = logs.configure(config.rank)
    if config.rank == 0 and is_first and (unknown := unknown_variables(os.environ, VARIABLES)):
        _log.warning("%s", unknown)
    return config, handler


def main(arguments: list[str] | None = None) -> int:
    """Watch one rank until its end. Return 0, or 1 if the ring cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m otel_fr.monitor", description=__doc__)
    parser.add_argument("--ring", type=Path, required=True, help="the rank's ring file")
    parser.add_argument("--fd", type=int, default=-1, help="descriptor of the socket to the rank; -1: none")
    parser.add_argument("--pidfd", type=int, default=-1, help="descriptor of the rank's process; -1: none")
    parser.add_argument("--again", action="store_true", help="the rank had a monitor before, which was killed")
    options = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)  # these signals end the job, and the monitor must report its end
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    logs.close_input_and_output()
    config, handler = _configure(is_first=not options.again)
    try:
        reader = RingReader.open(options.ring)
    except (OSError, RingFormatError) as error:
        _log.error("this rank is not watched: %s", error)
        return 1
    wake = Wake()
    batching = config.span_batching
    spans = _sender("traces", batching.timeout) if config.export and config.sampling_ratio is not None else None
    reports = _sender("logs") if config.export else None
    metrics = _sender("metrics") if config.export else None
    exporter = Exporter(spans, reports, metrics, batching)
    reporter = Reporter(reader, config, exporter, is_first=not options.again)
    target = otlp_sender.grpc_target(reports) if reports is not None else None

    def not_offered() -> None:
        _note_no_failures(
            monitor, config, f"{target.endpoint} is not an otel-fr collector" if target is not None else ""
        )

    folder = options.ring.parent
    control = None if target is None else _control(target, reporter, exporter, wake.set, not_offered, folder)
    link = Link(options.fd) if options.fd >= 0 else None
    keep_ring(options.ring)
    remove_stale_rings(folder)
    process = RankProcess(reader.pid, reader.pid_start_ns, options.pidfd if options.pidfd >= 0 else None)
    monitor = Monitor(
        reader=reader,
        ring=options.ring,
        process=process,
        link=link,
        config=config,
        reporter=reporter,
        exporter=exporter,
        control=control,
        wake=wake,
    )
    if control is not None:
        control.is_first = monitor.is_first
    else:
        _note_no_failures(monitor, config, "its reports do not go to a collector over gRPC")
    trouble = EndpointTrouble(monitor.is_first, is_first_node=config.node_rank == 0)
    logs.watch_exporters(handler, exporter.note_trouble, trouble.explain)
    signal.signal(signal.SIGUSR1, monitor.dump_signal)
    signal.set_wakeup_fd(wake.writing, warn_on_full_buffer=False)
    if link is not None:
        link.send({"pid": os.getpid()})  # only now: a process that knows this pid may send SIGUSR1
    monitor.run()
    return 0


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stderr.flush()
    # Exporter threads may be inside gRPC or in a long wait; a normal interpreter exit would wait for them.
    os._exit(code)

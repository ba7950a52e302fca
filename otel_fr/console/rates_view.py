"""The rates of a job as text: collectives and bytes per second, bandwidth, share of waiting, and the slowest rank."""

from __future__ import annotations

from otel_fr.presentation import duration_text, short_duration_text
from otel_fr.printable import one_line
from otel_fr.rate_answers import LatestRates

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def bytes_text(count: float) -> str:
    """``"3.2 MB"``: with decimal prefixes, like the bandwidths of nccl-tests."""
    for unit in _UNITS[:-1]:
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1_000
    return f"{count:.3g} {_UNITS[-1]}"


def rates_cells(rates: LatestRates | None) -> tuple[str, str, str]:
    """The cells in the list of jobs: collectives per second, bus bandwidth, share of waiting. ``-``: not known."""
    if rates is None:
        return "-", "-", "-"
    collectives, bus, wait = rates["collectives_per_s"], rates["bus_bandwidth"], rates["wait_share"]
    return (
        "-" if collectives is None else f"{collectives:.3g}",
        "-" if bus is None else f"{bytes_text(bus)}/s",
        "-" if wait is None else f"{wait * 100:.0f} %",
    )


def rates_lines(rates: LatestRates | None) -> list[str]:
    """The lines about one job: the known rates of the latest minute."""
    if rates is None:
        return []
    collectives, size, bus = rates["collectives_per_s"], rates["bytes_per_s"], rates["bus_bandwidth"]
    found = []
    if collectives is not None:
        found.append(f"{collectives:.3g} collectives/s")
    if size is not None:
        found.append(f"{bytes_text(size)}/s")
    if bus is not None:
        found.append(f"bus bandwidth {bytes_text(bus)}/s")
    if rates["wait_share"] is not None:
        found.append(f"groups wait for their last rank for {rates['wait_share'] * 100:.0f} % of the time")
    if rates["step_s"] is not None:
        found.append(f"a step takes {short_duration_text(rates['step_s'])}")
    return [", ".join(found)] if found else []


def slowest_lines(rates: LatestRates | None) -> list[str]:
    """The rank that costs the job most, if one is named."""
    slowest = None if rates is None else rates["slowest"]
    if slowest is None:
        return []
    lost = slowest["lost_per_step_s"]
    step = "" if lost is None else f"; each step loses {short_duration_text(lost)}"
    group = one_line(slowest["process_group"])
    share = f"{slowest['waited'] * 100:.0f} % of the latest {duration_text(slowest['over_s'])}"
    return [f"rank {slowest['rank']} in {group}: its group waited for it for {share}{step}"]

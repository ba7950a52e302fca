"""Finds the mismatches that are faults of their own, and which of them are over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from otel_fr.match.facts.calls import failed_at_once
from otel_fr.match.facts.instances import Instance, InstanceKey
from otel_fr.match.facts.mismatch import Mismatch, judge, shift_of
from otel_fr.match.facts.new_groups import first_mismatch
from otel_fr.match.model import CallState, Ending, Evidence


def first_mismatches(evidence: Evidence, instances: Mapping[InstanceKey, Instance]) -> list[Mismatch]:
    """Return the mismatches that are faults of their own.

    For the collectives of each group, these are the mismatches up to the first that is not over: later ones follow from
    it. Mismatches of one category that share a rank are one fault: only the first is returned, and it is over if the
    last one is. All mismatches of messages are returned. Of creations of groups, only the first that did harm is
    (`new_groups`).
    """
    streams: dict[tuple[str, str], list[Instance]] = {}
    for instance in instances.values():
        streams.setdefault((instance.group.id, instance.stream), []).append(instance)
    found: list[Mismatch] = []
    creations: list[list[Instance]] = []
    for (_, stream), own in sorted(streams.items()):
        own.sort(key=lambda instance: instance.sequence_id)
        if stream == "p2p":
            found.extend(bad for bad in map(judge, own) if bad is not None)
        elif stream == "group":
            creations.append(own)
        else:
            found.extend(_merged(_episodes(evidence, instances, own)))
    names = {bad.instance.group.name for bad in found}
    return found + [bad for own in creations if (bad := first_mismatch(evidence, own, names)) is not None]


def _episodes(
    evidence: Evidence, instances: Mapping[InstanceKey, Instance], own: Iterable[Instance]
) -> list[list[Mismatch]]:
    """Return the mismatches of one stream in sets at consecutive numbers, up to the first set that is not over."""
    episodes: list[list[Mismatch]] = []
    episode: list[Mismatch] = []
    for bad in filter(None, map(judge, own)):
        if was_refused(evidence, bad):
            continue
        if episode and bad.instance.sequence_id > episode[-1].instance.sequence_id + 1:
            if not _settle(evidence, instances, episode):
                return episodes
            episode = []
        if not episode:
            episodes.append(episode)
        episode.append(bad)
        if not have_ended(bad.instance):
            return episodes
    if episode:
        _settle(evidence, instances, episode)
    return episodes


def was_refused(evidence: Evidence, bad: Mismatch | None) -> bool:
    """True if every member called wrongly, the backend refused that at once, and no rank has ended because of it.

    Nothing was sent, so no result is wrong: a program may try a call and continue without it.
    """
    if bad is None or not bad.is_own or set(bad.differing) != set(bad.instance.members):
        return False
    calls = [bad.instance.call(rank) for rank in bad.instance.members]
    return all(failed_at_once(call, evidence.window) for call in calls) and all(
        call.caught or evidence.ending_of(call.rank) in (Ending.RUNNING, Ending.CLEAN) for call in calls
    )


def _settle(evidence: Evidence, instances: Mapping[InstanceKey, Instance], episode: list[Mismatch]) -> bool:
    """Decide whether these mismatches are over: all members have completed later calls, and are in step.

    A rank that calls wrongly each time in the same way is in step, too.
    """
    first, last = episode[0], episode[-1]
    went_on = _went_on(evidence, last.instance)
    went_on = went_on or (all(_is_alike(bad, first) for bad in episode) and _went_on(evidence, first.instance))
    is_over = went_on and not any(shift_of(instances, bad) for bad in episode)
    for bad in episode:
        bad.is_over = is_over
    return is_over


def _is_alike(one: Mismatch, other: Mismatch) -> bool:
    return (one.category, one.differing, one.values) == (other.category, other.differing, other.values)


def have_ended(instance: Instance) -> bool:
    """True if all known calls of the instance have completed, or failed and the failure was caught."""
    calls = [instance.call(rank) for rank in instance.calls]
    return all(call.state is CallState.COMPLETED or call.caught for call in calls)


def _went_on(evidence: Evidence, instance: Instance) -> bool:
    """True if every member has completed a later call than this one.

    Members without evidence are left out: they joined whatever the others completed after it.
    """
    known = [r for r in instance.members if evidence.ending_of(r) is not Ending.UNKNOWN]
    reached = [evidence.ranks[r].progress.get(instance.group.id) for r in known]
    return bool(known) and all(
        progress is not None and progress.completed is not None and progress.completed > instance.sequence_id
        for progress in reached
    )


def _merged(episodes: Iterable[list[Mismatch]]) -> list[Mismatch]:
    """Return the mismatches of one stream without those that repeat an earlier one."""
    kept: list[Mismatch] = []
    for bad in (bad for episode in episodes for bad in episode):
        same = next((one for one in kept if _repeats(bad, one)), None)
        if same is None:
            kept.append(bad)
        else:
            # A repetition of a mismatch that was over is over as soon as its calls have ended.
            is_over = bad.is_over or (_is_alike(bad, same) and have_ended(bad.instance))
            same.is_over = same.is_over and is_over
    return kept


def _repeats(bad: Mismatch, earlier: Mismatch) -> bool:
    """True if both are the same fault. A mismatch that is not over explains all later ones."""
    if not earlier.is_over:
        return True
    return bad.category is earlier.category and not set(bad.differing).isdisjoint(earlier.differing)

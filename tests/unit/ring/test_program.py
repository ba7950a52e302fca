"""Random programs against a plain list of what was appended. That the compiled writer does the same: `test_twins`."""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from otel_fr.ring import (
    KIND_COLLECTIVE,
    KIND_MONITORED,
    KIND_P2P,
    POSTED,
    GroupDef,
    Record,
    RecordState,
    RingReader,
    RingWriter,
    SignatureDef,
    SiteDef,
    StaleGeneration,
)
from otel_fr.ring.layout import UNPAIRED
from tests.support.ring_model import signature_of

_BIG = "x" * 60_000


@dataclass
class Group:
    """What the model knows of a live group."""

    definition: GroupDef
    enqueued: int = 0
    completed: int = 0
    p2p: int = 0
    issued: int = 0
    ended: int = 0
    last_issue: int = 0
    last_end: int = 0


class RingMachine(RuleBasedStateMachine):
    """The ring next to a list that never forgets."""

    @initialize(capacity=st.integers(1, 12))
    def create(self, capacity: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.capacity = capacity
        self.writer = RingWriter.create([Path(self.folder.name)], "ring", capacity, {"rank": 1})
        self.size = self.writer.path.stat().st_size
        self.reader = RingReader.open(self.writer.path)
        self.groups: dict[int, Group] = {}
        self.records: list[Record] = []
        self.generations: list[int] = []
        self.owners: list[int] = []
        self.shapes = 0
        self.made = 0
        self.clock = 0

    def teardown(self) -> None:
        if hasattr(self, "writer"):
            self.reader.close()
            self.writer.close()
            self.folder.cleanup()

    @rule(members=st.lists(st.integers(0, 5000), max_size=40))
    def add_group(self, members: list[int]) -> None:
        self.made += 1
        definition = GroupDef(f"{self.made:016x}", f"pg{self.made}", "", tuple(members), "gloo", self.made)
        index = self.writer.add_group(definition)
        assert index not in self.groups
        self.groups[index] = Group(definition)

    @precondition(lambda self: self.groups)
    @rule(data=st.data())
    def remove_group(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from(sorted(self.groups)))
        self.writer.remove_group(index)
        del self.groups[index]

    @precondition(lambda self: self.groups)
    @rule(
        data=st.data(),
        new_shape=st.booleans(),
        big=st.integers(0, 3).map(lambda number: number == 0),
        kind=st.sampled_from([KIND_COLLECTIVE, KIND_P2P, KIND_MONITORED]),
        sequence=st.integers(0, 2**40),
        site=st.sampled_from(["", "a", "b"]),
        timeout=st.integers(0, 2**40),
    )
    def append(
        self, data: st.DataObject, new_shape: bool, big: bool, kind: int, sequence: int, site: str, timeout: int
    ) -> None:
        index = data.draw(st.sampled_from(sorted(self.groups)))
        self.shapes += new_shape
        self.clock += 1
        signature = replace(signature_of(self.shapes, 10**9), backend=_BIG if big else "gloo")
        place = SiteDef(((f"/job/{site}.py", 3, _BIG if site == "b" else "f"),)) if site else SiteDef(())
        ticket = self._append(index, signature, place, kind, sequence, timeout)
        group = self.groups[index]
        unpaired = sequence % 2**32 == UNPAIRED
        self.records.append(
            Record(
                record_id=ticket - 1,
                issued_ns=self.clock,
                waited_ns=None,
                ended_ns=None,
                state=RecordState.IN_FLIGHT,
                coll_seq=sequence,
                p2p_seq=sequence + 1,
                op_id=sequence + 2,
                pair_index=sequence + 1 if unpaired else sequence % 2**32,
                kind=kind,
                flags=self.clock % 256,
                timeout_ms=min(timeout, 2**32 - 1),
                thread="worker" if self.clock % 2 else "",
                group=group.definition,
                signature=replace(signature, any_source=True) if unpaired else signature,
                site=place,
                thread_ident=5 if self.clock % 2 else 0,
            )
        )
        assert ticket == len(self.records)
        self.generations.append(self.writer.generation)
        self.owners.append(index)
        group.issued += 1
        group.last_issue = self.clock
        if kind == KIND_COLLECTIVE:
            group.enqueued = sequence
        elif kind == KIND_P2P:
            group.p2p = sequence + 1

    def _append(
        self, index: int, signature: SignatureDef, place: SiteDef, kind: int, sequence: int, timeout: int
    ) -> int:
        writer = self.writer
        for _ in range(2):
            generation = writer.generation
            sig = writer.signatures.get(signature) or writer.define_signature(signature, signature)
            site = 0
            if place.frames:
                site = writer.sites.get(place) or writer.define_site(place, place)
            thread = 0
            if self.clock % 2:
                thread = writer.threads.get(5) or writer.define_thread(5, "worker")
            try:
                return writer.append(
                    index, sig, site, thread, generation, kind, self.clock % 256, sequence, sequence + 1,
                    sequence + 2, sequence, timeout, self.clock,
                )  # fmt: skip
            except StaleGeneration:
                continue
        raise AssertionError("stale twice: one flip must make room for any call")

    @precondition(lambda self: self.records)
    @rule(
        data=st.data(),
        back=st.integers(0, 30),
        state=st.sampled_from([RecordState.COMPLETED, RecordState.FAILED, RecordState.UNKNOWN]),
    )
    def complete(self, data: st.DataObject, back: int, state: RecordState) -> None:
        number = max(0, len(self.records) - 1 - back)
        record = self.records[number]
        self.clock += 1
        index = self.owners[number]
        sequence = record.coll_seq if record.kind == KIND_COLLECTIVE else 0
        ended = 0 if state is RecordState.UNKNOWN else self.clock
        self.writer.complete(number + 1, index, sequence, state, ended)
        self.records[number] = record._replace(state=state, ended_ns=ended or None)
        group = self.groups.get(index)
        if group is not None:
            group.ended += 1
            group.last_end = ended or group.last_end
            if state is RecordState.COMPLETED:
                group.completed = max(group.completed, sequence)

    @precondition(lambda self: self.records)
    @rule(back=st.integers(0, 30), posted=st.booleans())
    def wait(self, back: int, posted: bool) -> None:
        number = max(0, len(self.records) - 1 - back)
        self.clock += 1
        waited = POSTED if posted else self.clock
        self.writer.wait(number + 1, waited)
        self.records[number] = self.records[number]._replace(waited_ns=waited)

    @invariant()
    def every_record_in_the_ring_reads_right(self) -> None:
        if not hasattr(self, "writer"):
            return
        start = max(0, len(self.records) - self.capacity)
        while start < len(self.records) and self.generations[start] < self.writer.generation - 1:
            start += 1
        for reader in (self.reader, RingReader.open(self.writer.path)):
            assert list(reader.records()) == self.records[start:]
            assert reader.head == len(self.records)
            assert reader.torn == 0
            for record in self.records[start:]:
                assert reader.ended(record.record_id) == (record.state, record.ended_ns, record.waited_ns)
            if reader is not self.reader:
                assert reader.lost == start
                reader.close()

    @invariant()
    def progress_is_that_of_the_live_groups(self) -> None:
        if not hasattr(self, "writer"):
            return
        found = {row.group: dataclasses.astuple(row)[1:] for row in self.reader.groups()}
        assert found == {
            group.definition: (
                group.enqueued, group.completed, group.p2p, group.issued, group.ended, group.last_issue, group.last_end
            )
            for group in self.groups.values()
        }  # fmt: skip

    @invariant()
    def the_file_keeps_its_size(self) -> None:
        if hasattr(self, "writer"):
            assert self.writer.path.stat().st_size == self.size


TestRingPrograms = RingMachine.TestCase
TestRingPrograms.settings = settings(max_examples=20, stateful_step_count=60)

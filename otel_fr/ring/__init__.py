"""The ring file: a rank's calls in shared memory, where they survive kill -9 (docs/reference/ring-format.md).

The rank writes it with `RingWriter`; its monitor, or any program after a crash, reads it with `RingReader`.
"""

from otel_fr.operations import NewGroup
from otel_fr.ring.activity_reader import Activity, ActivityReader, Beats
from otel_fr.ring.activity_writer import NO_ROW, ActivityWriter, Body
from otel_fr.ring.codec import DefinitionError
from otel_fr.ring.decision_reader import Decided, DecisionReader
from otel_fr.ring.decision_writer import DecisionWriter
from otel_fr.ring.definitions import GroupDef, SignatureDef, SiteDef
from otel_fr.ring.files import private_folder
from otel_fr.ring.layout import (
    COUNTERS,
    EARLIER_RUNS,
    KIND_COLLECTIVE,
    KIND_GROUP,
    KIND_MONITORED,
    KIND_P2P,
    POSTED,
    ProcessState,
    RecordState,
    RingFormatError,
    StaleGeneration,
    pid_namespace,
    process_start_ns,
    process_state,
)
from otel_fr.ring.reader import MAIN_THREAD, RingReader
from otel_fr.ring.records import STATE_TEXT, GroupProgress, Record
from otel_fr.ring.writer import RingWriter

__all__ = [
    "COUNTERS",
    "EARLIER_RUNS",
    "KIND_COLLECTIVE",
    "KIND_GROUP",
    "KIND_MONITORED",
    "KIND_P2P",
    "MAIN_THREAD",
    "NO_ROW",
    "POSTED",
    "STATE_TEXT",
    "Activity",
    "ActivityReader",
    "ActivityWriter",
    "Beats",
    "Body",
    "Decided",
    "DecisionReader",
    "DecisionWriter",
    "DefinitionError",
    "GroupDef",
    "GroupProgress",
    "NewGroup",
    "ProcessState",
    "Record",
    "RecordState",
    "RingFormatError",
    "RingReader",
    "RingWriter",
    "SignatureDef",
    "SiteDef",
    "StaleGeneration",
    "pid_namespace",
    "private_folder",
    "process_start_ns",
    "process_state",
]

from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WatchRequest(_message.Message):
    __slots__ = ("job_id", "attempt", "run_id", "rank", "host_name", "pid", "others")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt: int
    run_id: str
    rank: int
    host_name: str
    pid: int
    others: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, job_id: _Optional[str] = ..., attempt: _Optional[int] = ..., run_id: _Optional[str] = ..., rank: _Optional[int] = ..., host_name: _Optional[str] = ..., pid: _Optional[int] = ..., others: _Optional[_Iterable[int]] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("dump", "peer_failed", "peer_recovered", "inspect", "take_stacks", "report", "fetch_calls", "incident", "ranks")
    DUMP_FIELD_NUMBER: _ClassVar[int]
    PEER_FAILED_FIELD_NUMBER: _ClassVar[int]
    PEER_RECOVERED_FIELD_NUMBER: _ClassVar[int]
    INSPECT_FIELD_NUMBER: _ClassVar[int]
    TAKE_STACKS_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    FETCH_CALLS_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    dump: Dump
    peer_failed: PeerFailed
    peer_recovered: PeerRecovered
    inspect: Inspect
    take_stacks: TakeStacks
    report: Report
    fetch_calls: FetchCalls
    incident: Incident
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dump: _Optional[_Union[Dump, _Mapping]] = ..., peer_failed: _Optional[_Union[PeerFailed, _Mapping]] = ..., peer_recovered: _Optional[_Union[PeerRecovered, _Mapping]] = ..., inspect: _Optional[_Union[Inspect, _Mapping]] = ..., take_stacks: _Optional[_Union[TakeStacks, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., fetch_calls: _Optional[_Union[FetchCalls, _Mapping]] = ..., incident: _Optional[_Union[Incident, _Mapping]] = ..., ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class Dump(_message.Message):
    __slots__ = ("incident_id", "reason", "page_url", "trace_id")
    INCIDENT_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PAGE_URL_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    incident_id: str
    reason: str
    page_url: str
    trace_id: bytes
    def __init__(self, incident_id: _Optional[str] = ..., reason: _Optional[str] = ..., page_url: _Optional[str] = ..., trace_id: _Optional[bytes] = ...) -> None: ...

class Incident(_message.Message):
    __slots__ = ("incident_id", "summary", "page_url", "is_over")
    INCIDENT_ID_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    PAGE_URL_FIELD_NUMBER: _ClassVar[int]
    IS_OVER_FIELD_NUMBER: _ClassVar[int]
    incident_id: str
    summary: str
    page_url: str
    is_over: bool
    def __init__(self, incident_id: _Optional[str] = ..., summary: _Optional[str] = ..., page_url: _Optional[str] = ..., is_over: bool = ...) -> None: ...

class Inspect(_message.Message):
    __slots__ = ("incident_id", "ranks")
    INCIDENT_ID_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    incident_id: str
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, incident_id: _Optional[str] = ..., ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class TakeStacks(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Report(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FetchCalls(_message.Message):
    __slots__ = ("group_id", "first", "last")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    first: int
    last: int
    def __init__(self, group_id: _Optional[str] = ..., first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class PeerFailed(_message.Message):
    __slots__ = ("incident_id", "ranks", "reason", "kind")
    INCIDENT_ID_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    incident_id: str
    ranks: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    kind: str
    def __init__(self, incident_id: _Optional[str] = ..., ranks: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ..., kind: _Optional[str] = ...) -> None: ...

class PeerRecovered(_message.Message):
    __slots__ = ("ranks",)
    RANKS_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ranks: _Optional[_Iterable[int]] = ...) -> None: ...

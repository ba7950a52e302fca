from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetRequest(_message.Message):
    __slots__ = ("job_id", "attempt", "run_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt: int
    run_id: str
    def __init__(self, job_id: _Optional[str] = ..., attempt: _Optional[int] = ..., run_id: _Optional[str] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("job_id", "attempt", "run_id", "recommendation", "exclude_nodes", "reasons", "failures", "other_runs")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    RECOMMENDATION_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_NODES_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    OTHER_RUNS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt: int
    run_id: str
    recommendation: str
    exclude_nodes: _containers.RepeatedScalarFieldContainer[str]
    reasons: _containers.RepeatedCompositeFieldContainer[Reason]
    failures: _containers.RepeatedCompositeFieldContainer[Failure]
    other_runs: _containers.RepeatedCompositeFieldContainer[OtherRun]
    def __init__(self, job_id: _Optional[str] = ..., attempt: _Optional[int] = ..., run_id: _Optional[str] = ..., recommendation: _Optional[str] = ..., exclude_nodes: _Optional[_Iterable[str]] = ..., reasons: _Optional[_Iterable[_Union[Reason, _Mapping]]] = ..., failures: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ..., other_runs: _Optional[_Iterable[_Union[OtherRun, _Mapping]]] = ...) -> None: ...

class OtherRun(_message.Message):
    __slots__ = ("attempt", "run_id", "recommendation", "exclude_nodes", "summary")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    RECOMMENDATION_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_NODES_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    run_id: str
    recommendation: str
    exclude_nodes: _containers.RepeatedScalarFieldContainer[str]
    summary: str
    def __init__(self, attempt: _Optional[int] = ..., run_id: _Optional[str] = ..., recommendation: _Optional[str] = ..., exclude_nodes: _Optional[_Iterable[str]] = ..., summary: _Optional[str] = ...) -> None: ...

class Reason(_message.Message):
    __slots__ = ("rule", "recommendation", "text", "incident_ids")
    RULE_FIELD_NUMBER: _ClassVar[int]
    RECOMMENDATION_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_IDS_FIELD_NUMBER: _ClassVar[int]
    rule: str
    recommendation: str
    text: str
    incident_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, rule: _Optional[str] = ..., recommendation: _Optional[str] = ..., text: _Optional[str] = ..., incident_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("incident_id", "category", "rank", "node", "error", "site", "summary")
    INCIDENT_ID_FIELD_NUMBER: _ClassVar[int]
    CATEGORY_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    incident_id: str
    category: str
    rank: int
    node: str
    error: str
    site: str
    summary: str
    def __init__(self, incident_id: _Optional[str] = ..., category: _Optional[str] = ..., rank: _Optional[int] = ..., node: _Optional[str] = ..., error: _Optional[str] = ..., site: _Optional[str] = ..., summary: _Optional[str] = ...) -> None: ...

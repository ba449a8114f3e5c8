from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TensorInfo(_message.Message):
    __slots__ = ("name", "dtype", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class Manifest(_message.Message):
    __slots__ = ("tensors", "size", "digest")
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedCompositeFieldContainer[TensorInfo]
    size: int
    digest: bytes
    def __init__(self, tensors: _Optional[_Iterable[_Union[TensorInfo, _Mapping]]] = ..., size: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class Head(_message.Message):
    __slots__ = ("run", "round", "base", "head", "task", "adapter", "history", "residuals", "snapshot", "side", "subnet")
    class SubnetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    RESIDUALS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    SIDE_FIELD_NUMBER: _ClassVar[int]
    SUBNET_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    base: str
    head: str
    task: str
    adapter: Manifest
    history: _containers.RepeatedScalarFieldContainer[bytes]
    residuals: _containers.RepeatedCompositeFieldContainer[Manifest]
    snapshot: Snapshot
    side: Side
    subnet: _containers.ScalarMap[str, int]
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., base: _Optional[str] = ..., head: _Optional[str] = ..., task: _Optional[str] = ..., adapter: _Optional[_Union[Manifest, _Mapping]] = ..., history: _Optional[_Iterable[bytes]] = ..., residuals: _Optional[_Iterable[_Union[Manifest, _Mapping]]] = ..., snapshot: _Optional[_Union[Snapshot, _Mapping]] = ..., side: _Optional[_Union[Side, _Mapping]] = ..., subnet: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Side(_message.Message):
    __slots__ = ("manifest", "dropped")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    manifest: Manifest
    dropped: float
    def __init__(self, manifest: _Optional[_Union[Manifest, _Mapping]] = ..., dropped: _Optional[float] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("manifest", "covers")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    COVERS_FIELD_NUMBER: _ClassVar[int]
    manifest: Manifest
    covers: int
    def __init__(self, manifest: _Optional[_Union[Manifest, _Mapping]] = ..., covers: _Optional[int] = ...) -> None: ...

class Update(_message.Message):
    __slots__ = ("run", "round", "base", "head", "node", "examples", "adapter", "metrics", "folded")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    FOLDED_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    base: str
    head: str
    node: str
    examples: int
    adapter: Manifest
    metrics: _containers.ScalarMap[str, float]
    folded: str
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., base: _Optional[str] = ..., head: _Optional[str] = ..., node: _Optional[str] = ..., examples: _Optional[int] = ..., adapter: _Optional[_Union[Manifest, _Mapping]] = ..., metrics: _Optional[_Mapping[str, float]] = ..., folded: _Optional[str] = ...) -> None: ...

class Evaluation(_message.Message):
    __slots__ = ("run", "round", "head", "node", "metrics", "folded")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    FOLDED_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    head: str
    node: str
    metrics: _containers.ScalarMap[str, float]
    folded: str
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., head: _Optional[str] = ..., node: _Optional[str] = ..., metrics: _Optional[_Mapping[str, float]] = ..., folded: _Optional[str] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("run", "base", "task", "nonce")
    RUN_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    run: str
    base: str
    task: str
    nonce: bytes
    def __init__(self, run: _Optional[str] = ..., base: _Optional[str] = ..., task: _Optional[str] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class Introduction(_message.Message):
    __slots__ = ("node", "examples", "heldout", "truncated", "base", "version", "threads", "nonce", "held", "width", "mean_width")
    NODE_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    HELDOUT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    MEAN_WIDTH_FIELD_NUMBER: _ClassVar[int]
    node: str
    examples: int
    heldout: int
    truncated: int
    base: str
    version: str
    threads: int
    nonce: bytes
    held: _containers.RepeatedScalarFieldContainer[bytes]
    width: int
    mean_width: float
    def __init__(self, node: _Optional[str] = ..., examples: _Optional[int] = ..., heldout: _Optional[int] = ..., truncated: _Optional[int] = ..., base: _Optional[str] = ..., version: _Optional[str] = ..., threads: _Optional[int] = ..., nonce: _Optional[bytes] = ..., held: _Optional[_Iterable[bytes]] = ..., width: _Optional[int] = ..., mean_width: _Optional[float] = ...) -> None: ...

class Lesson(_message.Message):
    __slots__ = ("run", "round", "head", "origin", "task", "study", "sources", "next")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    STUDY_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    head: str
    origin: str
    task: str
    study: _containers.RepeatedScalarFieldContainer[str]
    sources: _containers.RepeatedCompositeFieldContainer[Manifest]
    next: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., head: _Optional[str] = ..., origin: _Optional[str] = ..., task: _Optional[str] = ..., study: _Optional[_Iterable[str]] = ..., sources: _Optional[_Iterable[_Union[Manifest, _Mapping]]] = ..., next: _Optional[_Iterable[str]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("run", "round", "head", "node", "knowledge")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    KNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    head: str
    node: str
    knowledge: Manifest
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., head: _Optional[str] = ..., node: _Optional[str] = ..., knowledge: _Optional[_Union[Manifest, _Mapping]] = ...) -> None: ...

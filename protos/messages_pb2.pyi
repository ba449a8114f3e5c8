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
    __slots__ = ("run", "round", "base", "head", "task", "adapter", "history", "residuals")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    RESIDUALS_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    base: str
    head: str
    task: str
    adapter: Manifest
    history: _containers.RepeatedScalarFieldContainer[bytes]
    residuals: _containers.RepeatedCompositeFieldContainer[Manifest]
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., base: _Optional[str] = ..., head: _Optional[str] = ..., task: _Optional[str] = ..., adapter: _Optional[_Union[Manifest, _Mapping]] = ..., history: _Optional[_Iterable[bytes]] = ..., residuals: _Optional[_Iterable[_Union[Manifest, _Mapping]]] = ...) -> None: ...

class Update(_message.Message):
    __slots__ = ("run", "round", "base", "head", "node", "examples", "adapter")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    base: str
    head: str
    node: str
    examples: int
    adapter: Manifest
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., base: _Optional[str] = ..., head: _Optional[str] = ..., node: _Optional[str] = ..., examples: _Optional[int] = ..., adapter: _Optional[_Union[Manifest, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("run", "base", "task")
    RUN_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    run: str
    base: str
    task: str
    def __init__(self, run: _Optional[str] = ..., base: _Optional[str] = ..., task: _Optional[str] = ...) -> None: ...

class Introduction(_message.Message):
    __slots__ = ("node", "examples", "heldout", "truncated", "base", "version", "threads")
    NODE_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    HELDOUT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    node: str
    examples: int
    heldout: int
    truncated: int
    base: str
    version: str
    threads: int
    def __init__(self, node: _Optional[str] = ..., examples: _Optional[int] = ..., heldout: _Optional[int] = ..., truncated: _Optional[int] = ..., base: _Optional[str] = ..., version: _Optional[str] = ..., threads: _Optional[int] = ...) -> None: ...

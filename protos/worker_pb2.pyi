from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Piece(_message.Message):
    __slots__ = ("opening", "chunk", "beat")
    OPENING_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    opening: Opening
    chunk: bytes
    beat: Beat
    def __init__(self, opening: _Optional[_Union[Opening, _Mapping]] = ..., chunk: _Optional[bytes] = ..., beat: _Optional[_Union[Beat, _Mapping]] = ...) -> None: ...

class Opening(_message.Message):
    __slots__ = ("message", "sizes")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    message: bytes
    sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, message: _Optional[bytes] = ..., sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LookRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Standing(_message.Message):
    __slots__ = ("done", "failure", "step")
    DONE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    done: bool
    failure: Failure
    step: Step
    def __init__(self, done: _Optional[bool] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("error", "message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: str
    message: str
    def __init__(self, error: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("step", "steps", "loss", "tokens_per_second")
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    step: int
    steps: int
    loss: float
    tokens_per_second: float
    def __init__(self, step: _Optional[int] = ..., steps: _Optional[int] = ..., loss: _Optional[float] = ..., tokens_per_second: _Optional[float] = ...) -> None: ...

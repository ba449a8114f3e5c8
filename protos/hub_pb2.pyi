from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Form(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FORM_CHEAPEST: _ClassVar[Form]
    FORM_LOG: _ClassVar[Form]
    FORM_SNAPSHOT: _ClassVar[Form]
    FORM_MERGED: _ClassVar[Form]
FORM_CHEAPEST: Form
FORM_LOG: Form
FORM_SNAPSHOT: Form
FORM_MERGED: Form

class DescribeRequest(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: str
    def __init__(self, run: _Optional[str] = ...) -> None: ...

class Description(_message.Message):
    __slots__ = ("run", "base", "model", "rounds", "forms", "limits")
    RUN_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    FORMS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    run: str
    base: str
    model: str
    rounds: _containers.RepeatedCompositeFieldContainer[RoundHead]
    forms: _containers.RepeatedCompositeFieldContainer[Availability]
    limits: HubLimits
    def __init__(self, run: _Optional[str] = ..., base: _Optional[str] = ..., model: _Optional[str] = ..., rounds: _Optional[_Iterable[_Union[RoundHead, _Mapping]]] = ..., forms: _Optional[_Iterable[_Union[Availability, _Mapping]]] = ..., limits: _Optional[_Union[HubLimits, _Mapping]] = ...) -> None: ...

class RoundHead(_message.Message):
    __slots__ = ("round", "head")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    round: int
    head: str
    def __init__(self, round: _Optional[int] = ..., head: _Optional[str] = ...) -> None: ...

class Availability(_message.Message):
    __slots__ = ("form", "size")
    FORM_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    form: Form
    size: int
    def __init__(self, form: _Optional[_Union[Form, str]] = ..., size: _Optional[int] = ...) -> None: ...

class HubLimits(_message.Message):
    __slots__ = ("streams", "chunk", "heartbeat")
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    streams: int
    chunk: int
    heartbeat: float
    def __init__(self, streams: _Optional[int] = ..., chunk: _Optional[int] = ..., heartbeat: _Optional[float] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("run", "form", "round", "since", "held")
    RUN_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    run: str
    form: Form
    round: int
    since: int
    held: _containers.RepeatedCompositeFieldContainer[Held]
    def __init__(self, run: _Optional[str] = ..., form: _Optional[_Union[Form, str]] = ..., round: _Optional[int] = ..., since: _Optional[int] = ..., held: _Optional[_Iterable[_Union[Held, _Mapping]]] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("digest", "size")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    size: int
    def __init__(self, digest: _Optional[bytes] = ..., size: _Optional[int] = ...) -> None: ...

class PullReply(_message.Message):
    __slots__ = ("offer", "piece")
    OFFER_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    offer: SignedOffer
    piece: Piece
    def __init__(self, offer: _Optional[_Union[SignedOffer, _Mapping]] = ..., piece: _Optional[_Union[Piece, _Mapping]] = ...) -> None: ...

class SignedOffer(_message.Message):
    __slots__ = ("offer", "signature")
    OFFER_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    offer: bytes
    signature: bytes
    def __init__(self, offer: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Offer(_message.Message):
    __slots__ = ("run", "form", "round", "head", "record", "recipe", "since", "covers", "files")
    RUN_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    COVERS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    run: str
    form: Form
    round: int
    head: str
    record: bytes
    recipe: str
    since: int
    covers: int
    files: _containers.RepeatedCompositeFieldContainer[OfferedFile]
    def __init__(self, run: _Optional[str] = ..., form: _Optional[_Union[Form, str]] = ..., round: _Optional[int] = ..., head: _Optional[str] = ..., record: _Optional[bytes] = ..., recipe: _Optional[str] = ..., since: _Optional[int] = ..., covers: _Optional[int] = ..., files: _Optional[_Iterable[_Union[OfferedFile, _Mapping]]] = ...) -> None: ...

class OfferedFile(_message.Message):
    __slots__ = ("name", "size", "digest")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    digest: bytes
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("file", "offset", "content")
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    file: int
    offset: int
    content: bytes
    def __init__(self, file: _Optional[int] = ..., offset: _Optional[int] = ..., content: _Optional[bytes] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("run", "after")
    RUN_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    run: str
    after: int
    def __init__(self, run: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class WatchReply(_message.Message):
    __slots__ = ("news",)
    NEWS_FIELD_NUMBER: _ClassVar[int]
    news: HeadNews
    def __init__(self, news: _Optional[_Union[HeadNews, _Mapping]] = ...) -> None: ...

class HeadNews(_message.Message):
    __slots__ = ("run", "round", "head", "nodes", "receipt", "metrics")
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
    NODES_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    head: str
    nodes: int
    receipt: float
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., head: _Optional[str] = ..., nodes: _Optional[int] = ..., receipt: _Optional[float] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

"""Errors across a gRPC call: the class that a service raised is the class that its caller gets."""

import grpc

from fedlora.adapters.errors import EngineError, FedloraError, IdentityError, RunError, WireError

_STATUS: dict[type[FedloraError], grpc.StatusCode] = {
    RunError: grpc.StatusCode.FAILED_PRECONDITION,
    WireError: grpc.StatusCode.INVALID_ARGUMENT,
    IdentityError: grpc.StatusCode.UNAUTHENTICATED,
    EngineError: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
_ERROR = {status: kind for kind, status in _STATUS.items()}


def status_of(error: FedloraError) -> grpc.StatusCode:
    """The status with which a service refuses a call; others than the four are a RunError's."""
    return _STATUS.get(type(error), grpc.StatusCode.FAILED_PRECONDITION)


def error_of(status: grpc.StatusCode, details: str) -> FedloraError | None:
    """What the service raised; None if the call failed on its way."""
    kind = _ERROR.get(status)
    return kind(details) if kind else None

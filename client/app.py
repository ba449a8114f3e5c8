"""The ClientApp that Flower starts anew for each message.

On a node that `fedlora join` started, the model lives in a worker, and this process only carries
the message there and the reply back: it loads neither torch nor transformers. Elsewhere (Ray,
SuperNodes started by hand) it does the work itself.
"""

from pathlib import Path

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from fedlora.adapters.errors import EngineError

from .relay import relay


class NodeApp(ClientApp):
    """A node, whatever the type of the message."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Let the worker answer if the node's configuration names one."""
        socket = context.node_config.get("worker")
        if socket is None:
            from .handlers import cold

            return cold(message, context)
        try:
            return relay(message, Path(str(socket)))
        except EngineError as error:
            failure = Error(code=ErrorCode.CLIENT_APP_CRASHED, reason=str(error))
            return Message(failure, reply_to=message)


app = NodeApp()

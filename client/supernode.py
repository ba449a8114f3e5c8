"""Flower's SuperNode, which ends when its main loop does.

    python -m fedlora.client.supernode OPTIONS OF flower-supernode

Flower's own program stays after an error that it doesn't recover from (a status it didn't expect, a
broken TLS handshake): the thread of its local HTTP server keeps the process, and whoever supervises
it is none the wiser.
"""

import os

from flwr.supernode.cli import flower_supernode

if __name__ == "__main__":
    flower_supernode()
    os._exit(1)

"""Opening models in peace: no notices of what we check ourselves, and one thread at a time."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging

_ONE = threading.RLock()  # the libraries switch process-wide settings (dtype, logging) to and fro


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars, warnings, notices of deprecation or other threads inside the block."""
    with _ONE, _silence():
        yield


@contextmanager
def _silence() -> Iterator[None]:
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # PEFT's, about transformers 6
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()

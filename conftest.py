"""Every test and doctest starts from the same random state."""

import random
import signal

import numpy as np
import pytest
import torch
from hypothesis import settings

settings.register_profile("tailshift", deadline=None)  # machines are shared
settings.load_profile("tailshift")

# Shells let what they start in the background ignore Ctrl-C, which tests press.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seed() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)

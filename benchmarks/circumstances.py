"""What every row of a benchmark carries, so that it can be compared later."""

from __future__ import annotations

import os
import platform
import subprocess
from typing import Any

import numpy as np


def circumstances() -> dict[str, Any]:
    """What a row was measured with."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "commit": commit.stdout.strip(),
        "machine": platform.machine(),
        "n_cpus": os.cpu_count(),
        "numpy": np.__version__,
    }

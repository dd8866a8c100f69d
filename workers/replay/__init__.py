"""Graph replay: component calls that have been made before are replayed, not launched anew.

`executor` decides which calls are recorded, `recording` holds one recorded call.
"""

from .executor import ReplayExecutor

__all__ = ["ReplayExecutor"]

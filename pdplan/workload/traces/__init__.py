"""Request traces: files of several public formats -> :class:`Trace`."""

from pdplan.workload.traces.read import Trace, read_trace

__all__ = ["Trace", "read_trace"]

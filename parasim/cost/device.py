"""What pricing needs of an accelerator; `topology.cluster.Accelerator` has it."""

from __future__ import annotations

from typing import Protocol

from ..provenance import Number


class Device(Protocol):
    """What pricing needs of an accelerator."""

    @property
    def memory_bandwidth(self) -> Number:
        """Bytes per second."""
        ...

    @property
    def host_link(self) -> Number | None:
        """Bytes per second to or from the host's memory, per direction."""
        ...

    @property
    def host_memory_bandwidth(self) -> Number | None:
        """Bytes per second of the host's memory, this device's share, reads plus writes."""
        ...

    @property
    def multiprocessors(self) -> Number | None:
        """How many of them compute tiles of a product at a time."""
        ...

    @property
    def matrix_unit(self) -> Number | None:
        """Width in elements of the systolic arrays that multiply."""
        ...

    def peak(self, dtype: str) -> float:
        """FLOP/s of dense matrix products in `dtype`."""
        ...

"""What every engine's guarantees say about clock rates: how far they may differ, and what breaks that.

The holder relies on its lease for one percent less than the ttl (``core/deadlines.py``). So exclusion by time
holds while a second of the holder's clock and a second of the clock that ends leases differ by one percent
at most. How far the two clocks are apart does not matter.
"""

from __future__ import annotations

from typing import Final

__all__ = ["ONE_CLOCK_FAULTS", "ONE_CLOCK_NEED", "TWO_CLOCKS_FAULTS", "TWO_CLOCKS_NEED"]

ONE_CLOCK_NEED: Final = (
    "clock rates within 1 %: given, since the holder and the waiters read the boot clock of one machine"
)
ONE_CLOCK_FAULTS: Final = {
    "clock rates differ by more than 1 %": "kept: the holder and the waiters read the same clock",
    "virtual machine is paused by its hypervisor": (
        "kept: the holder and the waiters are paused together, also where their boot clock stands still"
    ),
}

TWO_CLOCKS_NEED: Final = (
    "clock rates within 1 %: a second of the server's clock and one of the holder's boot clock differ by less"
)
TWO_CLOCKS_FAULTS: Final = {
    "clock rates differ by more than 1 %": (
        "fenced: where the server's clock is slewed ahead, a lease may end before the holder's deadline, and "
        "the next holder has a larger token; loss signalled at the next renewal"
    ),
    "holder's virtual machine is paused by its hypervisor": (
        "fenced: its boot clock may stand still meanwhile, so that the holder relies on a lease that has "
        "ended, and the next holder has a larger token; loss signalled at the next renewal"
    ),
}

"""Workers: they claim jobs, run the functions for them, and keep their leases alive meanwhile.

``base`` has the configuration of a worker, ``pace`` how many jobs it claims at once, ``outcomes`` what
becomes of a job when its function has ended, ``heartbeats`` the thread that extends leases; ``threads`` and
``asyncio`` are the workers themselves.
"""

"""The header ``Idempotency-Key`` of HTTP: a request that is sent again gets the first response.

    from holdfast import idempotency

    app = idempotency.IdempotencyMiddleware(app, client, scope=lambda scope: scope["user"].id)
    application = idempotency.WSGIIdempotencyMiddleware(application, client, scope=user_of)

The client is of the kind of the application: ``holdfast.aio.connect(…)`` for ASGI, ``holdfast.connect(…)``
for WSGI. Both store responses in the same form.
"""

from __future__ import annotations

from .asgi import IdempotencyMiddleware
from .wsgi import WSGIIdempotencyMiddleware

__all__ = ["IdempotencyMiddleware", "WSGIIdempotencyMiddleware"]

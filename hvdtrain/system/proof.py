"""Challenge and response: a process proves that it knows the job's token without sending the token."""

from __future__ import annotations

import hashlib
import hmac


def proof(token: str, challenge: str, role: str) -> str:
    """The response to a challenge, HMAC-SHA256 in hex digits (RFC 2104).

    role: which side responds, so that a response cannot be reflected to the side that made it.
    """
    return hmac.new(token.encode(), f"{role} {challenge}".encode(), hashlib.sha256).hexdigest()

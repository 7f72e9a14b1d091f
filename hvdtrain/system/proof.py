"""Proof that the other end of a connection knows the job's token, without sending the token."""

from __future__ import annotations

import hashlib
import hmac


def proof(token: str, challenge: str, who: str) -> str:
    """What only one who knows the token can answer to a challenge; `who`, so that an answer cannot be sent back."""
    return hmac.new(token.encode(), f"{who} {challenge}".encode(), hashlib.sha256).hexdigest()

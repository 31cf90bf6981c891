"""What the server alone knows, and what it signs (Ed25519, RFC 8032).

The secret draws the scenes. Its commitment is public from the start, so that whoever is shown the
secret one day sees that no scene was chosen after a submission was known.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import read_json, write_atomically
from gaploop.finetune.gate.folder import commitment

SECRET: Final = "server.json"
SIGNATURE: Final = "signature"


@dataclass(frozen=True)
class Server:
    """Draws what is hidden and signs what is said.

    Attributes:
        secret: 32 bytes, as hexadecimal digits.
        nonce: makes the commitment one that can't be guessed.
        private: its Ed25519 key, as hexadecimal digits.
    """

    secret: str
    nonce: str
    private: str

    @classmethod
    def opened(cls, folder: Path) -> Server:
        """Return a folder's server, made where there is none; only its owner can read it.

        Raises:
            UnusableInputError: the file is damaged.
        """
        path = folder / SECRET
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            made = {"secret": secrets.token_hex(32), "nonce": secrets.token_hex(16)}
            made["private"] = Ed25519PrivateKey.generate().private_bytes_raw().hex()
            write_atomically(path, json.dumps(made) + "\n", 0o600)
        try:
            found = cls(**read_json(path))
            found.public  # noqa: B018  it is a key
            return found
        except DAMAGE:
            raise UnusableInputError(
                f"{path} is damaged: without it neither scenes nor signatures can be made. Restore "
                "it, or begin a new benchmark with another --private."
            ) from None

    @property
    def commitment(self) -> str:
        """SHA-256 of the secret and the nonce, as JSON with sorted keys."""
        return commitment({"secret": self.secret, "nonce": self.nonce})

    @property
    def public(self) -> str:
        """The key that its signatures are checked with, as hexadecimal digits."""
        return self._key.public_key().public_bytes_raw().hex()

    @property
    def _key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(self.private))

    def drawn(self, *words: object) -> int:
        """Return 48 bits that only the secret and these words decide."""
        text = json.dumps([str(word) for word in words]).encode()
        digest = hmac.new(bytes.fromhex(self.secret), text, hashlib.sha256).digest()
        return int.from_bytes(digest[:6], "big")

    def signed(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return a value of JSON types with its signature."""
        plain = json.loads(json.dumps(value, allow_nan=False))
        return {**plain, SIGNATURE: base64.b64encode(self._key.sign(_bytes(plain))).decode()}


def is_signed(value: object, public: str) -> bool:
    """Say whether a value is as the owner of a key signed it."""
    try:
        assert isinstance(value, dict)
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
        key.verify(base64.b64decode(value[SIGNATURE]), _bytes(value))
    except (AssertionError, InvalidSignature, *DAMAGE):
        return False
    return True


def _bytes(value: Mapping[str, Any]) -> bytes:
    """Return what is signed: JSON with sorted keys and no spaces, without the signature."""
    plain = {k: v for k, v in value.items() if k != SIGNATURE}
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()

"""Proofs of templates on disk, beside the texts that they prove.

``proofs.arrow`` holds proofs; the certificate says of which text each is one, by SHA-256.  Nothing
of a verdict rests on them: whoever wants to believe a solver less can have them checked
(`checker.proofs.check`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardproof.engine.errors import InvalidInput
from shardproof.engine.records.certificate import FORMAT, Certificate, ProofEntry
from shardproof.engine.storage.tables import decode, encode, read_file

FILE = "proofs.arrow"
COLUMNS = {"template": "ref", "proof": "text"}


def digest(text: str) -> str:
    """The SHA-256 by which a certificate names a text or a proof; of no proof, the empty string.

    Example: of ``"(check-sat)"`` and a line's end it is ``4bd88edc...``.
    """
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


def encode_proofs(proofs: Sequence[tuple[ProofEntry, str]]) -> bytes:
    """The table of the proofs that there are, as a file; raises `InvalidInput` for what it cannot
    hold.

    Example: of two templates of which the first one has a proof, a table of one row, (0, proof).
    """
    there = [(entry.template, proof) for entry, proof in proofs if proof]
    columns: dict[str, list[Any]] = {
        "template": [n for n, _ in there],
        "proof": [proof for _, proof in there],
    }
    return encode("proofs", COLUMNS, columns, FORMAT)


def read_proofs(folder: Path, certificate: Certificate) -> dict[int, str]:
    """The proofs of a run by template; raises `InvalidInput` unless they are the certificate's.

    Example: ``{0: "(proof ...)"}``; where the certificate names the digest of another one, "its
    proof of template 0 is not the one that the certificate names".
    """
    try:
        if FILE not in certificate.files:
            return {}
        data = read_file(folder / FILE, certificate.files[FILE])
        columns = decode("proofs", COLUMNS, data, FORMAT)
        proofs = dict(zip(columns["template"], columns["proof"], strict=True))
        named = {entry.template: entry.proof for entry in certificate.proofs if entry.proof}
        if len(proofs) < len(columns["template"]):
            raise InvalidInput("has two proofs of one template", FILE)
        for template in sorted(proofs.keys() | named.keys()):
            if digest(proofs.get(template, "")) != named.get(template, ""):
                raise InvalidInput(
                    f"its proof of template {template} is not the one that the certificate names",
                    FILE,
                )
    except InvalidInput as error:
        raise error.within(str(folder)) from error
    return proofs

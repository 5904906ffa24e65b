"""The secrets that the chart's examples name: certificates, tokens, what brokers share."""

from __future__ import annotations

import subprocess
from pathlib import Path

from dynatops.kit.security.tokens import hash_of

TOKEN = "dyn_token-of-helm-test"
VIEWER = "dyn_token-of-prometheus"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")

_TOKENS = f"""
[[token]]
name = "helm-test"
sha256 = "{hash_of(TOKEN)}"
publish = ["helm/#", "quake/#"]
subscribe = ["helm/#", "quake/#"]
role = "viewer"

[[token]]
name = "prometheus"
sha256 = "{hash_of(VIEWER)}"
role = "viewer"
"""


def certificate(folder: Path, names: list[str]) -> dict[str, str]:
    """As cert-manager would leave it: of an authority made for the occasion."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    folder.mkdir()
    openssl("req", "-x509", *_KEY, "-days", "2", "-subj", "/CN=tests", "-keyout", "ca.key",
            "-out", "ca.crt")  # fmt: skip
    openssl("req", "-new", *_KEY, "-subj", "/CN=dynatops", "-keyout", "tls.key", "-out", "tls.csr")
    alternatives = [f"IP:{n}" if n.replace(".", "").isdigit() else f"DNS:{n}" for n in names]
    (folder / "names").write_text(
        f"subjectAltName={','.join(alternatives)}\nextendedKeyUsage=serverAuth,clientAuth\n"
    )
    openssl("x509", "-req", "-in", "tls.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
            "-CAcreateserial", "-days", "2", "-extfile", "names", "-out", "tls.crt")  # fmt: skip
    return {name: (folder / name).read_text() for name in ("tls.crt", "tls.key", "ca.crt")}


def secrets(tls: dict[str, str]) -> dict[str, dict[str, str]]:
    """Of ci/tls-values.yaml."""
    return {
        "dynatops-certificate": tls,
        "dynatops-tokens": {"tokens.toml": _TOKENS},
        "dynatops-peer": {"peer.secret": "0123456789abcdef0123456789abcdef\n"},
        "dynatops-redis": {"password": "pw-of-redis"},
        "dynatops-test": {"token": TOKEN},
        "dynatops-viewer": {"token": VIEWER},
    }

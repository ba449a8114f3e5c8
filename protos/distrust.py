"""Why TLS did not trust a server's certificate, in words that say what to do."""

import ssl
from datetime import UTC, datetime
from pathlib import Path

_EXPIRED, _NOT_YET, _OTHER_NAMES = 10, 9, (62, 64)  # OpenSSL's X509_V_ERR_... numbers
_RENEW = "its operator makes a new one with `fedlora keys server`"


def distrust(error: ssl.SSLCertVerificationError, host: str, authority: Path | None) -> str:
    """What a certificate that does not pass means to a user.

    Args:
        error: as TLS gave it.
        host: by which the server was called.
        authority: the file that the certificate was checked with; None if there was none.
    """
    now = f"by this machine's clock at {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    if error.verify_code == _EXPIRED:
        return f"its certificate has expired, {now}; {_RENEW}"
    if error.verify_code == _NOT_YET:
        return f"its certificate is not valid yet, {now}: set it"
    if error.verify_code in _OTHER_NAMES:
        return f"its certificate is not for {host}: call it by another name, or {_RENEW}"
    return (
        f"its certificate is not signed by {authority or 'ca.crt'}: it is another party's, or the "
        f"federation has a new authority ({error.verify_message})"
    )

"""What a store's errors mean, for people who are to do something about them.

Stores say what happened in words of their own, and pyarrow hands these on as text: there is nothing
else to tell errors by. What is found here is said first, the store's own words follow; what is not
found is said as it came.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from dynatops.lake.stores import Location

_TEXT_MAX = 600


class Trouble(StrEnum):
    """What kind it is; the same kind is said once."""

    NO_BUCKET = "no_bucket"
    NO_CREDENTIALS = "no_credentials"
    NOT_ALLOWED = "not_allowed"
    CLOCK = "clock"
    REGION = "region"
    ENDPOINT = "endpoint"
    TLS = "tls"
    SILENT = "silent"
    CUT_OFF = "cut_off"
    BUSY = "busy"
    CLIENT_MISSING = "client_missing"
    FULL = "full"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class _Sign:
    """The first that is found says what it is."""

    pattern: re.Pattern[str]
    trouble: Trouble
    advice: str


def _sign(pattern: str, trouble: Trouble, advice: str) -> _Sign:
    return _Sign(re.compile(pattern, re.IGNORECASE), trouble, advice)


# In what is advised: {bucket}, {path} and {where} are the lake's.
_SIGNS = (
    _sign(
        r"NO_SUCH_BUCKET|NoSuchBucket|bucket does not exist|Bucket '.*' not found",
        Trouble.NO_BUCKET,
        "there is no bucket {bucket} at {where}: create it, or correct the lake's URL; if it is "
        "there, the endpoint is another store's (AWS_ENDPOINT_URL)",
    ),
    _sign(
        r"TOO_SKEWED|TooSkewed|REQUEST_EXPIRED|RequestExpired|RequestInTheFuture",
        Trouble.CLOCK,
        "the clock of this machine and that of the store differ by more than 15 minutes: set this "
        "one (timedatectl, chronyc tracking)",
    ),
    _sign(
        r"EXPIRED_TOKEN|ExpiredToken|INVALID_CLIENT_TOKEN|InvalidToken|token has expired",
        Trouble.NO_CREDENTIALS,
        "the credentials have run out: renew them, and start the process again if they came with "
        "its environment",
    ),
    _sign(
        r"INVALID_ACCESS_KEY_ID|InvalidAccessKeyId",
        Trouble.NO_CREDENTIALS,
        "the store at {where} does not know this access key: is AWS_ACCESS_KEY_ID (or AWS_PROFILE) "
        "that of another store, or was it deleted?",
    ),
    _sign(
        r"SIGNATURE_DOES_NOT_MATCH|SignatureDoesNotMatch",
        Trouble.NO_CREDENTIALS,
        "the store does not accept the signature: AWS_SECRET_ACCESS_KEY is not that of the access "
        "key, or something between here and {where} changes requests",
    ),
    _sign(
        r"OAuth2 access token|GOOGLE_APPLICATION_CREDENTIALS|Anonymous caller|invalid_grant",
        Trouble.NO_CREDENTIALS,
        "there are no credentials that Google takes: set GOOGLE_APPLICATION_CREDENTIALS, or give "
        "the pod a service account",
    ),
    _sign(
        r"Unable to locate credentials|NoAuthWithAWS|NoAwsCredentials",
        Trouble.NO_CREDENTIALS,
        "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
        "AWS_PROFILE, or give this machine a role",
    ),
    _sign(
        r"PermanentRedirect|MovedPermanently|HTTP status 30[17]|AuthorizationHeaderMalformed"
        r"|IllegalLocationConstraint|configured region is|INCORRECT_REGION|PERMANENT_REDIRECT",
        Trouble.REGION,
        "the bucket {bucket} is in another region than asked for ({where}): set AWS_REGION to "
        "the bucket's",
    ),
    _sign(
        r"ACCESS_DENIED|AccessDenied|PERMISSION_DENIED|does not have storage|HTTP status 403"
        r"|AccessControlException",
        Trouble.NOT_ALLOWED,
        "the credentials do not allow that: brokers need to write objects below {path}, "
        "`lake describe` and jobs to list and read them, jobs to write and delete results (S3: "
        "s3:PutObject; s3:ListBucket, s3:GetObject; s3:DeleteObject). "
        "Without any credentials (AWS_ACCESS_KEY_ID, AWS_PROFILE, a role) stores say the same",
    ),
    _sign(
        r"SLOW_DOWN|SlowDown|SERVICE_UNAVAILABLE|ServiceUnavailable|THROTTLING|INTERNAL_FAILURE"
        r"|INTERNAL_ERROR|InternalError|HTTP status 5\d\d|SafeModeException",
        Trouble.BUSY,
        "the store is overloaded or in trouble itself: there is nothing to do here; if it lasts, "
        "look at the store",
    ),
    _sign(
        r"curlCode: 6\b|CURL error \[6\]|Could not resolve host|UnknownHostException",
        Trouble.ENDPOINT,
        "the store's name cannot be resolved ({where}): correct AWS_ENDPOINT_URL or AWS_REGION, or "
        "see whether DNS works here",
    ),
    _sign(
        r"curlCode: 7\b|CURL error \[7\]|Could not connect|Connection refused|ConnectException",
        Trouble.ENDPOINT,
        "nobody listens at {where}: is the store up, and are host and port right?",
    ),
    _sign(
        r"not a valid URI|URL using bad|curlCode: 3\b|Unsupported protocol",
        Trouble.ENDPOINT,
        "the endpoint is no URL ({where}): write AWS_ENDPOINT_URL=https://host:port",
    ),
    _sign(
        r"curlCode: (35|51|58|60|77)\b|CURL error \[(35|60)\]|SSL connect|TLS connect|certificate",
        Trouble.TLS,
        "there is no TLS to be had with {where}: does it speak http:// only, or is its certificate "
        "of an authority of your own (AWS_CA_BUNDLE)?",
    ),
    _sign(
        r"curlCode: 28\b|CURL error \[28\]|Timeout was reached|timed out|DEADLINE_EXCEEDED"
        r"|(Read|Connect) timeout on endpoint",
        Trouble.SILENT,
        "the store at {where} takes connections and does not answer: it hangs, or something in "
        "between drops what is sent; look at the store, then at firewalls and network policies",
    ),
    _sign(
        r"curlCode: (52|55|56|18)\b|CURL error \[(52|55|56)\]|Connection reset|Empty reply"
        r"|Broken pipe|Connection was closed before",
        Trouble.CUT_OFF,
        "the connection to {where} was cut off in the middle; nothing half is in the lake",
    ),
    _sign(
        r"libjvm|libhdfs|CLASSPATH|NoClassDefFound",
        Trouble.CLIENT_MISSING,
        "hdfs:// needs Hadoop's own client here: Java (JAVA_HOME), libhdfs (ARROW_LIBHDFS_DIR or "
        "HADOOP_HOME) and CLASSPATH=$(hadoop classpath --glob)",
    ),
    _sign(
        r"No space left|Disk quota|\[Errno 28\]|QuotaExceeded",
        Trouble.FULL,
        "there is no room left where the lake is: remove what is old, or give it more",
    ),
    _sign(
        r"Permission denied|Read-only file system|Operation not permitted",
        Trouble.NOT_ALLOWED,
        "this user may not write there: see the owner and the mode of {path}, and whether it is "
        "mounted read-only",
    ),
)


class LakeStoreError(OSError):
    """A store could not do what was asked of it."""

    def __init__(self, trouble: Trouble, advice: str, said: str) -> None:
        super().__init__(f"{advice} ({said})" if advice else said)
        self.trouble = trouble

    @property
    def is_known(self) -> bool:
        return self.trouble is not Trouble.OTHER


@contextmanager
def explained(location: Location) -> Iterator[None]:
    """What fails in here is a LakeStoreError that says what to do about it."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise store_error(error, location) from error


def store_error(error: Exception, location: Location) -> LakeStoreError:
    if isinstance(error, LakeStoreError):
        return error
    # On a line: it is for a log.
    said = " ".join(str(error).split())[:_TEXT_MAX] or type(error).__name__
    bucket = location.path.partition("/")[0]
    for sign in _SIGNS:
        if sign.pattern.search(said):
            where = location.store.where or location.path
            advice = sign.advice.format(bucket=bucket, path=location.path, where=where)
            return LakeStoreError(sign.trouble, advice, said)
    return LakeStoreError(Trouble.OTHER, "", said)

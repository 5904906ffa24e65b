"""How stores of objects are reached from any machine, and what it means when they are not.

The driver reads the usual variables and files once (`AWS_ENDPOINT_URL`, `AWS_REGION`,
`AWS_ACCESS_KEY_ID`, a profile, ...) and hands executors what they need to open the same store:
machines of a cluster know nothing of its environment. Credentials that a machine has by its role
are not handed on: executors have their own. Imported by executors, which have pyarrow and no more.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from pyarrow import fs as pafs

# Generous: what fails is tried again by the library, then by Spark, then by the next run.
_CONNECT_TIMEOUT_S = 10.0
_REQUEST_TIMEOUT_S = 60.0
_ATTEMPTS = 5
_LOCAL_SCHEMES = ("", "file")

# What to do, and what is in a failure of which that is true, whoever words it: the store, pyarrow,
# Hadoop. The first that fits counts.
_TROUBLES: Mapping[str, tuple[str, ...]] = {
    "this machine's clock is wrong, and the store refuses what it signs: set the clock": (
        *("RequestTimeTooSkewed", "REQUEST_TIME_TOO_SKEWED", "difference between the request time"),
    ),
    "there is no such bucket: create it, or mend the URL": ("NoSuchBucket", "NO_SUCH_BUCKET"),
    "the store does not know these credentials: look at AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY "
    "and AWS_SESSION_TOKEN": (
        *("InvalidAccessKeyId", "INVALID_ACCESS_KEY_ID", "INVALID_CLIENT_TOKEN", "InvalidToken"),
        *("ExpiredToken", "SignatureDoesNotMatch", "SIGNATURE_DOES_NOT_MATCH"),
    ),
    "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or "
    "give this machine a role": (
        *("NoCredentials", "Unable to locate credentials", "NoAuthWithAWS", "NoAwsCredentials"),
    ),
    "no permission: listing, reading, writing and deleting below it must be allowed (of a lake, "
    "listing and reading)": ("AccessDenied", "ACCESS_DENIED", "(403)", "Forbidden"),
    "the bucket is in another region: set AWS_REGION": (
        *("PermanentRedirect", "AuthorizationHeaderMalformed", "(301)"),
    ),
    "the store cannot be reached from here: look at AWS_ENDPOINT_URL and the network": (
        *("EndpointConnectionError", "NETWORK_CONNECTION", "Could not connect", "UnknownHost"),
        *("Connection refused", "ConnectTimeout", "ReadTimeout", "timed out", "curlCode"),
    ),
    "the store is overloaded or failing; nothing is lost, run it again": (
        *("SlowDown", "SLOW_DOWN", "ServiceUnavailable", "SERVICE_UNAVAILABLE", "InternalError"),
        *("INTERNAL_FAILURE", "(500)", "(502)", "(503)"),
    ),
    "the disk is full; nothing is lost, make room and run it again": ("No space left",),
}


def trouble(said: str) -> str:
    """What to do about it, in a sentence; empty if it is not known."""
    fitting = (todo for todo, words in _TROUBLES.items() if any(word in said for word in words))
    return next(fitting, "")


def explained(url: str, said: str) -> str:
    """For a person: what is wrong, where, and what to do."""
    first = said.strip().partition("\n")[0][:300]
    advice = trouble(said)
    return f"{url}: {advice} ({first})" if advice else f"{url}: {first}"


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """What a machine needs to open a store: pickled, it goes where it is needed."""

    scheme: str
    # As pyarrow's S3FileSystem has them.
    options: Mapping[str, str]

    def filesystem(self) -> pafs.FileSystem:
        if self.scheme == "s3":
            return pafs.S3FileSystem(
                **self.options,
                connect_timeout=_CONNECT_TIMEOUT_S,
                request_timeout=_REQUEST_TIMEOUT_S,
                retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
                # A file of one block is one request, not three.
                allow_delayed_open=True,
            )
        if self.scheme == "gs":
            return pafs.GcsFileSystem()
        filesystem, _ = pafs.FileSystem.from_uri(f"{self.scheme}:///")
        return filesystem


def endpoint_of(environment: Mapping[str, str]) -> str:
    """Of S3; empty: Amazon's."""
    return environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""


def s3_access(
    environment: Mapping[str, str], region: str = "", credentials: Mapping[str, str] | None = None
) -> StoreAccess:
    options = dict(credentials or {})
    if region:
        options["region"] = region
    if endpoint := endpoint_of(environment):
        parts = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
        options |= {"endpoint_override": parts.netloc, "scheme": parts.scheme}
    if certificates := environment.get("AWS_CA_BUNDLE"):
        options["tls_ca_file_path"] = certificates
    return StoreAccess("s3", options)


def s3a_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The same for Hadoop's s3a, as settings of Spark; of credentials Spark takes care itself."""
    settings: dict[str, str] = {}
    if endpoint := endpoint_of(environment):
        settings["spark.hadoop.fs.s3a.endpoint"] = endpoint
        # Stores that are not Amazon's have no name of their own for each bucket, as a rule.
        settings["spark.hadoop.fs.s3a.path.style.access"] = "true"
    if region := environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION"):
        settings["spark.hadoop.fs.s3a.endpoint.region"] = region
    return settings


def scheme_of(url: str) -> str:
    return url.partition("://")[0] if "://" in url else url.partition(":")[0] if ":/" in url else ""


def is_folder(url: str) -> bool:
    """Whether it is a folder of the machine that looks."""
    return scheme_of(url) in _LOCAL_SCHEMES


def current_environment() -> Mapping[str, str]:
    return os.environ

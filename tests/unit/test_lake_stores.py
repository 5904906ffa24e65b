"""What a URL and the environment say of a store, before it is asked; what its errors mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynatops.lake.files import Lake, LakeError
from dynatops.lake.store_errors import Trouble, store_error
from dynatops.lake.stores import Location, call_max_s, locate

VARIABLES = (
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_CA_BUNDLE",
)
CONFIG = """\
[default]
region = eu-north-1

[profile lake]
region = ap-south-1
endpoint_url = https://minio.example:9000
"""


@pytest.fixture(autouse=True)
def _nothing_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("environment", "url", "where"),
    [
        ({}, "s3://b/lake", "AWS, region us-east-1"),
        ({"AWS_DEFAULT_REGION": "eu-west-1"}, "s3://b/lake", "AWS, region eu-west-1"),
        (
            {"AWS_DEFAULT_REGION": "eu-west-1", "AWS_REGION": "eu-west-2"},
            "s3://b/lake",
            "AWS, region eu-west-2",
        ),
        ({"AWS_REGION": "eu-west-2"}, "s3://b/lake?region=x", "AWS, region x"),
        (
            {"AWS_ENDPOINT_URL": "http://m:9000"},
            "s3://b/lake",
            "http://m:9000, region us-east-1",
        ),
        (
            {"AWS_ENDPOINT_URL": "http://m:9000", "AWS_ENDPOINT_URL_S3": "http://s:9000"},
            "s3://b/lake",
            "http://s:9000, region us-east-1",
        ),
        (
            {"AWS_ENDPOINT_URL": "http://m:9000"},
            "s3://b/lake?endpoint_override=other:1&scheme=http",
            "http://other:1, region us-east-1",
        ),
        ({"AWS_CONFIG_FILE": "{config}"}, "s3://b/lake", "AWS, region eu-north-1"),
        (
            {"AWS_CONFIG_FILE": "{config}", "AWS_PROFILE": "lake"},
            "s3://b/lake",
            "https://minio.example:9000, region ap-south-1",
        ),
        (
            {"AWS_CONFIG_FILE": "{config}", "AWS_PROFILE": "lake", "AWS_REGION": "x"},
            "s3://b/lake",
            "https://minio.example:9000, region x",
        ),
        ({}, "gs://b/lake", "Google Cloud Storage"),
        ({}, "hdfs://namenode:8020/lake", "namenode:8020"),
    ],
)
def test_where_a_store_is(
    environment: dict[str, str],
    url: str,
    where: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = tmp_path / "config"
    config.write_text(CONFIG)
    for name, value in environment.items():
        monkeypatch.setenv(name, value.format(config=config))
    assert locate(url).store.where == where


@pytest.mark.parametrize(
    ("url", "path", "renames"),
    [
        ("s3://b/some/lake/", "b/some/lake", False),
        ("s3://b", "b", False),
        ("s3a://b/lake?region=x", "b/lake", False),
        ("gcs://b/lake", "b/lake", False),
        ("gs://b/lake", "b/lake", False),
        ("gs://anonymous@b/lake", "b/lake", False),
        ("hdfs://namenode:8020/data/lake/", "/data/lake", True),
        ("hdfs://namenode:8020/lake?user=ann", "/lake", True),
        ("file:///data/lake/", "/data/lake", True),
        ("file:///data/a%20lake", "/data/a lake", True),
        ("/data/lake", "/data/lake", True),
    ],
)
def test_how_a_file_gets_there_follows_from_the_store(url: str, path: str, renames: bool) -> None:
    lake = Lake.open(url)
    assert (lake.root, lake.store.renames) == (path, renames)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "no URL"),
        ("s3:///lake", "name a bucket"),
        ("gs://", "name a bucket"),
        ("hdfs://namenode", "name a folder"),
        ("ftp://host/lake", "a lake is a folder, or a URL that begins with file://, s3://"),
        ("s3://b/lake?endpoint=x", "there is no endpoint to be set there, but endpoint_override"),
        ("s3://b/lake?region", "cannot be opened"),
        ("gs://b/lake?region=x", "there is no region to be set there"),
        ("file:///lake?region=x", "there is no region to be set there, nor anything else"),
        ("hdfs://namenode:8020/lake?region=x", "no region to be set there, but user, replication"),
        ("file://elsewhere/lake", "write file:///folder"),
    ],
)
def test_what_is_no_lake(url: str, message: str) -> None:
    with pytest.raises(LakeError, match=message):
        locate(url)


def test_keys_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(LakeError, match="no keys in a URL") as refused:
        locate("s3://AKIA:hush@bucket/lake")
    assert "hush" not in str(refused.value)


def aws(code: str, message: str) -> str:
    """As pyarrow hands it on."""
    put = "When uploading object with key 'l/x' in bucket 'b'"
    return f"{put}: AWS Error {code} during PutObject operation: {message}"


def curl(code: int, message: str) -> str:
    return aws("NETWORK_CONNECTION", f"curlCode: {code}, {message}")


def unnamed(status: int, name: str) -> str:
    message = f"Unable to parse ExceptionName: {name} Message: …"
    return aws(f"UNKNOWN (HTTP status {status})", message)


SAYINGS = (
    (
        aws("NO_SUCH_BUCKET", "The specified bucket does not exist"),
        Trouble.NO_BUCKET,
        "there is no bucket b at AWS, region us-east-1: create it",
    ),
    (aws("ACCESS_DENIED", "Access Denied"), Trouble.NOT_ALLOWED, "write objects below b/l"),
    (aws("REQUEST_TIME_TOO_SKEWED", "The difference …"), Trouble.CLOCK, "clock of this machine"),
    (aws("INVALID_ACCESS_KEY_ID", "The …"), Trouble.NO_CREDENTIALS, "AWS_ACCESS_KEY_ID"),
    (aws("SIGNATURE_DOES_NOT_MATCH", "The …"), Trouble.NO_CREDENTIALS, "AWS_SECRET_ACCESS_KEY"),
    (unnamed(400, "ExpiredToken"), Trouble.NO_CREDENTIALS, "renew them"),
    (unnamed(301, "PermanentRedirect"), Trouble.REGION, "set AWS_REGION"),
    (aws("SLOW_DOWN", "Please reduce your request rate."), Trouble.BUSY, "look at the store"),
    (aws("UNKNOWN (HTTP status 503)", "No response body."), Trouble.BUSY, "look at the store"),
    (curl(28, "Timeout was reached; Details: Too slow"), Trouble.SILENT, "does not answer"),
    (curl(52, "Server returned nothing"), Trouble.CUT_OFF, "nothing half is in the lake"),
    (curl(7, "Could not connect to server"), Trouble.ENDPOINT, "nobody listens"),
    (curl(6, "Could not resolve hostname"), Trouble.ENDPOINT, "AWS_ENDPOINT_URL"),
    (curl(35, "SSL connect error"), Trouble.TLS, "AWS_CA_BUNDLE"),
    (
        aws("[code 103]", "Custom endpoint `https://127.0.0.1:9x` was not a valid URI"),
        Trouble.ENDPOINT,
        "write AWS_ENDPOINT_URL=https://host:port",
    ),
    (
        "google::cloud::Status(UNAVAILABLE: Could not create a OAuth2 access token to …",
        Trouble.NO_CREDENTIALS,
        "GOOGLE_APPLICATION_CREDENTIALS",
    ),
    (
        "Unable to load libjvm dlopen(/usr/lib/jvm/libjvm.so) failed: cannot open shared object",
        Trouble.CLIENT_MISSING,
        "CLASSPATH",
    ),
    ("[Errno 28] Error writing bytes to file. No space left on device", Trouble.FULL, "no room"),
    (
        "[Errno 13] Failed to open local file '/x'. Detail: Permission denied",
        Trouble.NOT_ALLOWED,
        "may not write",
    ),
    ("the moon is in the way", Trouble.OTHER, "the moon"),
)


@pytest.mark.parametrize(("said", "trouble", "advice"), SAYINGS)
def test_what_a_store_says_is_explained(said: str, trouble: Trouble, advice: str) -> None:
    location = Location(locate("s3://b/l").store, "b/l")
    error = store_error(OSError(said), location)
    assert error.trouble is trouble
    assert advice in str(error)
    # In the store's words, too.
    assert said[:60] in str(error)


def test_each_kind_of_trouble_is_seen_in_what_stores_say() -> None:
    assert {trouble for _, trouble, _ in SAYINGS} == set(Trouble)


def test_a_call_ends_although_the_store_is_silent() -> None:
    assert call_max_s(5.0) == 26.0

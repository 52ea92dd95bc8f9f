"""Connections to object stores: waits, retries, and credentials as each store's own tools find them."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from obstore.store import AzureStore, GCSStore, S3Store

from raycase.errors import first_line

if TYPE_CHECKING:
    from obstore.store import AzureConfig, ClientConfig, GCSCredential, RetryConfig, S3Credential

Store = S3Store | AzureStore | GCSStore
TIMEOUT = float(os.environ.get("RAYCASE_S3_TIMEOUT", "30"))  # seconds without an answer
TRYING_S = 60  # after which a request that failed is not made again
FRESH = timedelta(minutes=10)  # botocore renews credentials that are to expire within this time
AZURE_NAMES = {
    "AccountName": "account_name",
    "AccountKey": "account_key",
    "SharedAccessSignature": "sas_key",
    "BlobEndpoint": "endpoint",
}


@lru_cache(maxsize=64)
def open_store(scheme: str, bucket: str, patience: int = 1) -> Store:
    """The client of a bucket or container, which keeps connections; `patience`: how many times as long it waits.

    Raises OSError where S3 finds no credentials.
    """
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=min(10.0, TIMEOUT)),
        "read_timeout": timedelta(seconds=TIMEOUT * patience),  # of each read, and of an upload until it is answered
        "timeout": timedelta(hours=1),  # of a whole file
        "allow_http": True,  # where the endpoint says so
    }
    retry: RetryConfig = {
        "max_retries": 1000,  # within this time
        "retry_timeout": timedelta(seconds=TRYING_S * patience),
        "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=10), "base": 2},
    }
    if scheme == "s3":
        return _s3(bucket, client, retry)
    if scheme == "gs":
        return _google(bucket, client, retry)
    return _azure(f"{scheme}://{bucket}", client, retry)


def _s3(bucket: str, client_options: ClientConfig, retry: RetryConfig) -> S3Store:
    """By botocore: environment, profiles, single sign-on, roles; region and endpoint likewise."""
    import botocore.session  # a sixth of a second, which work on local files need not wait for
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    session = botocore.session.get_session()
    config = Config(connect_timeout=5, read_timeout=5, retries={"total_max_attempts": 2})
    try:
        client = session.create_client("s3", config=config)
        credentials = session.get_credentials()
        if _is_aws(client.meta.endpoint_url) and (region := bucket_region(client, bucket)):
            client = session.create_client("s3", config=config, region_name=region)
        if bundle := session.get_config_variable("ca_bundle"):
            client_options["root_certificate"] = Path(bundle).read_bytes()
    except BotoCoreError as error:
        raise OSError(first_line(error)) from error
    if credentials is None and not os.environ.get("AWS_SKIP_SIGNATURE"):
        raise PermissionError("expected credentials of S3 in the environment, a profile or a role, got none")

    def provide() -> S3Credential:
        frozen = credentials.get_frozen_credentials()  # renewed where they are about to expire
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + FRESH,
        }

    return S3Store(
        bucket,
        config={"endpoint": client.meta.endpoint_url, "region": client.meta.region_name},
        client_options=client_options,
        retry_config=retry,
        credential_provider=provide if credentials else None,
    )


def _is_aws(endpoint: str) -> bool:
    return (urlsplit(endpoint).hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))


def bucket_region(client: Any, bucket: str) -> str | None:
    """Where AWS has a bucket, which may be another region than the one that is set; None where it does not say."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        answer = client.head_bucket(Bucket=bucket)
    except ClientError as error:  # it says so even to those whom it refuses
        answer = error.response
    except BotoCoreError:
        return None
    region: str | None = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("x-amz-bucket-region")
    return region


def _google(bucket: str, client: ClientConfig, retry: RetryConfig) -> GCSStore:
    """By the environment: GOOGLE_APPLICATION_CREDENTIALS, what gcloud left, the machine's account; or an emulator."""
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    if not emulator:
        return GCSStore(bucket, client_options=client, retry_config=retry)
    base_url = emulator if "://" in emulator else f"http://{emulator}"
    return GCSStore(
        bucket,
        config={"base_url": base_url.rstrip("/")},
        client_options=client,
        retry_config=retry,
        credential_provider=_any_token,
    )


def _any_token() -> GCSCredential:
    return {"token": "any", "expires_at": None}


def _azure(uri: str, client: ClientConfig, retry: RetryConfig) -> AzureStore:
    """By the environment: AZURE_STORAGE_CONNECTION_STRING, or account and key, or who the machine is."""
    connection = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    given = dict(part.split("=", 1) for part in connection.split(";") if "=" in part)
    config: AzureConfig = {AZURE_NAMES[k]: v for k, v in given.items() if k in AZURE_NAMES}  # type: ignore[assignment]
    return AzureStore.from_url(uri, config=config, client_options=client, retry_config=retry)

"""S3 by s3fs, whose errors are all OSErrors here and whose listings never come from a cache."""

from typing import Any

from botocore.exceptions import BotoCoreError
from s3fs import S3FileSystem

from raycase.errors import first_line

ATTEMPTS = 9  # for about a minute, by the waits of botocore's standard mode


class S3(S3FileSystem):
    """`s3fs.S3FileSystem`. Its one override turns what botocore raises without an answer of S3 into an OSError."""

    async def _call_s3(self, *arguments: Any, **options: Any) -> Any:
        try:
            return await super()._call_s3(*arguments, **options)
        except BotoCoreError as error:
            raise OSError(first_line(error)) from error


def file_system(timeout: float) -> S3:
    """The file system of this process, configured as by botocore; `timeout`: seconds after which it asks again."""
    return S3(
        use_listings_cache=False,  # it would hide what other processes wrote
        default_cache_type="none",  # a file is read by ranges of our own
        config_kwargs={
            "retries": {"mode": "standard", "total_max_attempts": ATTEMPTS},  # s3fs alone repeats SlowDown only
            "connect_timeout": min(10.0, timeout),
            "read_timeout": timeout,
            "max_pool_connections": 50,
        },
    )

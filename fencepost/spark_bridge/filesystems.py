"""The storages of option `path`: local disks, and the file systems that pyarrow knows by the scheme of a URI.

Rule: the URI is all that an executor gets. Credentials come from its environment, and no message shows those
that a URI contains.
"""

from __future__ import annotations

import os
import re
from functools import cache
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit, urlunsplit

from fencepost.journal.disk import DiskStorage
from fencepost.journal.layouts import LogLayout, open_layout
from fencepost.journal.storage import StorageError, StorageReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyarrow import fs

_SPARKS_NAMES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}  # pyarrow's names for Hadoop's schemes
_CREDENTIALS: Final = {
    "s3": "credentials come from the environment of each process, such as AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, from ~/.aws, or from the role of the instance, and not from Spark's settings",
    "gs": "credentials come from GOOGLE_APPLICATION_CREDENTIALS of each process, or from the service account "
    "of the machine; gs://anonymous@bucket/dir sends none",
    "abfs": "credentials come from a SAS token in the URI, from the environment of each process, such as "
    "AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET, or from the identity of the machine",
    "hdfs": "libhdfs prints the cause to standard error; each process needs JAVA_HOME, libhdfs.so in "
    "ARROW_LIBHDFS_DIR or HADOOP_HOME/lib/native, and CLASSPATH as `hadoop classpath --glob` prints it",
}
REMOTE_SCHEMES: Final = frozenset({"s3", "gs", "abfs", "abfss", "hdfs", "viewfs", *_SPARKS_NAMES})
_GCS_RETRY_LIMIT: Final = "retry_limit_seconds=60"  # not 15 minutes, which is too long to wait for an error


def open_directories(paths: Sequence[str]) -> LogLayout:
    """The directories at these paths or URIs; NotADataDirectory if they are not the logs of one cluster."""
    return open_layout([open_storage(path) for path in paths])


def open_storage(path: str) -> StorageReader:
    """The directory at a local path, or at a URI with a scheme of REMOTE_SCHEMES. StorageError if the URI
    cannot be used.
    """
    if not is_remote(path):
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", path) and not os.path.exists(path):
            scheme, known = path.partition("://")[0], ", ".join(sorted(REMOTE_SCHEMES))
            raise StorageError(
                f"cannot read {path}: {scheme} is not one of {known}; give one, or a local path"
            )
        return DiskStorage(path, read_only=True)
    from fencepost.spark_bridge.arrow_storage import ArrowStorage

    scheme = _scheme(path)
    kind = {"abfss": "abfs", "viewfs": "hdfs"}.get(scheme, scheme)
    filesystem, directory = _filesystem_of(path)
    return ArrowStorage(filesystem, directory, location=shown(path), advice=_CREDENTIALS[kind])


def is_remote(path: str) -> bool:
    """Whether a path is a URI of a file system other than the local one."""
    scheme, slashes, _ = path.partition("://")
    return bool(slashes) and scheme.lower() in REMOTE_SCHEMES


def absolute(path: str) -> str:
    """A path that means the same in any working directory."""
    return path if is_remote(path) else os.path.abspath(path)


def shown(path: str) -> str:
    """A path for messages: a URI without user, password and query, which may have credentials."""
    if not is_remote(path):
        return path
    parts = urlsplit(path)
    user, at, host = parts.netloc.rpartition("@")
    if _scheme(path) in ("s3", "gs") and ":" in host:  # no bucket has a port: this is a secret with a slash
        return f"{parts.scheme}://{parts.path.rpartition('@')[2]}"
    # In Azure's URIs, the name before the @ is that of the container or of the account.
    name = user.partition(":")[0] if _scheme(path) in ("abfs", "abfss") else ""
    return urlunsplit((parts.scheme, f"{name}{at}{host}" if name else host, parts.path.rstrip("/"), "", ""))


def _scheme(path: str) -> str:
    scheme = path.partition("://")[0].lower()
    return _SPARKS_NAMES.get(scheme, scheme)


@cache
def _filesystem_of(uri: str) -> tuple[fs.FileSystem, str]:
    """Cached per process: a file system holds connections, and looks up the region of a bucket."""
    import pyarrow as pa
    from pyarrow import fs

    scheme, rest = _scheme(uri), uri.partition("://")[2]
    if scheme == "gs" and "retry_limit_seconds" not in parse_qs(urlsplit(uri).query):
        rest += ("&" if "?" in rest else "?") + _GCS_RETRY_LIMIT
    try:
        return fs.FileSystem.from_uri(f"{scheme}://{rest}")
    except (OSError, ValueError, ImportError, pa.ArrowException) as problem:
        # The message of pyarrow may repeat the whole URI.
        text = str(problem).replace(uri, shown(uri)).replace(f"{scheme}://{rest}", shown(uri))
        advice = _CREDENTIALS.get(scheme, "")
        raise StorageError(f"cannot use {shown(uri)}: {text} ({advice})") from None

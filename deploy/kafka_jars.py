"""Java and the jars of Apache Kafka: found, downloaded once with Maven, kept in the cache folder."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from .processes import ServiceError

if TYPE_CHECKING:
    from collections.abc import Iterator

KAFKA_VERSION = (
    "4.3.1"  # the default; FENCEPOST_KAFKA_VERSION overrides it. kafka-pom.xml and compose.yaml agree (a test compares)
)
MIN_JAVA = 17
DOWNLOAD_TIMEOUT_S = 900
_POM = Path(__file__).with_name("kafka-pom.xml")


def kafka_version() -> str:
    """Return the version of Apache Kafka that is used."""
    return os.environ.get("FENCEPOST_KAFKA_VERSION") or KAFKA_VERSION


def cache_dir() -> Path:
    """Return the folder for downloads and the state of local services: FENCEPOST_CACHE, else the user's cache."""
    if named := os.environ.get("FENCEPOST_CACHE"):
        return Path(named).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fencepost"


def java() -> str:
    """Return the Java program: of JAVA_HOME, else the one on the path."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


@cache
def java_release() -> str:
    """Return the full version of Java, such as "17.0.15"; empty when there is none that runs."""
    try:
        said = subprocess.run([java(), "-version"], capture_output=True, text=True, check=True, timeout=30).stderr
    except (OSError, subprocess.SubprocessError):
        return ""
    found = re.search(r'version "([^"]+)"', said)
    return found[1] if found else ""


def local_kafka_problem() -> str | None:
    """Return why Kafka cannot be started here without Docker, or None. Maven counts as having the jars."""
    release = java_release()
    major = int(release.partition(".")[0].partition("-")[0] or 0) if release else 0
    if major < MIN_JAVA:
        return (
            f"Java {MIN_JAVA} or newer is not installed (found: {release or 'none'}; Debian: openjdk-17-jre-headless)"
        )
    if not jars_dir().is_dir() and shutil.which("mvn") is None:
        return f"the jars of Kafka are not in {jars_dir()}, and there is no mvn to download them (Debian: maven)"
    return None


def jars_dir() -> Path:
    """Return where the jars of this version are, or will be."""
    return cache_dir() / f"kafka-{kafka_version()}"


def install_jars() -> Path:
    """Download the jars unless they are there; return their folder, which is always complete.

    Raises:
        ServiceError: no Java, no Maven, or Maven failed. Trying again is safe.
    """
    if (problem := local_kafka_problem()) is not None:
        raise ServiceError(problem)
    target = jars_dir()
    with _locked(cache_dir() / "download.lock"):
        if not target.is_dir():
            with tempfile.TemporaryDirectory(dir=cache_dir()) as folder:
                fresh = Path(folder, "jars")
                _download(fresh)
                fresh.rename(target)
    return target


def class_path() -> str:
    """Return the class path, in a fixed order: the archive of loaded classes is only valid for the same one."""
    return os.pathsep.join(str(jar) for jar in sorted(install_jars().glob("*.jar")))


def class_archive() -> Path:
    """Return the file that keeps loaded classes between starts (AppCDS); it halves the time of a start.

    It lies beside the jars, since it is only valid for these very files.
    """
    return jars_dir() / f"java-{java_release()}.jsa"


def _download(folder: Path) -> None:
    command = ["mvn", "--batch-mode", "--quiet", "--file", str(_POM), f"-Dkafka.version={kafka_version()}"]
    command += [f"-DoutputDirectory={folder}", "-DincludeScope=runtime", "dependency:copy-dependencies"]
    try:
        subprocess.run(
            command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL, timeout=DOWNLOAD_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise ServiceError(
            f"mvn did not download Kafka {kafka_version()} in {DOWNLOAD_TIMEOUT_S} s; try again"
        ) from error
    except subprocess.CalledProcessError as error:
        raise ServiceError(f"mvn could not download Kafka {kafka_version()}:\n{error.stdout}{error.stderr}") from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield

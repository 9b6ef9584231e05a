"""Every exception that bifolio raises on purpose.

::

    BifolioError                     exit code 2 unless a line below says otherwise
    ├── UsageError (ValueError)      an argument that cannot be used: empty question, unknown option, k < 1
    ├── NotFoundError (LookupError)  exit 1: a passage id that the collection does not have, an empty result
    ├── MissingPathError             exit 2: a file or folder that does not exist, or that holds nothing readable
    ├── DocumentError                one document cannot be read; an ingest reports it and goes on
    │   └── SkippedDocument          not an error of the file: a kind that is not read (binary)
    │       └── EmptyDocument        it can be read, and there is no text in it
    ├── CollectionError              the collection as a whole
    │   ├── CollectionMissingError   no collection at this path
    │   ├── CollectionExistsError    something is already there and will not be overwritten
    │   ├── CollectionDamagedError   bytes are missing or wrong
    │   ├── CollectionVersionError   written by a newer bifolio
    │   ├── CollectionBusyError      another process is writing
    │   └── EncoderMismatchError     built with another encoder; the message names both fingerprints
    ├── ModelError                   a model is there and cannot be used (damaged, unsafe format, unknown kind)
    │   └── ModelMissingError        exit 3: not in the cache; the message names the command that fetches it
    └── MissingExtraError (ImportError)  an optional dependency is missing; the message is the pip command

A message says what was given, what was expected and what to do next.
"""

from __future__ import annotations

from typing import ClassVar


class BifolioError(Exception):
    """Base of all deliberate errors; ``exit_code`` is what the command line returns for it."""

    exit_code: ClassVar[int] = 2


class UsageError(BifolioError, ValueError):
    """An argument that cannot be used as given."""


class NotFoundError(BifolioError, LookupError):
    """What was asked for is not in the collection."""

    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        """The message itself (``LookupError`` subclasses such as ``KeyError`` would show its repr)."""
        return str(self.args[0]) if self.args else ""


class MissingPathError(BifolioError):
    """A path that does not exist, or a folder without a readable document."""


class DocumentError(BifolioError):
    """One document cannot be read; the reason is fit for a person's eyes."""


class SkippedDocument(DocumentError):
    """The document is of a kind that is not read (binary data, an unknown format)."""


class EmptyDocument(SkippedDocument):
    """The document can be read, and there is no text in it."""


class CollectionError(BifolioError):
    """The collection as a whole cannot be used."""


class CollectionMissingError(CollectionError):
    """There is no collection at the given path."""


class CollectionExistsError(CollectionError):
    """The target path is taken."""


class CollectionDamagedError(CollectionError):
    """Bytes of the collection are missing or wrong."""


class CollectionVersionError(CollectionError):
    """The collection's format is newer than this program's."""


class CollectionBusyError(CollectionError):
    """Another process holds the write lock."""


class EncoderMismatchError(CollectionError):
    """The collection was built with another encoder."""


class ModelError(BifolioError):
    """A model was found and cannot be used."""


class ModelMissingError(ModelError):
    """A model is not in the cache; nothing is downloaded unless told to."""

    exit_code: ClassVar[int] = 3


class MissingExtraError(BifolioError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        """Build the message from the missing ``package``, the ``extra`` that has it and what it is for."""
        super().__init__(f"{purpose} needs {package}, which is not installed. Run: pip install 'bifolio[{extra}]'")

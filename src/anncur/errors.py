"""Every error and warning that anncur raises, in one tree.

    AnncurError                            `kept` holds what was paid for before it
    ├── InputError (ValueError)            an argument, item, query or file breaks a rule
    │   ├── DuplicateIdError               two items share an id
    │   ├── InvalidTextError               text that no file or tokenizer can carry
    │   └── FileFormatError                a line of a file that can't be read
    ├── UnknownIdError (KeyError)          an id that the corpus doesn't hold
    ├── ScorerError (RuntimeError)         the scorer failed
    │   ├── ScorerOutputError (ValueError) it answered with something other than one number per pair
    │   ├── ScorerBusyError                it is overloaded, or can't be reached for now: worth trying again
    │   ├── ScorerRefusedError             it will never answer this request: not worth trying again
    │   │   ├── ScorerAccessError          it will never answer any request
    │   │   └── TextTooLongError           it truncates texts from now on: worth sending once more
    │   ├── RequestTooLargeError           it takes fewer pairs, or bytes, at once
    │   ├── SpendCapError                  the cap on its pairs is reached
    │   └── FingerprintError               it is not the scorer, or the model, that what is stored came from
    ├── RetrieverError (RuntimeError)      a retriever failed, or gave something other than numbers
    ├── DatabaseError (RuntimeError)       a vector database is down, full or slow, or lost something
    ├── ResumeError (ValueError)           what is stored was begun with other settings
    ├── StorageError (OSError)             a file can't be written or read
    │   ├── DamagedError                   a file is missing, cut short or altered
    │   └── LockedError                    somebody else is writing to the folder
    ├── EngineError (RuntimeError)         workers could not do all that they were given
    ├── BudgetError (RuntimeError)         a method asked for more pairs than the budget holds
    └── DeadlineError (TimeoutError)       time ran out

    AnncurWarning (UserWarning)
    ├── UnstableScorerWarning              the scorer answers differently to the same pair
    ├── ChangedScorerWarning               the scorer answers differently than when the index was built
    ├── TruncationWarning                  the scorer doesn't read texts to their end
    ├── DriftWarning                       queries are unlike the anchor queries
    └── DamagedWarning                     a damaged file was passed over

Imports nothing, so that everything may import it."""

from __future__ import annotations


class AnncurError(Exception):
    """The base of every error that anncur raises on purpose.

    `kept` holds what was paid for before the error: `Hits` from a search, a `ScoreMatrix` from a build (pass it back as
    `Index.build(…, exact_scores=error.kept)` to pay only for what is missing)."""

    kept: object | None = None


class InputError(AnncurError, ValueError):
    """An argument, item, query or file breaks a rule; the message names the rule and the remedy."""


class DuplicateIdError(InputError):
    """Two items share an id."""


class InvalidTextError(InputError):
    """A text holds a character that can't be stored or tokenised: NUL or a lone surrogate."""


class FileFormatError(InputError):
    """A line of a file isn't what the format promises; the message names file and line."""


class UnknownIdError(AnncurError, KeyError):
    """An id that the corpus doesn't hold."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show the repr of the message


class ScorerError(AnncurError, RuntimeError):
    """The scorer failed."""


class ScorerOutputError(ScorerError, ValueError):
    """The scorer answered with something other than one finite number per pair."""


class ScorerBusyError(ScorerError):
    """The scorer is overloaded or can't be reached for now; `retry_after` is how long it asks to wait, in seconds."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ScorerRefusedError(ScorerError):
    """The scorer will never answer this request: a content filter, a request that it can't read."""


class ScorerAccessError(ScorerRefusedError):
    """The scorer will never answer any request: a wrong key, an unknown model, a quota that is used up."""


class TextTooLongError(ScorerRefusedError):
    """A text is too long for the scorer's model; from now on the scorer truncates, so send the request once more."""


class RequestTooLargeError(ScorerError):
    """The scorer takes fewer pairs, or bytes, in one request."""


class SpendCapError(ScorerError):
    """The cap on the pairs that a scorer may be asked for is reached."""


class FingerprintError(ScorerError):
    """The scorer, or the model of a retriever, is not the one that what is stored came from."""


class RetrieverError(AnncurError, RuntimeError):
    """A retriever failed, or gave something other than a finite number per item."""


class DatabaseError(AnncurError, RuntimeError):
    """A vector database can't be reached, is full or too slow, or no longer holds what it was given."""


class ResumeError(AnncurError, ValueError):
    """What is stored was begun with other settings; the message names the one that differs."""


class StorageError(AnncurError, OSError):
    """A file can't be written or read; what was there before is untouched."""


class DamagedError(StorageError):
    """A file is missing, cut short or altered; the message names it."""


class LockedError(StorageError):
    """Somebody else is writing to the folder of an index or a model."""


class EngineError(AnncurError, RuntimeError):
    """Workers could not do all that they were given; the message names what, and everything else is kept."""


class BudgetError(AnncurError, RuntimeError):
    """More pairs were asked for than the budget holds; none of them was scored."""


class DeadlineError(AnncurError, TimeoutError):
    """Time ran out before all that was asked for was scored."""


class AnncurWarning(UserWarning):
    """The base of every warning that anncur gives."""


class UnstableScorerWarning(AnncurWarning):
    """The scorer answered differently to the same pair, so its top k is not well defined."""


class ChangedScorerWarning(AnncurWarning):
    """The scorer answers differently than when the index was built, under the same name."""


class TruncationWarning(AnncurWarning):
    """Texts are longer than the scorer reads; what comes after doesn't count."""


class DriftWarning(AnncurWarning):
    """Queries are unlike the anchor queries, so that less may be found, and be estimated wrongly."""


class DamagedWarning(AnncurWarning):
    """A damaged file was passed over; the message names it."""

"""What can go wrong, said in one sentence: the rule, the value that broke it, and the cure."""

from collections.abc import Iterable
from difflib import get_close_matches


class MacsError(Exception):
    """Any error that a user of this package can cause and cure."""


class ConfigError(MacsError, ValueError):
    """A parameter, a name or a combination of them that has no meaning."""


class MeasurementError(MacsError, ValueError):
    """A measurement that does not fit its operator, or holds no usable numbers."""


class ModelError(MacsError, ValueError):
    """A model that is missing, damaged, or produced something that is not an image."""


class DataError(MacsError, ValueError):
    """Training or test data that is missing or unreadable."""


class ImageError(MacsError, ValueError):
    """A file that is no image of a format that is read here, is damaged, or is too large."""


class MacsWarning(UserWarning):
    """Something legal that probably does not do what its author hoped for."""


def unknown(kind: str, name: object, known: Iterable[str]) -> ConfigError:
    """The error for a name that is in no registry; it offers the nearest one that is."""
    names = sorted(known)
    near = get_close_matches(str(name), names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else "choose one of them."
    return ConfigError(f"unknown {kind} {name!r}; known are {', '.join(names)}; {hint}")

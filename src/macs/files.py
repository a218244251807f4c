"""From image files to result files: which becomes which, what is done already, and no half-written file."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from macs import __version__
from macs.errors import ConfigError, MacsError
from macs.images import files_below, read_bytes
from macs.models.manifest import digest
from macs.training.checkpoint import write_atomically

#: Pictures that some results have beside them.
SIDES = ("mean.png", "std.png")
#: What makes results: from a file's path and bytes to PNG files by their endings, and a record.
Make = Callable[[Path, bytes], tuple[dict[str, bytes], dict[str, Any]]]


@dataclass(frozen=True)
class Outcome:
    """What became of one file: ``done``, ``skipped`` (it was done before) or ``failed``, and why."""

    source: Path
    target: Path
    status: str
    record: dict[str, Any] | None = None
    error: str | None = None


def find_inputs(paths: Iterable[Path], leave_out: Iterable[Path | None] = ()) -> list[tuple[Path, Path]]:
    """Files, and the image files below folders but for those to leave out, each with its place below its folder."""
    found: list[tuple[Path, Path]] = []
    others = {p.resolve() for p in leave_out if p is not None}
    for path in paths:
        if path.is_dir():
            within = {other for other in others if path.resolve() in other.parents}
            below = [p for p in files_below(path) if not within & {p.resolve(), *p.resolve().parents}]
            if not below:
                raise ConfigError(f"{path} holds no image files; give a folder of PNG, JPEG, WEBP, BMP or TIFF files")
            found += [(p, p.relative_to(path)) for p in below]
        elif path.exists():
            found.append((path, Path(path.name)))
        else:
            raise ConfigError(f"there is no file or folder {path}; check the spelling")
    return found


def plan(
    paths: Iterable[Path], out: Path, leave_out: Iterable[Path | None] = (), sides: Iterable[str] = ()
) -> dict[Path, Path]:
    """Each input and the PNG that it becomes: below ``out``, or ``out`` itself where that is a PNG and there is one input.

    Args:
        paths: files and folders.
        out: a folder, or a PNG.
        leave_out: files and folders that are no inputs, such as a mask; no result may take their place.
        sides: which of ``SIDES`` each result will have beside it.
    """
    others = [path for path in leave_out if path is not None]
    inputs = list(dict.fromkeys(find_inputs(paths, (*others, out))))
    if out.suffix.lower() == ".png" and not out.is_dir():
        if len(inputs) > 1:
            raise ConfigError(f"{len(inputs)} images cannot become one file {out}; give a folder")
        targets = {inputs[0][0]: out}
    else:
        same = Counter(place.with_suffix("") for _, place in inputs)
        targets = {
            path: out / (place.with_suffix(".png") if same[place.with_suffix("")] == 1 else f"{place}.png")
            for path, place in inputs
        }
    results = [file for target in targets.values() for file in (target, *(side_file(target, kind) for kind in sides))]
    twice = [file for file, n in Counter(results).items() if n > 1]
    if twice:
        raise ConfigError(f"two inputs would both become {twice[0]}; restore them into different folders")
    keep_apart(results, (*targets, *others))
    return targets


def keep_apart(results: Iterable[Path], sources: Iterable[Path]) -> None:
    """Refuse a result that would take the place of a file that is read."""
    read = {identity(path): path for path in sources if path.exists()}
    for result in results:
        if result.exists() and identity(result) in read:
            raise ConfigError(f"{read[identity(result)]} would be replaced by a result; give another folder or name")


def identity(path: Path) -> tuple[int, int]:
    """Where a file lies on the disk, whatever its names."""
    found = path.stat()
    return found.st_dev, found.st_ino


def side_file(target: Path, kind: str) -> Path:
    """A file beside a result: ``x.json``, ``x.mean.png`` or ``x.std.png`` for ``x.png``."""
    return target.with_name(f"{target.stem}.{kind}")


def earlier(target: Path, config: dict[str, Any]) -> dict[str, Any] | None:
    """The record of an earlier result of the same input and settings; None where there is nothing; else an error."""
    side = side_file(target, "json")
    if not target.exists() and not side.exists():
        return None
    try:
        record = json.loads(side.read_bytes())
        same = record["config"] == json.loads(json.dumps(config))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(f"{target} is there and is no finished result; use --overwrite, or another folder") from None
    if not same:
        raise ConfigError(f"{target} was made from another input or with other settings; use --overwrite, or another folder")
    return record if target.exists() else None


def each_file(targets: dict[Path, Path], config: dict[str, Any], make: Make, overwrite: bool = False) -> Iterator[Outcome]:
    """Make the results of file after file; one that fails does not stop the others, and what is done is skipped.

    The record is written last, atomically like the rest: where it is, all is.
    """
    for source, target in targets.items():
        try:
            data = read_bytes(source)
            whole = {"input_sha256": digest(data), **config}
            record = None if overwrite else earlier(target, whole)
            if record is not None:
                yield Outcome(source, target, "skipped", record)
                continue
            made, about = make(source, data)
            names = [side_file(target, ending).name for ending in made]
            record = {"input": str(source), "config": whole, "macs": __version__, "files": names, **about}
            write(target, made, record)
        except MacsError as error:
            yield Outcome(source, target, "failed", error=" ".join(str(error).split()))
        except OSError as error:
            yield Outcome(source, target, "failed", error=f"{target} cannot be written ({error.strerror}); check the folder")
        except (RuntimeError, ValueError, ArithmeticError, MemoryError) as error:
            yield Outcome(source, target, "failed", error=unexpected(error))
        else:
            yield Outcome(source, target, "done", record)


def unexpected(error: Exception) -> str:
    """What no check foresaw, in one sentence."""
    reason = " ".join(f"{type(error).__name__} {error}".split())[:200]
    return f"nothing can be made of this image ({reason}); leave it out, or save it again in another size"


def outdated(target: Path, made: Iterable[str]) -> list[Path]:
    """The pictures beside an earlier result, by its own record, that are not made anew."""
    try:
        record = json.loads(side_file(target, "json").read_bytes())
        names = set(record["files"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return [side_file(target, kind) for kind in SIDES if kind not in made and side_file(target, kind).name in names]


def write(target: Path, made: dict[str, bytes], record: dict[str, Any]) -> None:
    """The pictures and then the record; what an earlier result had beside it goes."""
    for side in outdated(target, made):
        side.unlink(missing_ok=True)
    side_file(target, "json").unlink(missing_ok=True)
    for ending, content in made.items():
        write_atomically(side_file(target, ending), content)
    write_atomically(side_file(target, "json"), (json.dumps(record, indent=2) + "\n").encode())

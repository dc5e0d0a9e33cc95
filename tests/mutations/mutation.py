"""What a mutation is: one plausible mistake of a programmer as data, and the check that should catch it.

Knows texts and paths, and nothing of how checks are run. `apply` is the only thing done here: the old text must occur
exactly once in its file, so that a mutation is either planted where it was meant to be, or says that it no longer is.
"""

import ast
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Simulator:
    """`python -m tests.sim` from seed 1 until one fails, at most up to `seeds`."""

    seeds: int
    what: str = "machine"
    """What is simulated."""


@dataclass(frozen=True)
class Pytest:
    """A selection of pytest, and why it is not left to the simulator."""

    select: tuple[str, ...]
    because: str

    def __init__(self, *select: str, because: str) -> None:
        object.__setattr__(self, "select", select)
        object.__setattr__(self, "because", because)


@dataclass(frozen=True)
class Edit:
    """`old` becomes `new` in `file`, a path from the top of the tree."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutation:
    """A planted bug."""

    name: str
    planted: str
    """What the programmer got wrong, in a sentence."""
    file: str
    old: str
    new: str
    check: Simulator | Pytest
    more: tuple[Edit, ...] = ()
    """The rest of a mistake that takes more than one place."""

    @property
    def edits(self) -> tuple[Edit, ...]:
        """All of it."""
        return Edit(self.file, self.old, self.new), *self.more


class DoesNotApply(Exception):
    """The tree has changed: a mutation is not where it was."""


def mutated(root: Path, mutation: Mutation) -> dict[Path, str]:
    """The files of the tree that the mutation changes, as it makes them. Raises DoesNotApply."""
    found: dict[Path, str] = {}
    for edit in mutation.edits:
        path = root / edit.file
        text = found[path] if path in found else path.read_text() if path.is_file() else ""
        if (times := text.count(edit.old)) != 1:
            raise DoesNotApply(f"{mutation.name}: its old text occurs {times} times in {edit.file}")
        found[path] = text.replace(edit.old, edit.new)
    for path, text in found.items():
        try:
            ast.parse(text)
        except SyntaxError as error:
            raise DoesNotApply(f"{mutation.name}: {path.name} is no Python any more: {error}") from error
    return found

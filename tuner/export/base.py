"""The seam of the export family: what one training stack must say of itself, so that all others need not know it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from search_spaces.model_shape import BlockList
from search_spaces.policy import RecomputePolicy
from tuner.export.command_line import CommandLine
from tuner.export.forms import Form
from tuner.results import StudyResults, TrialRecord
from tuner.user_error import UserError

#: Where a header goes: into comment lines, into a key that the stack's parser ignores, or nowhere.
HeaderSyntax = Literal["hash", "json", "none"]


class ExportError(UserError):
    """The trial cannot be exported so; the message says what cannot be said and what can."""


@dataclass(frozen=True)
class StackVersion:
    """Releases of a stack, or a way to configure it, that are written alike.

    Attributes:
        name: What ``--stack-version`` takes; a release such as ``5.16``, or a name where releases do not decide.
        covers: Which releases, as the header and refusals say it: ``transformers 5.16 to 5.22``.
        package: The package whose release decides, as pip names it; None where none does.
        since: First release that is written so; None has no beginning.
        until: First release that is written otherwise; None has no end.
        by_release: Whether a release given to ``--stack-version`` finds this entry through ``since`` and ``until``;
            False for a variant that is named explicitly.
        pipeline_key: Key, dotted, of the number of pipeline stages, in each of which the stack counts blocks anew; None
            where it has none.
        command_line: How the settings are spelled as arguments in a launch script; None where no script takes them.
    """

    name: str
    covers: str
    package: str | None = None
    since: str | None = None
    until: str | None = None
    by_release: bool = True
    pipeline_key: str | None = None
    command_line: CommandLine | None = None


@dataclass(frozen=True)
class ExportContext:
    """What an exporter must know beyond the policy.

    Attributes:
        version: Of the stack.
        block_lists: Of the model, in the order of its forward pass.
        model_class: Class name of the model.
        model_factory: What built it, as the search names it; empty where that is not known.
        sequence_length: Tokens per sample; None where the study names none. Of several the longest.
        autocast: Type that operators compute in under autocast; None without.
        compile: What `torch.compile` was applied to in trials, ``blocks`` or ``model``; None without.
        compile_memory_budget: Of the compiler, in all trials; policies may have one of their own.
        through_python: Whether training code may use `tuner.integrations`, which say what the config cannot.
        pipeline_stages: Of the pipeline that trials ran in; 1 without.
    """

    version: StackVersion
    block_lists: tuple[BlockList, ...]
    model_class: str = ""
    model_factory: str = ""
    sequence_length: int | None = None
    dtype: str = "float32"
    autocast: str | None = None
    compile: str | None = None
    compile_memory_budget: float | None = None
    through_python: bool = False
    pipeline_stages: int = 1


@dataclass(frozen=True)
class Refusal:
    """Why a stack cannot say a policy, exactly.

    Attributes:
        what: What cannot be said, with its place: ``transformer.h: block 3 recomputes mlp``.
        accepts: What the stack does accept there.
        advice: A further way out, as a command or key; None where there is none.
    """

    what: str
    accepts: str
    advice: str | None = None


class Exporter(Protocol):
    """Writes policies in one training stack's own words, exactly or not at all.

    A member is one file with a class, one line in registry.py, and one entry in the shared contract test.
    """

    @property
    def name(self) -> str:
        """What ``--format`` takes."""

    @property
    def versions(self) -> tuple[StackVersion, ...]:
        """At least one; the one that is taken by default comes first: the newest stable release."""

    @property
    def header_syntax(self) -> HeaderSyntax:
        """Where the header goes in this format."""

    def forms(self, context: ExportContext) -> tuple[Form, ...]:
        """Every form of placement that the stack can say for this model, simplest first; cheap and pure."""

    def conflict(self, policy: RecomputePolicy, context: ExportContext) -> Refusal | None:
        """What else of a policy whose placement the stack can say cannot be said, such as RNG handling; cheap and pure.

        Is never asked about `preserve_rng_state` of a policy that recomputes nothing.
        """

    def write(self, study: StudyResults, trial: TrialRecord, context: ExportContext) -> str:
        """The body of the file, every relevant key with its value, defaults included; only called when nothing refuses.

        With ``header_syntax`` json the text of one JSON object.
        """

    def notes(self, policy: RecomputePolicy, context: ExportContext) -> tuple[str, ...]:
        """For the header: what the format cannot carry, and what else must be done by hand; a sentence each."""

    def settings(self, policy: RecomputePolicy, context: ExportContext) -> dict[str, object]:
        """The keys that the file sets, nested as in the file, with plain values; empty where it is no keyed config.

        What ``--into`` sets in a user's own file.
        """

    def obsolete_keys(self, context: ExportContext) -> tuple[str, ...]:
        """Keys, dotted, that would contradict the settings in a user's own file, and are removed there."""

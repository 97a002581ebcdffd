"""Error types, each with the exit code of its kind.

Every message is one line that says what is wrong, where, and what to do. A *refusal* (a channel that
was left alone for a reason) is not an error: it is data, see :class:`onnxfold.report.Refusal`.
"""

from onnxfold.printable import shortened


class OnnxFoldError(Exception):
    """Base of all errors raised on purpose; the command line prints it as one line.

    Messages quote names of models and files: whatever these hold, a message is one line of printable text.
    """

    #: Exit code of the command line: 1 = the request could not be met, 2 = the request makes no sense.
    exit_code = 1

    def __init__(self, *args: object) -> None:
        super().__init__(*(shortened(arg) if isinstance(arg, str) else arg for arg in args))


class ConfigError(OnnxFoldError, ValueError):
    """An option has a value that makes no sense."""

    exit_code = 2


class OptionTypeError(ConfigError, TypeError):
    """An option has a value of a wrong type, or the option does not exist."""


class ModelLoadError(OnnxFoldError):
    """The input is unreadable or not a valid ONNX model."""


class ModelNotFoundError(ModelLoadError):
    """The given path leads to no file."""

    exit_code = 2


class ModelSaveError(OnnxFoldError):
    """The output cannot be written."""

    exit_code = 2


class OutputError(OnnxFoldError):
    """Standard output cannot be written."""


class OutputClosedError(OutputError):
    """The reader of standard output ended early, as ``head`` does; the work itself succeeded."""

    #: As of a program that the system's signal for this, SIGPIPE, ends.
    exit_code = 141


class UnsupportedModelError(OnnxFoldError):
    """The model is valid ONNX but onnxfold cannot work on it as a whole."""


class NonFiniteError(OnnxFoldError):
    """A weight, `tensor`, is NaN, or infinite where it holds channels that could be folded."""

    def __init__(self, message: str, tensor: str) -> None:
        self.tensor = tensor
        super().__init__(message)


class NothingToFoldError(OnnxFoldError):
    """No channel can be folded, or the request folds none."""


class BudgetError(OnnxFoldError):
    """The requested size cannot be reached."""


class NoModelError(OnnxFoldError):
    """No model of a sweep is what was asked for."""


class ClusterLostError(OnnxFoldError):
    """The scheduler of a sweep ended, or forgot the jobs."""


class NotMeasurableError(OnnxFoldError):
    """Latency varies too much on this machine to be limited."""


class MemoryLimitError(OnnxFoldError):
    """The request needs more memory than the limit allows."""


class PassError(OnnxFoldError):
    """A pass broke one of its own guarantees, perhaps at a node that is known."""

    def __init__(self, pass_name: str, message: str, node: str = "") -> None:
        self.pass_name = pass_name
        self.node = node
        place = f" at node '{node}'" if node else ""
        super().__init__(f"pass {pass_name}{place}: {message}")


class VerificationError(OnnxFoldError):
    """The folded model does not load, does not run, or changed its interface."""


class EndlessRunError(VerificationError):
    """A Loop of a model does not end, or not in the time that it is given."""


class ExportError(OnnxFoldError):
    """The model, or one of its operators, cannot be written in the target format.

    The reason says what is in the way, and what to do; `node` and `op_type` are empty where it is the model.
    """

    def __init__(self, reason: str, *, node: str = "", op_type: str = "") -> None:
        self.reason = reason
        self.node = node
        self.op_type = op_type
        self.where_and_why = f"{op_type} '{node}': {reason}" if op_type else reason
        super().__init__(f"cannot export: {self.where_and_why}")

"""Set-up of onnxruntime, and the operators that it knows."""

from functools import cache

import onnxruntime as ort
from onnx import ModelProto

from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.files.well_formed import node_label
from onnxfold.graph.nodes import canonical_domain, model_nodes
from onnxfold.machine.threads import usable_cores

# Warnings of the default logger reach the terminal past the session's own setting.
ort.set_default_logger_severity(4)


def session_options(optimization: ort.GraphOptimizationLevel, threads: int = 0) -> ort.SessionOptions:
    """Return options with which onnxruntime shares the machine, and reports errors only as exceptions."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = optimization
    # A number of its own choice would come with threads that are bound to single cores, wherever others compute.
    options.intra_op_num_threads = threads or usable_cores()
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    return options


def runs(domain: str, op_type: str) -> bool:
    """Whether onnxruntime knows an operator; of a build that does not tell, whether it may."""
    return not _operators() or (canonical_domain(domain), op_type) in _operators()


@cache
def _operators() -> frozenset[tuple[str, str]]:
    """Return domain and name of every operator that onnxruntime has; none where it does not tell."""
    try:
        from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema
    except ImportError:  # of a small build
        return frozenset()
    return frozenset((schema.domain, schema.name) for schema in get_all_operator_schema())


def require_known_operators(model: ModelProto) -> None:
    """Refuse a model that onnxruntime will not load for an operator, before anything else is done with it."""
    functions = {(function.domain, function.name) for function in model.functions}
    for node in model_nodes(model):
        if (node.domain, node.op_type) not in functions and not runs(node.domain, node.op_type):
            whose = f" of the domain '{node.domain}'" if node.domain else ""
            raise UnsupportedModelError(
                f"{node_label(node)}{whose} is an operator that onnxruntime does not have, so no result can be "
                "checked: --no-verify folds the model by its weights alone"
            )

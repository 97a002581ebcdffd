"""Pass for Olive (PyPI ``olive-ai``): a fold as a step of a workflow.

Olive finds passes by name in a package configuration. ``python -m onnxfold.integrations.olive > olive_package.json``
writes Olive's own with this pass in it, for ``olive run --config workflow.json --package-config olive_package.json``;
in Python, :func:`package_config` returns it. In the workflow, the pass is a step whose options are those of
:class:`onnxfold.FoldConfig`::

    "passes": {"fold": {"type": "OnnxFold", "sparsity": 0.5}}

Any option may be searched over, with Olive's ``Categorical``. The folded model comes with the report of its fold, which
Olive brings along to the end of the workflow.
"""

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from olive.hardware import AcceleratorSpec
from olive.model import ONNXModelHandler
from olive.model.utils.onnx_utils import resolve_onnx_path
from olive.package_config import OlivePackageConfig
from olive.passes import Pass
from olive.passes.pass_config import BasePassConfig, PassConfigParam

from onnxfold import api
from onnxfold.config import OPTIONS, FoldConfig
from onnxfold.errors import UnsupportedModelError
from onnxfold.files import write
from onnxfold.terminal import say_json

#: The report of a fold, beside the folded model.
REPORT = "onnxfold.json"


class OnnxFold(Pass):  # type: ignore[misc,unused-ignore]  # a base without types
    """Fold an ONNX model: merge similar channels, and repair what the merge changed."""

    @classmethod
    def _default_config(cls, accelerator_spec: AcceleratorSpec) -> dict[str, PassConfigParam]:
        return {
            entry.name: PassConfigParam(
                type_=Any,  # FoldConfig checks the types itself, with a line that says what is wrong
                default_value=None if entry.default is MISSING else entry.default,
                description=OPTIONS[entry.name].reference_help,
            )
            for entry in fields(FoldConfig)
        }

    def _run_for_config(self, model: Any, config: BasePassConfig, output_model_path: str) -> ONNXModelHandler:
        if not isinstance(model, ONNXModelHandler):
            raise UnsupportedModelError(
                f"OnnxFold takes an ONNX model, not a {type(model).__name__}: put it after OnnxConversion"
            )
        path = Path(resolve_onnx_path(output_model_path, Path(model.model_path).name))
        options = {name: value for name, value in config.model_dump().items() if value is not None}
        result = api.fold(model.model_path, **options)
        result.save(path)
        report = path.with_name(REPORT)
        write({report: result.report.to_json().encode()})
        attributes = model.model_attributes or {}
        files = [*(attributes.get("additional_files") or []), str(report)]
        return ONNXModelHandler(
            model_path=str(path.parent),  # a folder: weights may lie beside the model
            onnx_file_name=path.name,
            inference_settings=model.inference_settings,
            model_attributes={**attributes, "additional_files": files},
        )


def package_config() -> dict[str, Any]:
    """Return Olive's own package configuration with this pass in it, for ``olive.run(..., package_config=...)``."""
    config: dict[str, Any] = json.loads(Path(OlivePackageConfig.get_default_config_path()).read_text(encoding="utf-8"))
    anything = {f"supported_{what}": ["*"] for what in ("providers", "accelerators", "precisions")}
    config["passes"]["OnnxFold"] = {"module_path": "onnxfold.integrations.olive.OnnxFold", **anything}
    return config


if __name__ == "__main__":
    say_json(package_config())

"""A model as a torch module whose weights can be trained, and written back.

BatchNormalizations stay in inference mode: they keep the statistics of the file. What trains are the weights that
layers multiply and add; constants that belong to the graph (sizes, bounds, divisors) stay.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from onnx import ModelProto
from torch import Tensor

from onnxfold.errors import ConfigError
from onnxfold.files import Read, check_outputs
from onnxfold.graph.files.save import outputs_of, save, to_model
from onnxfold.graph.patterns import behind
from onnxfold.graph.view import GraphView
from onnxfold.torch_graph.executor import TorchGraph
from onnxfold.torch_graph.norms import SCALES_AND_BIASES, holds_floats

#: Inputs of operators that hold what is trained.
_TRAINED = {
    "Conv": (1, 2), "ConvTranspose": (1, 2), "Gemm": (1, 2), "MatMul": (0, 1), "PRelu": (1,), "Add": (0, 1),
    "Mul": (0, 1), "Gather": (0,), **SCALES_AND_BIASES,
}  # fmt: skip
#: Operators that only lay a weight out for the one that reads it.
_LAID_OUT = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")


class TorchModel(torch.nn.Module):
    """An ONNX model as a torch module; its parameters are the model's weights, whose names `names` has by theirs."""

    def __init__(self, view: GraphView, device: str = "cpu", reads: Callable[[], Iterable[Read]] = tuple) -> None:
        super().__init__()
        self._reads = reads
        self._source = view
        trained = trained_weights(view)
        if not trained:
            raise ConfigError("the model has no float weights to train")
        self._graph = TorchGraph(view, device=device, fed=trained)
        self.names: dict[str, str] = {}  # by the names of parameters, which have no dots
        for weight in trained:
            plain = weight.replace(".", "_")
            while plain in self.names:
                plain += "_"
            self.names[plain] = weight
        self.weights = torch.nn.ParameterDict(
            {plain: torch.nn.Parameter(self._graph.tensor(view.weight(name))) for plain, name in self.names.items()}
        )

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the model's output, or a tuple of all outputs where there are several."""
        output_names, input_names = self._source.output_names, self._source.input_names
        if len(inputs) != len(input_names):
            raise ConfigError(
                f"the model takes {len(input_names)} inputs ({', '.join(input_names)}), not {len(inputs)}"
            )
        feeds = {name: value.to(self._graph.device) for name, value in zip(input_names, inputs, strict=True)}
        feeds |= {name: self.weights[plain] for plain, name in self.names.items()}
        outputs = self._graph.run(feeds, output_names)
        return outputs[output_names[0]] if len(output_names) == 1 else tuple(outputs[name] for name in output_names)

    def to_onnx(self, path: str | Path | None = None) -> ModelProto:
        """Return the model with the weights as they are now, in the types that they had."""
        view = self._source.copy()
        for plain, name in self.names.items():
            view.set_weight(name, self.weights[plain].detach().cpu().numpy().astype(np.float32))
        if path is not None:
            check_outputs(outputs_of(Path(path), "the output", external_data=False), self._reads())
            save(view, Path(path))
        return to_model(view)


def trained_weights(view: GraphView) -> list[str]:
    """Return the weights that are trained, each once, in the order of the nodes that read them."""
    read = (node.input[i] for node in view.nodes for i in _TRAINED.get(node.op_type, ()) if i < len(node.input))
    weights = dict.fromkeys(behind(view, name, _LAID_OUT) for name in read)
    return [name for name in weights if holds_floats(view, name)]

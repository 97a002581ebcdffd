r"""Least-squares compensation: original and folded network run side by side on inputs that need not be real.

Walk both networks once, in topological order. At every consumer of folded channels, replace the plain column sum W U
by W B (:mod:`onnxfold.passes.least_squares`). Behind every layer whose rows were merged, restore what
averaging took from the activations: each merged channel gets the mean and the standard deviation that its
members have on average on the same inputs. With a BatchNormalization that is done in its statistics, without
one in the rows and the bias.

**Matched reference.** Synthetic inputs have the wrong statistics. With `match_batch_norm` the original runs with every
BatchNormalization in batch mode, so that each channel has its true mean beta and variance gamma^2 and only the
correlations come from the inputs. While the walk goes on the folded network runs with its synthetic
statistics too; what is stored translates them back by the ratios that the original shows,

    var'  = var_synthetic(folded)  * geometric mean over members of var_running / var_synthetic
    mean' = mean_synthetic(folded) + mean over members of (mu_running - mu_synthetic) / sigma_running,

the latter in units of sigma_running.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from onnx import NodeProto

from onnxfold.channels.declarations import Axis, Role, Use
from onnxfold.channels.layers import LINEAR_OPS
from onnxfold.cluster.features import BN_EPSILON
from onnxfold.cluster.plan import FoldPlan
from onnxfold.graph.axes import from_front, to_front
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView, attr_float, attr_int
from onnxfold.passes.axis_map import AxisMap, axis_map
from onnxfold.passes.base import Pass, PassResult
from onnxfold.passes.fold_channels import merge_weight
from onnxfold.passes.least_squares import ChannelMoments, CrossMoments
from onnxfold.passes.side_by_side import Activations, Batches, pairs
from onnxfold.progress import Progress, silent

Matrix = npt.NDArray[np.float64]

#: Strength of the pull towards the plain fold, relative to the mean variance of the folded channels.
RIDGE = 1e-3
#: Enough samples per consumer; more positions than this are thinned out evenly.
MAX_SAMPLES = 200_000
#: A channel whose synthetic deviation is this much smaller than the others' is dead on these inputs.
_DEAD = 1e-3
_MAX_GAIN = 10.0


@dataclass(frozen=True, eq=False)
class RepairLeastSquares(Pass):
    """Compensate consumers and restore statistics.

    Parameters
    ----------
    original : GraphView
        The network before the merge, rows normalised.
    plan : FoldPlan
        The fold.
    inputs : list of dict
        Batches of inputs.
    match_batch_norm : bool
        Run the original with the statistics of the inputs instead of its own.
    """

    original: GraphView
    plan: FoldPlan
    inputs: Batches
    match_batch_norm: bool
    progress: Progress = field(default=silent, compare=False)

    def run(self, view: GraphView) -> PassResult:
        """Walk the networks."""
        walk = _Walk(self, view)
        nodes = list(pairs(self.original, view))
        for done, (before, after) in enumerate(nodes):
            if before.op_type in LINEAR_OPS:
                self.progress(f"least squares {before.name}", done, len(nodes))
            walk.step(before, after)
        walk.finish()
        return PassResult(modified=bool(self.plan.groups))


class _Walk:
    """State of one walk: activations of both networks, and statistics to store at the end."""

    def __init__(self, repair: RepairLeastSquares, view: GraphView) -> None:
        self.repair = repair
        self.plan = repair.plan
        self.original = repair.original
        self.view = view
        self.reference = Activations(repair.original, repair.inputs)
        self.folded = Activations(view, repair.inputs)
        self.maps: dict[tuple[str, int], AxisMap | None] = {}
        self.solutions: dict[tuple[str, int, int], Matrix] = {}
        self.stored: dict[str, Array] = {}
        self.consumers: dict[str, list[Use]] = {}
        for group in self.plan.groups:
            for member in group.with_role(Role.CONSUMER):
                for use in member.uses:
                    self.consumers.setdefault(use.node, []).append(use)

    def step(self, before: NodeProto, after: NodeProto) -> None:
        """Compensate, run and repair one node."""
        for use in dict.fromkeys(self.consumers.get(before.output[0], ())):
            self.compensate(before, use)
        if before.op_type == "BatchNormalization" and self.is_known(before):
            self.batch_norm(before, after)
        else:
            self.reference.run(before)
            self.folded.run(after)
        self.rescale(before, after)
        self.reference.release(before)
        self.folded.release(after)

    def finish(self) -> None:
        """Store the statistics that the original's inputs would show."""
        for name, values in self.stored.items():
            self.view.set_weight(name, values)
        self.view.touch()

    def map(self, tensor: str, axis: int) -> AxisMap | None:
        """Return the fold of an activation's axis."""
        key = (tensor, axis)
        if key not in self.maps:
            width = self.reference.values[tensor][0].shape[axis]
            self.maps[key] = axis_map(self.plan, Axis(tensor, axis), width)
        return self.maps[key]

    # -- consumers -----------------------------------------------------------------------------

    def compensate(self, node: NodeProto, use: Use) -> None:
        """Write W B in place of W U; one B per input tensor."""
        channels, weight = use.channels, use.axis
        shared = len(self.original.consumers(weight.tensor)) > 1
        if channels.tensor not in self.reference.values or channels.tensor not in node.input or shared:
            return
        mapped = self.map(channels.tensor, channels.axis)
        if mapped is None:
            return
        key = (channels.tensor, channels.axis, weight.blocks)
        if key not in self.solutions:
            self.solutions[key] = self.solve(channels, mapped, weight.blocks)
        fold = (mapped.positions, mapped.representatives, self.solutions[key].T)
        values = self.original.weight(weight.tensor)
        self.view.set_weight(
            weight.tensor, merge_weight(self.original, self.plan, weight.tensor, values, {weight: fold})
        )

    def solve(self, channels: Axis, mapped: AxisMap, blocks: int) -> Matrix:
        """Return B for an activation; block diagonal in front of a grouped convolution."""
        x, y = self.reference.values[channels.tensor], self.folded.values[channels.tensor]
        width = x[0].shape[channels.axis]
        block = mapped.positions[:, 0] // (width // blocks)
        folded_block = block[mapped.representatives]
        total = sum(part.size for part in x) // len(mapped.positions)
        stride = -(-total // MAX_SAMPLES)
        solution = np.zeros_like(mapped.decode)
        for b in range(blocks):
            rows, columns = np.flatnonzero(block == b), np.flatnonzero(folded_block == b)
            moments = CrossMoments(len(rows), len(columns))
            for one, two in zip(x, y, strict=True):
                moments.add(
                    _samples(one, channels.axis, mapped.positions[rows], stride),
                    _samples(two, channels.axis, mapped.folded_positions[columns], stride),
                )
            solution[np.ix_(rows, columns)] = moments.solve(mapped.decode[np.ix_(rows, columns)], RIDGE)
        return solution

    # -- statistics ----------------------------------------------------------------------------

    def is_known(self, node: NodeProto) -> bool:
        """Whether a BatchNormalization has constant statistics of its own."""
        names = node.input[3:5]
        return all(self.original.is_weight(n) and len(self.original.consumers(n)) == 1 for n in names)

    def batch_norm(self, before: NodeProto, after: NodeProto) -> None:
        """Give the folded BatchNormalization the statistics at which its output has its members' mean and deviation."""
        x, axis = before.input[0], 1
        mapped = self.map(x, axis)
        eps = attr_float(before, "epsilon", BN_EPSILON)
        mean_run, var_run = (self.original.weight(n).astype(np.float64) for n in before.input[3:5])
        reference = ChannelMoments(self.reference.values[x], axis)
        folded = ChannelMoments(self.folded.values[x], axis)
        if mapped is None or mapped.positions.shape[1] != 1:
            self.reference.run(before)
            self.folded.run(after)
            return
        # From here on in the order of units; vectors of the folded network in the order of its positions.
        order = mapped.positions[:, 0]
        mu, var = reference.mean[order], reference.variance[order]
        sigma_run = np.sqrt(np.maximum(var_run[order], 0.0) + eps)
        place = np.argsort(mapped.folded_positions[:, 0])
        if self.repair.match_batch_norm:
            floor = _DEAD * np.median(var / sigma_run**2) * sigma_run**2
            ratio = sigma_run**2 / np.maximum(np.maximum(var, floor), np.finfo(np.float32).tiny)
            shift = (mean_run[order] - mu) / sigma_run
            walk_var, walk_mean = folded.variance, folded.mean
            stored_var = walk_var * np.exp(mapped.encode @ np.log(ratio))[place]
            stored_mean = walk_mean + ((mapped.encode @ shift) * (mapped.encode @ sigma_run))[place]
            own = {
                before.input[3]: _like(reference.mean, mean_run),
                before.input[4]: _like(reference.variance, mean_run),
            }
            self.reference.run(before, own)
        else:
            normal_mean = (mapped.encode @ ((mu - mean_run[order]) / sigma_run))[place]
            normal_dev = (mapped.encode @ (np.sqrt(var) / sigma_run))[place]
            alive = normal_dev > _DEAD
            deviation = np.where(alive, np.sqrt(folded.variance) / np.where(alive, normal_dev, 1.0), 0.0)
            known = np.sqrt(self.view.weight(after.input[4]).astype(np.float64) + eps)
            deviation = np.where(deviation > 0.0, deviation, known)
            walk_var = np.maximum(deviation**2 - eps, 0.0)
            walk_mean = folded.mean - normal_mean * deviation
            stored_var, stored_mean = walk_var, walk_mean
            self.reference.run(before)
        own = {after.input[3]: _like(walk_mean, mean_run), after.input[4]: _like(walk_var, mean_run)}
        self.folded.run(after, own)
        self.stored[after.input[3]] = stored_mean
        self.stored[after.input[4]] = np.maximum(stored_var, 0.0)

    def rescale(self, before: NodeProto, after: NodeProto) -> None:
        """Restore mean and deviation behind a layer that no BatchNormalization follows."""
        found = self.layer_of(before)
        if found is None:
            return
        layer, axis = found
        output = before.output[0]
        mapped = self.map(output, axis)
        if mapped is None or mapped.positions.shape[1] != 1:
            return
        reference = ChannelMoments(self.reference.values[output], axis)
        folded = ChannelMoments(self.folded.values[output], axis)
        order, place = mapped.positions[:, 0], np.argsort(mapped.folded_positions[:, 0])
        mean = (mapped.encode @ reference.mean[order])[place]
        deviation = (mapped.encode @ np.sqrt(reference.variance[order]))[place]
        is_folded = len(mapped.positions) != len(mapped.folded_positions)
        gain = np.ones(len(mean))
        if is_folded:
            now = np.sqrt(folded.variance)
            alive = now > np.maximum(_DEAD * np.median(now), np.finfo(np.float32).tiny)
            gain = np.where(alive, np.clip(deviation / np.where(alive, now, 1.0), 1 / _MAX_GAIN, _MAX_GAIN), 1.0)
        shift = mean - gain * folded.mean
        if self.apply(layer, before, after, gain, shift):
            shape = [1] * self.folded.values[output][0].ndim
            shape[axis] = -1
            a, b = (v.reshape(shape).astype(np.float32) for v in (gain, shift))
            self.folded.values[output] = [(a * part + b).astype(part.dtype) for part in self.folded.values[output]]

    def layer_of(self, node: NodeProto) -> tuple[NodeProto, int] | None:
        """Return the linear node whose biased output a node writes, and the output's channel axis."""
        layer = node
        if node.op_type == "Add":
            made = [self.original.producer(i) for i in node.input if not self.original.is_weight(i)]
            if len(made) != 1 or made[0] is None or made[0].op_type != "MatMul":
                return None
            layer = made[0]
            if len(self.original.consumers(layer.output[0])) != 1:
                return None
        if layer.op_type not in LINEAR_OPS or len(layer.input) < 2 or not self.original.is_weight(layer.input[1]):
            return None
        readers = self.original.consumers(node.output[0])
        if layer is node and node.op_type == "MatMul" and any(r.op_type == "Add" for r in readers):
            return None  # the Add of the bias comes next
        if len(readers) == 1 and readers[0].op_type == "BatchNormalization" and self.is_known(readers[0]):
            return None
        if len(self.original.consumers(layer.input[1])) > 1 or not self.is_touched(layer):
            return None
        rank = self.reference.values[node.output[0]][0].ndim
        return layer, (1 if layer.op_type != "MatMul" else rank - 1)

    def is_touched(self, layer: NodeProto) -> bool:
        """Whether the fold changed a layer's weight."""
        return bool(self.plan.members_of(layer.input[1]))

    def apply(self, layer: NodeProto, before: NodeProto, after: NodeProto, gain: Matrix, shift: Matrix) -> bool:
        """Scale the rows of a layer and correct its bias so that its output becomes gain * y + shift."""
        if layer.op_type == "Gemm" and attr_float(layer, "beta", 1.0) == 0.0:
            return False
        bias = self.bias_of(layer, before, after, len(gain))
        if bias is None:
            return False
        weight, w_axis, blocks = self.output_axis(layer)
        front = np.array(to_front(self.view.weight(weight), w_axis, blocks))
        if len(front) != len(gain):
            return False
        front *= gain.reshape(-1, *[1] * (front.ndim - 1)).astype(front.dtype)
        self.view.set_weight(weight, np.ascontiguousarray(from_front(front, w_axis, blocks)))
        old = self.view.weight(bias)
        beta = attr_float(layer, "beta", 1.0) if layer.op_type == "Gemm" else 1.0
        flat = old.reshape(-1).astype(np.float64) * gain + shift / beta
        self.view.set_weight(bias, flat.reshape(old.shape))
        return True

    def bias_of(self, layer: NodeProto, before: NodeProto, after: NodeProto, width: int) -> str | None:
        """Return the name of a layer's bias vector in the folded network, adding one where an operator takes it."""
        if before.op_type == "Add":
            names = [i for i in after.input if self.view.is_weight(i)]
            fits = len(names) == 1 and self.view.weight_size(names[0]) == width
            return names[0] if fits else None
        if layer.op_type == "MatMul":
            return None
        if len(after.input) > 2 and after.input[2]:
            name = after.input[2]
            return name if self.view.is_weight(name) and self.view.weight_size(name) == width else None
        dtype = self.view.weight(after.input[1]).dtype
        name = self.view.add_weight(f"{after.output[0]}_bias", np.zeros(width, dtype))
        del after.input[2:]
        after.input.append(name)
        return name

    def output_axis(self, layer: NodeProto) -> tuple[str, int, int]:
        """Return the weight of a layer and its output axis."""
        weight = layer.input[1]
        if layer.op_type == "Conv":
            return weight, 0, 1
        if layer.op_type == "ConvTranspose":
            return weight, 1, attr_int(layer, "group", 1)
        if layer.op_type == "Gemm":
            return weight, 0 if attr_int(layer, "transB", 0) else 1, 1
        return weight, len(self.original.weights[weight].shape) - 1, 1


def _samples(values: Array, axis: int, positions: npt.NDArray[np.int64], stride: int) -> npt.NDArray[np.float32]:
    """Return samples of shape (S, n_units): every stride-th place, every occurrence of a unit a sample of its own."""
    flat = np.moveaxis(values, axis, -1).reshape(-1, values.shape[axis])[::stride]
    taken = flat[:, positions.reshape(-1)].reshape(len(flat), *positions.shape)
    return np.ascontiguousarray(taken.transpose(0, 2, 1).reshape(-1, len(positions)), np.float32)


def _like(values: Matrix, model: Array) -> Array:
    return values.astype(np.float32) if model.dtype != np.float16 else values.astype(np.float16)

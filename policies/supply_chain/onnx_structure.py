"""Checks ONNX models for faults that crash, hang or exhaust ONNX Runtime: operators, tensors, trees
and the sizes of the tensors computed for one row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from policies.supply_chain.model_structure import Numbers, check_tree, need, parsing, within, words

# The operators that exporters of PyTorch, scikit-learn, LightGBM and XGBoost write. Loop and
# sequences are excluded as unbounded, random operators because an attribute sets their size.
_OPERATORS = frozenset(
    words(
        """Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool
    BatchNormalization BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Celu
    Clip Compress Concat Constant ConstantOfShape Conv ConvInteger ConvTranspose Cos Cosh CumSum
    DepthToSpace DequantizeLinear Div Dropout DynamicQuantizeLinear Einsum Elu Equal Erf Exp Expand
    EyeLike Flatten Floor GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool
    GlobalMaxPool Greater GreaterOrEqual GridSample GroupNormalization HardSigmoid HardSwish Hardmax
    Identity If InstanceNormalization IsInf IsNaN LRN LSTM LayerNormalization LeakyRelu Less
    LessOrEqual Log LogSoftmax LpNormalization MatMul MatMulInteger Max MaxPool Mean Min Mish Mod
    Mul Neg NonMaxSuppression NonZero Not OneHot Or PRelu Pad Pow QuantizeLinear RMSNormalization
    RNN Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean
    ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize RoiAlign RotaryEmbedding
    Round ScatterElements ScatterND Selu Shape Sigmoid Sign Sin Sinh Size Slice Softmax Softplus
    Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Tan Tanh ThresholdedRelu Tile TopK Transpose
    Trilu Unsqueeze Where Xor
    ArrayFeatureExtractor Binarizer Imputer LabelEncoder LinearClassifier LinearRegressor Normalizer
    OneHotEncoder SVMClassifier SVMRegressor Scaler StringNormalizer TfIdfVectorizer
    TreeEnsembleClassifier TreeEnsembleRegressor ZipMap"""
    )
)
# Operator → inputs whose values set the size of its output.
_SIZES = {"ConstantOfShape": (0,), "Expand": (1,), "OneHot": (1,), "Pad": (1,), "Range": (0, 1, 2)}
_SIZES |= {"Resize": (2, 3), "Tile": (1,)}
# The operators of the only allowed Scan, which skl2onnx writes for nearest neighbours (onnx_cdist).
_DISTANCES = {"Scan", "Identity", "Sub", "ReduceSumSquare"}
# Operator → the input with its shape, whose values shape inference iterates up to.
_SHAPES = {"ConstantOfShape": 0, "Expand": 1, "Reshape": 1, "Tile": 1}
# ONNX infers no shapes of these. They keep their input's shape, so Identity replaces them.
_ELEMENTWISE, _OPSET = ("Binarizer", "Imputer", "Normalizer", "Scaler"), 13
# Floating-point types (TensorProto.DataType), whose division by zero does not end the process.
_FLOATS = (1, 10, 11, 16)
# Operators whose values are bounded by the sizes of their inputs, which are checked already.
_BOUNDED_OPERATORS = ("Shape", "Size", "NonZero", "NonMaxSuppression", "TopK")
_SELECTIONS = ("Gather", "Slice", "Squeeze", "Unsqueeze", "Reshape")
# Operators through which the sizes of a tensor may become a divisor. Outputs of `_EMPTY` are empty
# for some rows, so their sizes may be 0.
_DIVISORS, _EMPTY = (
    (*_SELECTIONS, "Cast", "Div", "Identity"),
    ("Compress", *_BOUNDED_OPERATORS[2:4]),
)
# The most elements computed for one row, mostly of 4 bytes; the most nodes with inlined functions.
_MOST_ELEMENTS, _MOST_NODES = 2**29, 100_000
# The most elements of a constant that shapes may depend on.
_LARGEST_SHAPE = 4096
_OPTIONAL = ("nodes_hitrates", "nodes_missing_value_tracks_true")
_MODES = {f"BRANCH_{mode}".encode() for mode in ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")} | {b"LEAF"}


def check_onnx(model: Any) -> None:
    """Check a ModelProto; raise ValueError for a fault. Its large tensors lose their data."""
    from onnx.checker import check_model
    from onnx.inliner import inline_local_functions
    from onnx.shape_inference import infer_shapes

    for message in messages(model):
        need(message.DESCRIPTOR.name != "SparseTensorProto", "it has a sparse tensor")
        if _is_tensor(message):
            with parsing(f"tensor {message.name!r}"):
                _check_tensor(message)
    functions = {(function.domain, function.name): function for function in model.functions}
    for count, node in enumerate(_inlined(model, functions)):
        need(count < _MOST_NODES, f"its functions call each other {_MOST_NODES} times")
        is_known = node.op_type in _OPERATORS or (node.domain, node.op_type) in functions
        if node.op_type == "Scan":
            is_known = {inner.op_type for inner in _inlined(node, functions)} == _DISTANCES
        need(is_known, f"the operator {node.op_type} is not allowed")
    for graph_input in model.graph.input:
        for size in graph_input.type.tensor_type.shape.dim:
            if not size.HasField("dim_value"):
                size.dim_value = 1
    stated = {tensor.name: tensor for tensor in filter(_is_tensor, messages(model))}
    for node in _inlined(model, functions):
        if node.op_type in _SHAPES and len(node.input) > _SHAPES[node.op_type]:
            largest = max(
                map(abs, _integers(stated.get(node.input[_SHAPES[node.op_type]]))), default=0
            )
            need(largest <= _MOST_ELEMENTS, f"{node.op_type} {node.name!r} has the size {largest}")
    try:
        model = inline_local_functions(model) if functions else model
        outputs = [
            output.type.tensor_type
            for output in model.graph.output
            if output.type.HasField("tensor_type")
        ]
        bare = [output for output in outputs if not output.HasField("shape")]
        for output in bare:
            output.shape.SetInParent()  # check_model requires a shape, ONNX Runtime does not
        check_model(model)  # else shape inference reads inputs that do not exist
        for output in bare:
            output.ClearField("shape")
        for tensor in filter(_is_tensor, messages(model)):
            if math.prod(tensor.dims) > _LARGEST_SHAPE:  # its data would be copied twice more
                about = {"name": tensor.name, "data_type": tensor.data_type, "dims": tensor.dims}
                tensor.CopyFrom(type(tensor)(**about))
        if all(opset.domain for opset in model.opset_import):
            model.opset_import.add(version=_OPSET)
        for node in _inlined(model, {}):
            if node.op_type in _ELEMENTWISE:
                ends = {"input": node.input[:1], "output": node.output[:1]}
                node.CopyFrom(type(node)(op_type="Identity", **ends))
        model = infer_shapes(model, data_prop=True)
    except Exception as error:  # check_model and infer_shapes raise C++ classes
        raise ValueError(" ".join(str(error).split())[:200]) from None
    shapes = dict(_shapes(model))
    elements = {
        name: math.prod(abs(size) for size in sizes if size) for name, sizes in shapes.items()
    }
    total, nodes = sum(elements.values()), [*_inlined(model, {})]
    # Shape inference adds the sizes of Concat in 32 bits, so count its inputs too.
    total += sum(
        elements.get(name, 0)
        for member in nodes
        if member.op_type == "Concat"
        for name in member.input
    )
    need(total <= _MOST_ELEMENTS, f"it computes {total} elements for a row, over {_MOST_ELEMENTS}")
    sources = {name: node for node in nodes for name in node.output}
    kinds = {
        message.name: message.type.tensor_type.elem_type
        for message in messages(model)
        if message.DESCRIPTOR.name == "ValueInfoProto"
    }
    kinds |= {
        tensor.name: tensor.data_type
        for tensor in filter(_is_tensor, messages(model))
        if tensor.name
    }
    constants = {tensor.name: tensor for tensor in filter(_is_tensor, messages(model))}
    for node in nodes:
        with parsing(f"{node.op_type} {node.name!r}"):
            if node.op_type in _SIZES and None in shapes.get(node.output[0], [None]):
                _check_sizes(node, sources, constants)
            if node.op_type in ("Div", "Mod") and kinds.get(node.input[1]) not in _FLOATS:
                is_safe = _is_divisor(node.input[1], sources, constants, shapes)
                need(is_safe, "its divisor may end the process")
            samples = [
                attribute.i for attribute in node.attribute if attribute.name == "sampling_ratio"
            ]
            need(max(samples, default=0) <= 64, "sampling_ratio is over 64")
            if node.op_type.startswith("TreeEnsemble"):
                _check_ensemble(node, shapes.get(node.input[0], [None])[-1])


def _constant(name: str, sources: Mapping[str, Any], constants: Mapping[str, Any]) -> Any:
    """Return the tensor of an initializer or a Constant node; None if `name` is computed."""
    source = sources.get(name)
    if source is not None and source.op_type == "Constant":
        return next(
            (attribute.t for attribute in source.attribute if attribute.HasField("t")), None
        )
    return constants.get(name) if source is None else None


def _is_divisor(
    name: str, sources: Mapping[str, Any], constants: Mapping[str, Any], shapes: Mapping[str, Any]
) -> bool:
    """Return whether an integer divisor is never 0 or -1.

    It is a constant without both, a Max with a positive constant, or derives from a tensor's sizes.
    """
    from onnx.numpy_helper import to_array
    from onnx.reference import ReferenceEvaluator

    steps = []
    while (source := sources.get(name)) is not None and source.op_type in _DIVISORS:
        name, *inputs = source.input
        tensors = {
            input_name: _constant(input_name, sources, constants)
            for input_name in inputs
            if input_name
        }
        need(None not in tensors.values(), "its divisor depends on rows")
        steps.append(
            (source, {input_name: to_array(tensor) for input_name, tensor in tensors.items()})
        )
    if source is not None and source.op_type == "Max":
        least = [
            _integers(_constant(input_name, sources, constants)) for input_name in source.input
        ]
        return not steps and any(values and min(values) > 0 for values in least)
    if source is None or source.op_type != "Shape" or source.attribute:
        divisors = _integers(_constant(name, sources, constants))
        return bool(divisors) and not steps and not {0, -1} & {*divisors}
    names, unseen = [name], dict(sources)
    for name in names:
        if (above := unseen.pop(name, None)) is not None:
            need(above.op_type not in _EMPTY, f"its divisor may be 0, of {above.op_type}")
            names += above.input
    sizes = np.array([1 if size is None else size for size in shapes[source.input[0]]])
    for node, fixed_inputs in reversed(steps):
        (sizes,) = ReferenceEvaluator(node).run(None, {node.input[0]: sizes, **fixed_inputs})
    return not np.isin(sizes, (0, -1)).any()


def _integers(tensor: Any) -> list[int]:
    """Return the values of a small tensor of integers; [] of any other."""
    from onnx.numpy_helper import to_array

    if tensor is None or math.prod(tensor.dims) > _LARGEST_SHAPE:
        return []
    values = to_array(tensor)
    return [int(value) for value in values.flat] if values.dtype.kind in "iu" else []


def _inlined(graph: Any, functions: Mapping[Any, Any], above: Sequence[Any] = ()) -> Iterator[Any]:
    """Yield the nodes of a graph and its subgraphs, and those of functions once per call."""
    need(len(above) < 20, "its functions call each other more than 20 levels deep")
    for node in messages(graph):
        if node.DESCRIPTOR.name == "NodeProto":
            yield node
            if function := functions.get((node.domain, node.op_type)):
                yield from _inlined(function, functions, (*above, node))


def _check_sizes(node: Any, sources: Mapping[str, Any], constants: Mapping[str, Any]) -> None:
    """Check that the constants that set a node's output size are not too large."""
    from onnx.numpy_helper import to_array

    waiting = [node.input[place] for place in _SIZES[node.op_type] if place < len(node.input)]
    seen, factor, largest = {""}, 1.0, 1.0
    while waiting:
        if (name := waiting.pop()) in seen:
            continue
        seen.add(name)
        source, tensor = sources.get(name), _constant(name, sources, constants)
        if tensor is not None and math.prod(tensor.dims) <= _LARGEST_SHAPE:
            values = to_array(tensor)
            if values.dtype.kind in "iu":
                factor *= float(np.maximum(np.abs(values.astype(np.float64)), 1).prod())
            elif values.dtype.kind == "f":
                largest = max(largest, float(np.abs(values).max(initial=0)))
        elif source is not None and source.op_type not in _BOUNDED_OPERATORS:
            waiting += source.input[: 1 if source.op_type in _SELECTIONS else None]
    need(factor * largest <= _MOST_ELEMENTS, "the constants of its size are too large")


def messages(message: Any) -> Iterator[Any]:
    """Yield a protobuf message and all messages nested in it."""
    waiting = [message]
    while waiting:
        yield (message := waiting.pop())
        for field, value in message.ListFields():
            if field.message_type is not None:
                waiting += [value] if hasattr(value, "DESCRIPTOR") else value


def _is_tensor(message: Any) -> bool:
    return bool(message.DESCRIPTOR.name == "TensorProto")


def _shapes(model: Any) -> Iterator[tuple[str, list[int | None]]]:
    """Yield the inferred sizes of each value; None for one that depends on the input."""
    for message in messages(model):
        if message.DESCRIPTOR.name == "ValueInfoProto" and message.type.tensor_type.HasField(
            "shape"
        ):
            sizes = message.type.tensor_type.shape.dim
            yield (
                message.name,
                [
                    dimension.dim_value if dimension.HasField("dim_value") else None
                    for dimension in sizes
                ],
            )


def _check_tensor(tensor: Any) -> None:
    """Check that the number of a tensor's values matches its dimensions."""
    from onnx.helper import tensor_dtype_to_field, tensor_dtype_to_np_dtype

    need(min(tensor.dims, default=0) >= 0, f"it has the sizes {[*tensor.dims]}")
    field = "raw_data" if tensor.raw_data else tensor_dtype_to_field(tensor.data_type)
    width = tensor_dtype_to_np_dtype(tensor.data_type).itemsize if tensor.raw_data else 1
    count, expected = len(getattr(tensor, field)), math.prod(tensor.dims) * width
    need(count == expected, f"it has {count} values or bytes, its sizes {expected}")


def _check_ensemble(node: Any, features: int | None) -> None:
    """Check the trees of a classifier or regressor that reads rows of `features` numbers
    (onnxruntime/core/providers/cpu/ml/tree_ensemble_common.h).
    """
    from onnx.helper import get_attribute_value

    values = {attribute.name: get_attribute_value(attribute) for attribute in node.attribute}
    kind = "class" if node.op_type == "TreeEnsembleClassifier" else "target"
    outputs = values.get("n_targets", 1)
    if kind == "class":
        outputs = len(values.get("classlabels_int64s") or values.get("classlabels_strings", ()))
    need(features is not None, "the number of its columns is unknown")
    modes, weights = np.asarray(values["nodes_modes"]), len(values[f"{kind}_nodeids"])
    need(outputs <= max(2, weights), f"it has {outputs} outputs, but {weights} values of leaves")
    need(np.isin(modes, [*_MODES]).all(), "nodes_modes has an unknown mode")
    for name, entries in values.items():
        if name.startswith(("nodes_", f"{kind}_")):
            length = math.prod(entries.dims) if hasattr(entries, "dims") else len(entries)
            count = len(modes) if name.startswith("nodes_") else weights
            need(
                length == count or (not length and name in _OPTIONAL),
                f"{name} has {length} entries",
            )
    base = len(values.get("base_values", ()))
    need(base in (0, 1, outputs), f"base_values has {base} numbers")
    is_leaf = modes == b"LEAF"
    inner = (~is_leaf).nonzero()[0]
    trees = within(values["nodes_treeids"], "nodes_treeids", 2**31)
    keys = (trees << 31) + within(values["nodes_nodeids"], "nodes_nodeids", 2**31)
    order = np.argsort(keys)
    need((np.diff(keys[order]) > 0).all(), "two nodes of a tree have one id")

    def node_indices(of_trees: Numbers, name: str, chosen: Numbers | slice) -> Numbers:
        """Return the indices of the nodes that the attribute `name` lists by id."""
        wanted = (of_trees << 31) + within(np.asarray(values[name])[chosen], name, 2**31)
        place = order[np.searchsorted(keys, wanted, sorter=order).clip(max=len(keys) - 1)]
        if (wrong := keys[place] != wanted).any():
            raise ValueError(f"{name} {wanted[wrong][0] % 2**31} is no node of its tree")
        return np.asarray(place)

    true_ids, false_ids = np.full((2, len(modes)), -1)
    true_ids[inner] = node_indices(trees[inner], "nodes_truenodeids", inner)
    false_ids[inner] = node_indices(trees[inner], "nodes_falsenodeids", inner)
    roots = np.diff(trees, prepend=-1).nonzero()[0]
    check_tree(true_ids, false_ids, roots)
    within(np.asarray(values["nodes_featureids"])[inner], "nodes_featureids", features or 0)
    owners = within(values[f"{kind}_treeids"], f"{kind}_treeids", 2**31)
    need(
        is_leaf[node_indices(owners, f"{kind}_nodeids", slice(None))].all(),
        f"{kind}_nodeids: no leaf",
    )
    within(values[f"{kind}_ids"], f"{kind}_ids", outputs)

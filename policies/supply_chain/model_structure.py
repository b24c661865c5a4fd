"""Checks tree models for faults that crash, hang or exhaust LightGBM or XGBoost.

These libraries do not validate the indices and sizes in a file. Each check parses a model without
its library, in time and memory proportional to the file, and raises `StructureFault`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]

# TreeSHAP recurses once a level, and its memory grows with the square of the depth.
_DEEPEST = 4096
# XGBoost keeps 64 dense rows for each thread (src/predictor/cpu_predictor.cc).
_MOST_FEATURES = 2**20
# XGBoost's maximum category (src/common/categorical.h), and the most bits of all splits together.
_MOST_CATEGORIES, _MOST_BITS = 2**24, 2**33
# XGBoost's split index of a pruned node (include/xgboost/tree_model.h).
_PRUNED = 2**31 - 1


def words(text: str) -> list[str]:
    """Return the words of a text, such as the names of fields."""
    return text.split()


_SPLITS = words(
    "split_feature left_child right_child decision_type internal_count "
    "threshold split_gain internal_value internal_weight"
)
_LEAVES = words("leaf_value leaf_count leaf_weight")
_FINITE = {"leaf_value", "leaf_const", "leaf_coeff", "shrinkage"}
_REAL = {*_SPLITS[5:], "leaf_weight", *_FINITE}
_TREE = {*_SPLITS, *_LEAVES, *_FINITE, "num_leaves", "num_cat", "cat_boundaries", "cat_threshold"}
_TREE |= {"is_linear", "num_features", "leaf_features"}
_COUNTS = words("num_class num_tree_per_iteration label_index max_feature_idx")
_LISTS = words("feature_names feature_infos monotone_constraints")
_HEADER = {*_COUNTS, *_LISTS, "version", "objective", "average_output", "tree_sizes"}
# The text after the trees. Python parses the categories as JSON, LightGBM each parameter's value.
_TAIL = re.compile(
    rb"end of trees\n\nfeature_importances:\n(?:[^\n]+=[^\n]*\n)*"
    rb"(?:\nparameters:\n(?:\[\w+: [^\n]*\]\n)*\nend of parameters\n)?"
    rb"\n*(?:pandas_categorical:(?P<categories>[^\n]*)\n*)?"
)


class StructureFault(ValueError):
    """A structural fault of a model file, and its location."""


@contextmanager
def parsing(place: str) -> Iterator[None]:
    """Convert exceptions of the block to StructureFault, prefixed with the place."""
    try:
        yield
    except KeyError as error:
        raise StructureFault(f"{place}: there is no {error}") from None
    except (ValueError, TypeError, AttributeError, ArithmeticError, IndexError) as error:
        raise StructureFault(f"{place}: {error}") from None


def need(condition: object, fault: str) -> None:
    """Raise StructureFault unless the condition holds."""
    if not condition:
        raise StructureFault(fault)


def check_lightgbm(content: bytes) -> None:
    """Check LightGBM's text format (src/boosting/gbdt_model_text.cpp and src/io/tree.cpp)."""
    need(b"\r" not in content, "it has a carriage return, which ends a line for LightGBM")
    begin = content.find(b"\nTree=0\n") + 1
    with parsing("header"):
        header = _fields(content[len("tree\n") : begin], _HEADER)
        label, features, classes = (_integer(header, _COUNTS[place]) for place in (2, 3, 0))
        need(header["num_tree_per_iteration"] == str(classes) != "0", "num_tree_per_iteration")
        need(label <= features, f"label_index is {label}")
        features += 1
        for name in _LISTS if _LISTS[-1] in header else _LISTS[:-1]:
            count = len([*filter(None, header[name].split(" "))])
            need(count == features, f"{name} has {count} entries, not max_feature_idx + 1")
        objective = header.get("objective", "")
        stated = re.findall(r"num_class:(\S*)", objective) or [str(classes)]
        need(stated == [str(classes)], f"objective has num_class {stated}, not {classes}")
        need("multiclass" not in objective or "num_class:" in objective, "objective")
        sizes = header["tree_sizes"].split(" ")
        need(len(sizes) % classes == 0, f"{len(sizes)} trees do not divide by {classes} classes")
    for number, size in enumerate(sizes):
        with parsing(f"Tree={number}"):
            need(content.startswith(b"Tree=%d\n" % number, begin), "no tree begins here")
            end = content.index(b"\n\n\n", begin)
            need(content.find(b"\n\n", begin, end) < 0, "it has a blank line, which ends a tree")
            fields = _fields(content[content.index(b"\n", begin) : end], _TREE)
            _check_lightgbm_tree(fields, features)
            length = end + 3 - begin
            need(size == str(length), f"it has {length} bytes, tree_sizes says {size}")
        begin = end + 3
    with parsing("end of trees"):
        tail = _TAIL.fullmatch(content, begin)
        if tail is None:
            raise ValueError("the lines after it are not LightGBM's")
        categories = json.loads(tail["categories"] or "null")
        need(isinstance(categories, list | None), "pandas_categorical is not a list")


def _check_lightgbm_tree(fields: Mapping[str, str], features: int) -> None:
    leaves, categories = (_integer(fields, name) for name in ("num_leaves", "num_cat"))
    splits, values = leaves - 1, {name: _parsed(name, text) for name, text in fields.items()}
    # LightGBM reads only the value of a tree without splits.
    lengths = dict.fromkeys(_SPLITS, splits) | dict.fromkeys(_LEAVES[: 3 if splits else 1], leaves)
    lengths |= {"shrinkage": 1} | ({"cat_boundaries": categories + 1} if categories else {})
    if fields.get("is_linear", "0") != "0":
        used = within(values["num_features"], "num_features", features + 1).sum()
        lengths |= {"num_features": leaves, "leaf_const": leaves}
        lengths |= {"leaf_features": int(used), "leaf_coeff": int(used)}
        within(values["leaf_features"], "leaf_features", features)
    for name, length in lengths.items():
        need(len(values[name]) == length, f"{name} has {len(values[name])} numbers, not {length}")
    for name in _FINITE & values.keys():
        need(np.isfinite(values[name]).all(), f"{name} has a number that is not finite")
    within(values["split_feature"], "split_feature", features)
    kinds = within(values["decision_type"], "decision_type", 12)
    chosen = np.nan_to_num(values["threshold"][kinds % 2 == 1], nan=-1).clip(-1, categories)
    within(chosen.astype(np.int64), "threshold of a categorical split", categories)
    if categories:
        bits = within(values["cat_threshold"], "cat_threshold", 2**32)
        check_segments(values["cat_boundaries"], "cat_boundaries", categories, len(bits))
    children = []
    for name in ("left_child", "right_child"):
        child = values[name]
        _check_nodes(child < splits, child, name, f"outside {splits} nodes")
        _check_nodes(~child < leaves, child, name, f"outside {leaves} leaves")
        child = np.where(child < 0, splits + ~child, child)
        children.append(np.concatenate([child, np.full(leaves, -1)]))
    check_tree(*children)


def _fields(block: bytes, known: set[str]) -> Mapping[str, str]:
    """Return the lines NAME=VALUE of a block; raise StructureFault for unknown or repeated ones."""
    fields: dict[str, str] = {}
    for line in filter(None, block.decode().split("\n")):
        name, _, value = line.partition("=")
        need(name in known and name not in fields, f"the line {name[:50]!r} is unknown or repeated")
        fields[name] = value
    return fields


def _integer(fields: Mapping[str, Any], name: str) -> int:
    text = fields[name]
    need(isinstance(text, str) and re.fullmatch(r"\d{1,9}", text, re.A), f"{name} is {text!r}")
    return int(text)


def _parsed(name: str, text: str) -> Numbers:
    """Parse numbers separated by spaces, in the characters that LightGBM accepts."""
    characters = r"[-+.\deinfa ]*" if name in _REAL else r"[-\d ]*"
    need(re.fullmatch(characters, text, re.A), f"{name} is not a list of numbers")
    return np.array(text.split(), np.float64 if name in _REAL else np.int64)


def within(values: object, name: str, bound: int, length: int | None = None) -> Numbers:
    """Return the values as integers; raise StructureFault unless all are in [0, `bound`)."""
    array = _column(values, name, length)
    outside = (array < 0) | (array >= bound)
    if outside.any():
        place = int(outside.argmax())
        raise StructureFault(f"{name} {array[place]} in place {place} is outside {bound}")
    return array


def _column(values: object, name: str, length: int | None = None, kinds: str = "iu") -> Numbers:
    array = np.asarray(values)
    is_column = array.ndim == 1 and length in (None, len(array))
    is_column = is_column and (array.dtype.kind in kinds or not array.size)
    need(is_column, f"{name} is not {'a list of' if length is None else length} numbers")
    return array.astype(np.int64 if kinds == "iu" else np.float64)


def check_segments(ends: object, name: str, count: int, total: int) -> None:
    """Check that `ends` divides the range from 0 to `total` into `count` segments."""
    array = within(ends, name, total + 1, count + 1)
    rises = array[0] == 0 and array[-1] == total and (np.diff(array) >= 0).all()
    need(rises, f"{name} does not divide {total} in {count}")


def _check_nodes(valid: Numbers, values: Numbers, name: str, fault: str) -> None:
    if not valid.all():
        node = int(valid.argmin())
        raise StructureFault(f"{name} {values[node]} of node {node} is {fault}")


def check_tree(left: Numbers, right: Numbers, roots: Any = (0,), unused: Any = False) -> None:
    """Check that each node, except `unused` ones, is reached once from the roots; -1: no child."""
    nodes, inner, level = len(left), left != -1, np.asarray(roots)
    need(nodes, "it has no nodes")
    for name, child in (("left child", left), ("right child", right)):
        _check_nodes((child >= -1) & (child < nodes), child, name, f"outside {nodes} nodes")
        _check_nodes((child != -1) == inner, child, name, "a node without a sibling")
    parents = np.bincount(np.concatenate([left[inner], right[inner]]), minlength=nodes)
    expected = np.where(unused, 0, np.ones(nodes, np.int64))
    expected[level] = 0
    if (parents != expected).any():
        node = int((parents != expected).argmax())
        fault = f"node {node} has {parents[node]} parents, not {expected[node]}: no tree"
        raise StructureFault(fault)
    reached = depth = 0
    while len(level):
        reached, depth, level = reached + len(level), depth + 1, level[inner[level]]
        level = np.concatenate([left[level], right[level]])
        need(depth <= _DEEPEST, f"it is deeper than {_DEEPEST} levels")
    need(reached == nodes - np.sum(unused), "some nodes are in a cycle")


def check_xgboost(document: Mapping[str, Any]) -> None:
    """Check XGBoost's JSON format (doc/model.schema of its repository)."""
    need(document.keys() == {"learner", "version"}, "it has more than a learner and a version")
    with parsing("learner"):
        learner = document["learner"]
        booster, param = learner["gradient_booster"], learner["learner_model_param"]
        features, outputs = _integer(param, "num_feature"), 1
        need(features <= _MOST_FEATURES, f"num_feature {features} is over {_MOST_FEATURES}")
        for name in ("num_class", "num_target"):
            outputs = max(outputs, _integer(param, name))
        objective = learner["objective"]
        if objective["name"].startswith("multi:"):
            stated = objective["softmax_multiclass_param"]["num_class"]
            need(stated == param["num_class"] == str(outputs), f"objective has num_class {stated}")
        scores = [float(score) for score in param["base_score"].strip("[]").split(",")]
        need(len(scores) in (1, outputs) and np.isfinite(scores).all(), "base_score")
    with parsing("gradient_booster"):
        if booster["name"] == "gblinear":
            _column(booster["model"]["weights"], "weights", (features + 1) * outputs, "fiu")
            return
        need(booster["name"] in ("gbtree", "dart"), f"name is {booster['name']!r}")
        model = (booster["gbtree"] if booster["name"] == "dart" else booster)["model"]
        trees, rounds, counts = (
            model["trees"],
            model["iteration_indptr"],
            model["gbtree_model_param"],
        )
        if booster["name"] == "dart":
            _column(booster["weight_drop"], "weight_drop", len(trees), "fiu")
        need(counts["num_trees"] == str(len(trees)), f"num_trees is not {len(trees)}")
        need(_integer(counts, "num_parallel_tree") > 0, "num_parallel_tree is 0")
        check_segments(rounds, "iteration_indptr", len(rounds) - 1, len(trees))
        used = len({*within(model["tree_info"], "tree_info", outputs, len(trees)).tolist()})
        is_vector = bool(trees) and trees[0]["tree_param"]["size_leaf_vector"] != "1"
        need(is_vector or outputs in (1, used), f"{outputs} outputs, but trees of {used}")
        _check_categories(model["cats"], features)
    bits = 0
    for number, tree in enumerate(trees):
        with parsing(f"trees[{number}]"):
            need(tree["id"] == number, f"id is {tree['id']}")
            bits += _check_xgboost_tree(tree, features, outputs if is_vector else 1)
            need(bits <= _MOST_BITS, "the categories of its splits need too much memory")


def _check_xgboost_tree(tree: Mapping[str, Any], features: int, outputs: int) -> int:
    """Check a tree with `outputs` numbers per leaf.

    Return the size in bits of the bitsets in which XGBoost stores its categorical splits.
    """
    about = tree["tree_param"]
    nodes = _integer(about, "num_nodes")
    need(about["num_feature"] == str(features), f"num_feature is {about['num_feature']}")
    need(about["size_leaf_vector"] == str(outputs), f"size_leaf_vector is not {outputs}")
    for name in ("split_conditions", "sum_hessian", "loss_changes"):
        _column(tree[name], name, nodes, "fiu")
    _column(tree["base_weights"], "base_weights", nodes * outputs, "fiu")
    names = words("left_children right_children parents split_indices split_type default_left")
    left, right, parents, columns, kinds, defaults = (
        _column(tree[name], name, nodes) for name in names
    )
    inner = left != -1
    if outputs > 1:  # the right child of a leaf is its place in leaf_weights
        leaves = int((~inner).sum())
        _column(tree["leaf_weights"], "leaf_weights", outputs * leaves, "fiu")
        within(right[~inner], "right_children", leaves)
        right = np.where(inner, right, -1)
    unused = (columns == _PRUNED) & (defaults == 1) & ~inner
    need(about["num_deleted"] == str(unused.sum()), f"num_deleted is not {unused.sum()}")
    check_tree(left, right, unused=unused)
    for child in (left, right):
        need((parents[child[inner]] == inner.nonzero()[0]).all(), "parents are not its parents")
    need(parents[0] in (-1, _PRUNED), f"the root has the parent {parents[0]}")
    within(columns[inner], "split_indices", features)
    splits = (within(kinds, "split_type", 2) == 1).nonzero()[0]
    categories = within(tree["categories"], "categories", _MOST_CATEGORIES)
    owners, starts, counts = (
        _column(tree[name], name, len(splits))
        for name in ("categories_nodes", "categories_segments", "categories_sizes")
    )
    ends = [*starts.tolist(), len(categories)]
    check_segments(ends, "categories_segments", len(splits), len(categories))
    need((np.diff(ends) == counts).all(), "categories_sizes are not those of categories_segments")
    need((owners == splits).all(), "categories_nodes are not the nodes of split_type 1")
    return sum(int(categories[start:end].max(initial=0)) for start, end in pairwise(ends))


def _check_categories(cats: Mapping[str, Any], features: int) -> None:
    """Check the categories of columns, which XGBoost maps to those of the data."""
    if not any(cats.values()):
        return
    columns, ends, order = cats["enc"], cats["feature_segments"], np.asarray(cats["sorted_idx"])
    check_segments(ends, "feature_segments", features, len(order))
    for column, (start, end) in zip(columns, pairwise(ends), strict=True):
        count, values = end - start, _column(column["values"], "values")
        need(np.array_equal(np.sort(order[start:end]), np.arange(count)), "sorted_idx is no order")
        if offsets := column.get("offsets"):
            check_segments(offsets, "offsets", count, len(values))
        else:
            need(len(values) == count, f"{len(values)} values of {count} categories")

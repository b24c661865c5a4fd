"""Models of trees and ONNX models that crash, hang or exhaust their library are no known format."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import onnx
import pytest
import xgboost
from onnx import helper, numpy_helper

from policies.supply_chain import formats
from policies.supply_chain.formats import FORMATS, detect

RANDOM = np.random.default_rng(0)
ROWS = np.column_stack([RANDOM.normal(size=(300, 3)), RANDOM.integers(0, 40, 300)])
NUMBERS = ROWS[:, 0] + ROWS[:, 3] % 3
CLASSES = np.digitize(NUMBERS, [0.5, 1.5])

LIGHTGBM: dict[str, dict[str, Any]] = {
    "regression": {"objective": "regression"},
    "binary": {"objective": "binary"},
    "three classes": {"objective": "multiclass", "num_class": 3},
    "ranking": {"objective": "lambdarank"},
    "categories": {"objective": "regression", "min_data_per_group": 5, "cat_smooth": 1},
    "linear leaves": {"objective": "regression", "linear_tree": True},
    "dart": {"objective": "binary", "boosting": "dart", "drop_rate": 0.5},
    "forest": {"objective": "binary", "boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5},
    "goss": {"objective": "binary", "data_sample_strategy": "goss"},
    "monotone": {"objective": "regression", "monotone_constraints": [1, 0, -1, 0]},
    "no split": {"objective": "regression", "min_data_in_leaf": 300},
}
XGBOOST: dict[str, dict[str, Any]] = {
    "regression": {},
    "three classes": {"objective": "multi:softprob", "num_class": 3},
    "ranking": {"objective": "rank:ndcg"},
    "quantiles": {"objective": "reg:quantileerror", "quantile_alpha": [0.1, 0.9]},
    "dart": {"booster": "dart", "rate_drop": 0.5},
    "linear": {"booster": "gblinear"},
    "pruned": {"tree_method": "exact", "gamma": 30.0},
    "vector leaves": {"multi_strategy": "multi_output_tree"},
    "forest": {"num_parallel_tree": 4, "subsample": 0.5},
    "no split": {"gamma": 1e9},
}


@cache
def lightgbm_text(kind: str) -> str:
    settings = {"verbose": -1, "num_leaves": 7, "min_data_in_leaf": 5, "num_threads": 1}
    settings |= LIGHTGBM[kind]
    categorical: Any = [3] if kind == "categories" else "auto"
    objective = settings["objective"]
    labels = NUMBERS if objective == "regression" else CLASSES
    labels = (CLASSES > 0).astype(int) if objective == "binary" else labels
    group = [20] * 15 if objective == "lambdarank" else None
    data = lightgbm.Dataset(ROWS, labels, group=group, categorical_feature=categorical)
    return lightgbm.train(settings, data, 3).model_to_string()


@cache
def xgboost_text(kind: str) -> str:
    settings = {"max_depth": 3, "nthread": 1, **XGBOOST[kind]}
    labels = CLASSES if "num_class" in settings else NUMBERS
    if "multi_strategy" in settings:
        labels = np.column_stack([NUMBERS, -NUMBERS])
    rows = xgboost.DMatrix(
        *(ROWS, labels if kind != "ranking" else CLASSES),
        feature_types=["q"] * 3 + ["c" if kind == "regression" else "q"],
        enable_categorical=True,
    )
    if kind == "ranking":
        rows.set_group([20] * 15)
    return str(xgboost.train(settings, rows, 3).save_raw("json").decode())


def found(content: str | bytes, folder: Path) -> str:
    (folder / "model").write_bytes(content.encode() if isinstance(content, str) else content)
    return detect(folder / "model")


@pytest.mark.parametrize("kind", LIGHTGBM)
def test_a_model_of_lightgbm_is_accepted(kind: str, tmp_path: Path) -> None:
    assert found(lightgbm_text(kind), tmp_path) == "lightgbm-text"


@pytest.mark.parametrize("kind", XGBOOST)
def test_a_model_of_xgboost_is_accepted(kind: str, tmp_path: Path) -> None:
    assert found(xgboost_text(kind), tmp_path) == "xgboost-json"


def _sized(text: str) -> str:
    """The text with the sizes that its trees have."""
    trees = re.findall(r"Tree=\d+\n.*?\n\n\n", text, re.S)
    sizes = " ".join(str(len(tree)) for tree in trees)
    return re.sub(r"tree_sizes=.*", f"tree_sizes={sizes}", text, count=1)


def _first(name: str, value: str) -> Callable[[str], str]:
    """Set the first number of the first line of that name."""
    return lambda text: re.sub(rf"^{name}=[^ \n]*", f"{name}={value}", text, count=1, flags=re.M)


LIGHTGBM_FAULTS: dict[str, tuple[str, Callable[[str], str], str]] = {
    "a child outside": (
        *("regression", _first("right_child", "100000000")),
        "Tree=0: right_child 100000000 of node 0 is outside 6 nodes",
    ),
    "a leaf outside": ("regression", _first("left_child", "-100"), "outside 7 leaves"),
    "a cycle": ("regression", _first("left_child", "0"), "node 0 has 1 parents, not 0"),
    "a shared node": ("regression", _first("right_child", "1"), "node 1 has 2 parents, not 1"),
    "a feature outside": ("regression", _first("split_feature", "4"), "split_feature 4 in place 0"),
    "a negative feature": ("regression", _first("split_feature", "-1"), "split_feature -1"),
    "an unknown kind of split": ("regression", _first("decision_type", "15"), "decision_type 15"),
    "more leaves than values": ("regression", _first("num_leaves", "900"), "numbers, not 899"),
    "a leaf that is no number": ("regression", _first("leaf_value", "nan"), "not finite"),
    "numbers of Python": ("regression", _first("split_feature", "1_0"), "not a list of numbers"),
    "a missing list": ("regression", lambda text: text.replace("threshold=", "x="), "is unknown"),
    "more classes": ("three classes", _first("num_class", "9"), "num_tree_per_iteration"),
    "more classes of the objective": (
        *("three classes", lambda text: text.replace(" num_class:3", " num_class:9")),
        "objective has num_class",
    ),
    "more features than names": ("regression", _first("max_feature_idx", "99"), "feature_names"),
    "a category outside": ("categories", _first("cat_boundaries", "9"), "cat_boundaries"),
    "more categories": ("categories", _first("num_cat", "7"), "cat_boundaries has"),
    "a linear leaf's feature": ("linear leaves", _first("num_features", "99"), "num_features 99"),
    "a wrong size": ("regression", _first("tree_sizes", "9"), "tree_sizes says 9"),
    "a blank line in a tree": (
        "regression",
        lambda text: text.replace("leaf_weight=", "\nleaf_weight=", 1),
        "a blank line",
    ),
    "a parameter without a value": (
        "regression",
        lambda text: text.replace("]", "", 9),
        "after it",
    ),
    "categories that are no JSON": (
        *(
            "regression",
            lambda text: text.replace("pandas_categorical:null", "pandas_categorical:x"),
        ),
        "Expecting value",
    ),
}


@pytest.mark.parametrize(("kind", "change", "fault"), LIGHTGBM_FAULTS.values(), ids=LIGHTGBM_FAULTS)
@pytest.mark.attack("A model of LightGBM crashes or hangs whoever loads it")
def test_a_faulty_model_of_lightgbm_is_refused(
    kind: str, change: Callable[[str], str], fault: str, tmp_path: Path
) -> None:
    """The fault is named with its tree; the sizes of the trees fit but in the case about them."""
    changed = change(lightgbm_text(kind))
    assert changed != lightgbm_text(kind)
    named = found(changed if "tree_sizes" in fault else _sized(changed), tmp_path)
    assert named.startswith("lightgbm-text: ") and fault in named


def _at(*path: Any, value: Any) -> Callable[[Any], None]:
    """Set the value at a path in the gradient booster's model, or in the learner."""

    def change(document: Any) -> None:
        place = document["learner"]
        if path[0] not in place:
            place = place["gradient_booster"]["model"]
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


XGBOOST_FAULTS: dict[str, tuple[str, Callable[[Any], None], str]] = {
    "a child outside": (
        *("quantiles", _at("trees", 0, "right_children", 0, value=10**8)),
        "trees[0]: right child 100000000 of node 0 is outside",
    ),
    "a cycle": ("quantiles", _at("trees", 0, "left_children", 0, value=0), "parents, not"),
    "half a node": ("quantiles", _at("trees", 0, "left_children", 0, value=-1), "a node without"),
    "another parent": ("quantiles", _at("trees", 0, "parents", 1, value=2), "its parents"),
    "a feature outside": ("quantiles", _at("trees", 0, "split_indices", 0, value=4), "outside 4"),
    "fewer numbers": ("quantiles", _at("trees", 0, "split_conditions", value=[1.0]), "numbers"),
    "more nodes": (
        *("quantiles", _at("trees", 0, "tree_param", "num_nodes", value="900")),
        "split_conditions is not 900 numbers",
    ),
    "more features": (
        "quantiles",
        _at("learner_model_param", "num_feature", value="7"),
        "num_feature is 4",
    ),
    "features without an end": (
        *("quantiles", _at("learner_model_param", "num_feature", value="900000000")),
        "num_feature 900000000 is over",
    ),
    "outputs without trees": (
        *("quantiles", _at("learner_model_param", "num_target", value="900000000")),
        "base_score",
    ),
    "other classes": (
        *("three classes", _at("objective", "softmax_multiclass_param", "num_class", value="0")),
        "objective has num_class 0",
    ),
    "a tree of no output": ("quantiles", _at("tree_info", 0, value=2), "tree_info 2"),
    "fewer trees": ("quantiles", _at("gbtree_model_param", "num_trees", value="2"), "num_trees"),
    "rounds that fall": ("quantiles", _at("iteration_indptr", 1, value=5), "iteration_indptr"),
    "no parallel tree": (
        *("quantiles", _at("gbtree_model_param", "num_parallel_tree", value="0")),
        "num_parallel_tree is 0",
    ),
    "categories of no node": (
        "regression",
        _at("trees", 0, "categories_nodes", 0, value=6),
        "nodes",
    ),
    "a category too large": (
        "regression",
        _at("trees", 0, "categories", 0, value=2**30),
        "outside",
    ),
    "a segment outside": ("regression", _at("trees", 0, "categories_sizes", 0, value=99), "sizes"),
    "weights": ("linear", _at("weights", value=[1.0]), "weights is not 5 numbers"),
    "leaves of vectors": ("vector leaves", _at("trees", 0, "leaf_weights", value=[1.0]), "numbers"),
    "an unknown booster": ("dart", _at("gradient_booster", "name", value="trees"), "name is"),
}


@pytest.mark.parametrize(("kind", "change", "fault"), XGBOOST_FAULTS.values(), ids=XGBOOST_FAULTS)
@pytest.mark.attack("A model of XGBoost crashes or exhausts whoever loads it")
def test_a_faulty_model_of_xgboost_is_refused(
    kind: str, change: Callable[[Any], None], fault: str, tmp_path: Path
) -> None:
    """The fault is named with its tree."""
    document = json.loads(xgboost_text(kind))
    change(document)
    named = found(json.dumps(document), tmp_path)
    assert named.startswith("xgboost-json: ") and fault in named


def test_a_model_of_xgboost_is_not_passed_off_as_other_json(tmp_path: Path) -> None:
    """XGBoost passes over other keys, and takes one of two values of a key."""
    text = xgboost_text("regression")
    assert found(text[:-1] + ',"more":1}', tmp_path).startswith("xgboost-json: it has more")
    assert found(text[:-1] + ',"learner":{}}', tmp_path) == ""


def graph(*nodes: Any, functions: Any = (), **constants: Any) -> bytes:
    """A model of a table of two columns."""
    tensors = [numpy_helper.from_array(np.array(of), name) for name, of in constants.items()]
    table = helper.make_tensor_value_info("x", 1, [None, 2])
    answer = helper.make_tensor_value_info("y", 1, None)
    return bytes(
        helper.make_model(
            helper.make_graph(nodes, "g", [table], [answer], tensors),
            opset_imports=[
                *(helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)),
                helper.make_opsetid("own", 1),
            ],
            functions=functions,
            ir_version=9,
        ).SerializeToString()
    )


def node(name: str, inputs: str, output: str = "y", **attributes: Any) -> Any:
    return helper.make_node(name, inputs.split(), [output], **attributes)


def ensemble(**changed: Any) -> bytes:
    """A regressor with a split and two leaves."""
    attributes = {
        **{"nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [1, 0, 0]},
        **{"nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_values": [0.5, 0.0, 0.0]},
        **{"nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0]},
        **{"target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0]},
        **{"target_weights": [1.0, 2.0], "n_targets": 1},
        **changed,
    }
    return graph(node("TreeEnsembleRegressor", "x", domain="ai.onnx.ml", **attributes))


def _branch(name: str, inputs: str, **attributes: Any) -> Any:
    output = helper.make_tensor_value_info("z", 1, None)
    return helper.make_graph([node(name, inputs, "z", **attributes)], "branch", [], [output])


def _if(branch: Any, **constants: Any) -> bytes:
    return graph(node("If", "c", then_branch=branch, else_branch=branch), c=True, **constants)


def _function(name: str, *nodes: Any) -> Any:
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["x"], ["y"], nodes, opsets)


DOUBLING = [_function("F0", node("Add", "x x"))]
DOUBLING += [
    _function(
        f"F{level}",
        node(f"F{level - 1}", "x", "a", domain="own"),
        node(f"F{level - 1}", "a", domain="own"),
    )
    for level in range(1, 18)
]
TRUNCATED = onnx.ModelProto.FromString(graph(node("Add", "x w"), w=np.ones(2, np.float32)))
TRUNCATED.graph.initializer[0].raw_data = b"1234"
# What makes a column of whole numbers, and the sizes of a table.
WHOLE, SHAPE = node("Cast", "x", "i", to=7), node("Shape", "x", "s")
BIG, HUGE = [2**20, 2**20], 2**40

ONNX_FAULTS: dict[str, tuple[bytes, str]] = {
    "a loop": (_if(_branch("Loop", "n c", body=_branch("Neg", "x"))), "operator Loop"),
    "a scan": (graph(node("Scan", "x", body=_branch("Neg", "x"), num_scan_inputs=1)), "Scan"),
    "a constant that is too large": (graph(node("ConstantOfShape", "s"), s=BIG), "elements"),
    "one in a branch": (_if(_branch("ConstantOfShape", "s"), s=BIG), "its size"),
    "repeated rows": (graph(node("Tile", "x s"), s=BIG), "elements"),
    "expanded rows": (graph(node("Expand", "x s"), s=[*BIG, 2]), "elements"),
    "a long range": (graph(node("Range", "a b c"), a=0, b=HUGE, c=1), "its size"),
    "a product of vectors": (
        graph(
            node("MatMul", "a b"),
            a=np.zeros((2**16, 1), np.float32),
            b=np.zeros((1, 2**16), np.float32),
        ),
        "elements",
    ),
    "doubled columns": (
        graph(
            *(
                node("Concat", f"c{n - 1} c{n - 1}" if n else "x x", f"c{n}", axis=1)
                for n in range(60)
            ),
            node("Neg", "c59"),
        ),
        "elements",
    ),
    "a range as long as a row says": (
        graph(
            node("ReduceSum", "x", "sum", keepdims=0),
            node("Cast", "sum", "whole", to=7),
            node("Mul", "whole k", "end"),
            node("Range", "zero end one"),
            **{"k": HUGE, "zero": 0, "one": 1},
        ),
        "its size",
    ),
    "functions that double": (
        graph(node("F17", "x", domain="own"), functions=DOUBLING),
        "its functions call each other",
    ),
    "a function of itself": (
        graph(
            node("F", "x", domain="own"),
            functions=[_function("F", node("F", "x", domain="own"))],
        ),
        "its functions call each other",
    ),
    "an input that does not exist": (graph(node("Add", "x nothing")), "nothing"),
    "a tensor that is cut off": (TRUNCATED.SerializeToString(), "tensor 'w'"),
    "a tree's cycle": (ensemble(nodes_truenodeids=[0, 0, 0]), "parents, not"),
    "a tree's child outside": (ensemble(nodes_truenodeids=[9, 0, 0]), "nodes_truenodeids 9"),
    "a tree's feature outside": (ensemble(nodes_featureids=[2, 0, 0]), "nodes_featureids 2"),
    "a tree's output outside": (ensemble(target_ids=[0, 1]), "target_ids 1"),
    "a tree's outputs without an end": (ensemble(n_targets=10**8), "outputs"),
    "a division that ends the process": (
        graph(node("Cast", "x", "i", to=7), node("Div", "i k"), k=np.int64(-1)),
        "its divisor",
    ),
    "a divisor that a row states": (graph(WHOLE, node("Div", "i i")), "its divisor"),
    "a remainder of it": (graph(WHOLE, node("Mod", "i i")), "its divisor"),
    "a shape of no rows": (
        graph(WHOLE, SHAPE, node("Sub", "s s", "t"), node("Div", "i t")),
        "its divisor",
    ),
    "a size that is divided to 0": (
        graph(WHOLE, SHAPE, node("Div", "s k", "t"), node("Div", "i t"), k=4),
        "its divisor",
    ),
    "a long divisor with a zero": (
        graph(WHOLE, node("Div", "i k"), k=np.zeros((5000, 2), np.int64)),
        "its divisor",
    ),
    "a divisor of the count of what is not 0": (
        graph(WHOLE, node("NonZero", "x", "n"), node("Shape", "n", "s"), node("Div", "i s")),
        "its divisor",
    ),
    "a shape without an end": (
        graph(node("Reshape", "x k"), k=np.array([2**31 - 1, 2])),
        "the size",
    ),
    "a tree's lists": (ensemble(nodes_values=[0.5]), "nodes_values has 1 entries"),
}


@pytest.mark.parametrize(("content", "fault"), ONNX_FAULTS.values(), ids=ONNX_FAULTS)
@pytest.mark.attack("An ONNX model hangs or exhausts whoever loads it")
def test_a_faulty_onnx_model_is_refused(content: bytes, fault: str, tmp_path: Path) -> None:
    named = found(content, tmp_path)
    assert named.startswith("onnx: ") and fault in named


@pytest.mark.parametrize(
    "content",
    [
        ensemble(),
        _if(_branch("Neg", "x")),
        graph(node("F3", "x", domain="own"), functions=DOUBLING[:4]),
        graph(node("Shape", "x", "s"), node("Expand", "k s"), k=np.float32(1)),
        graph(WHOLE, SHAPE, node("Cast", "s", "t", to=7), node("Div", "i t")),
        graph(WHOLE, node("Max", "i k", "m"), node("Mod", "i m"), k=[1, 2]),
    ],
    ids=[
        *("trees", "a branch", "functions", "an output as large as the input"),
        *("a divisor of a known shape", "a divisor of at least 1"),
    ],
)
def test_an_onnx_model_with_a_bound_is_accepted(content: bytes, tmp_path: Path) -> None:
    assert found(content, tmp_path) == "onnx"


@pytest.mark.attack("a module that the environment puts in the place of onnx")
def test_the_check_of_an_onnx_model_imports_packages_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnx.py").write_text("print('onnx', end='')\nraise SystemExit(0)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert found(graph(node("Relu", "x")), tmp_path) == "onnx"
    assert "its divisor" in found(graph(WHOLE, node("Div", "i i")), tmp_path)


@pytest.mark.parametrize("limit", ["_SECONDS", "_MEMORY"])
@pytest.mark.attack("An ONNX model hangs or exhausts whoever checks it")
def test_the_check_of_an_onnx_model_has_limits(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that crashes, or that the kernel ends, is a fault of the model."""
    monkeypatch.setattr(formats, limit, 0)
    content = graph(
        *(node("Neg", f"n{at}" if at else "x", f"n{at + 1}") for at in range(20_000)),
        node("Neg", "n20000"),
    )
    assert found(content, tmp_path).startswith("onnx: its check ended with ")


# Loads each model of a folder, and names it first: the last one is what ended the process.
LOADING = """
import sys
from pathlib import Path
import lightgbm, numpy, xgboost
rows = numpy.vstack([numpy.full((1, 4), of) for of in (0.0, numpy.nan, 1e30, 3.0)])
for file in sorted(Path(sys.argv[1]).iterdir()):
    print(file.name, flush=True)
    try:
        if file.suffix == ".txt":
            booster = lightgbm.Booster(model_file=file)
            booster.predict(rows, num_threads=1)
            booster.predict(rows, pred_contrib=True, num_threads=1)
        else:
            booster = xgboost.Booster({"nthread": 1}, model_file=file)
            kinds = booster.feature_types
            data = xgboost.DMatrix(rows, feature_types=kinds, enable_categorical=True)
            booster.predict(data)
            booster.predict(data, pred_contribs=True)
    except Exception as error:
        print(error)
print("all")
"""
VALUES = ["-1", "0", "1", "2", "7", "100000000", "2147483647", "-2147483648", "nan", "1e39"]


@pytest.mark.torture
def test_what_is_accepted_loads_or_raises(torture: bool, tmp_path: Path) -> None:
    """Models with another number somewhere: none that is accepted ends or holds its process."""
    pick = random.Random(0)
    models = [(lightgbm_text(kind), "txt") for kind in LIGHTGBM]
    models += [(xgboost_text(kind), "json") for kind in XGBOOST]
    for place in range(4000 if torture else 150):
        text, suffix = pick.choice(models)
        number = pick.choice([*re.finditer(r"-?\d[\d.e+-]*", text.partition("end of trees")[0])])
        text = text[: number.start()] + pick.choice(VALUES) + text[number.end() :]
        file = tmp_path / f"{place}.{suffix}"
        file.write_text(_sized(text) if suffix == "txt" else text)
        if detect(file) not in FORMATS:
            file.unlink()
    assert len([*tmp_path.iterdir()]) > 10
    command = [sys.executable, "-c", LOADING, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout.endswith("all\n"), done.stdout[-200:]

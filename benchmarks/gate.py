"""Does the beginning of an answer tell whether its later mismatches matter? Out of fold, from the labels."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from .tables import DATA, rows


def before(values: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """Return the means over the earlier mismatches of the same answer; the overall mean where there are none."""
    means = np.tile(values.mean(0), (len(values), 1))
    for one in np.unique(owner):
        at = np.flatnonzero(owner == one)
        means[at[1:]] = values[at].cumsum(0)[:-1] / np.arange(1, len(at))[:, None]
    return means


def others(labels: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """Return the share of the same answer's other mismatches that matter, unknown in use; NaN where there are none."""
    count, total = np.bincount(owner)[owner], np.bincount(owner, labels)[owner]
    with np.errstate(invalid="ignore"):
        return (total - labels) / (count - 1)


def order(given: np.ndarray, labels: np.ndarray, weights: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """Return by how much a regression of the other folds finds each mismatch harmless."""
    found = np.zeros(len(given))
    for train, test in GroupKFold(10).split(given, labels, owner):
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=2000))
        model.fit(given[train], labels[train], logisticregression__sample_weight=weights[train])
        found[test] = -model.decision_function(given[test])
    return found


def main() -> None:
    table = []
    for texts in ("no-shots", "two-shots", "code"):
        own = [x for x in rows("price") if x["texts"] == texts]
        labels, weights, prompts = (np.array([x[k] for x in own]) for k in ("important", "weight", "prompt"))
        _, owner = np.unique(prompts, return_inverse=True)
        features = np.array([np.fromstring(x["features"].strip("[]"), sep=",") if isinstance(x["features"], str)
                             else x["features"] for x in own], dtype=float)  # fmt: skip
        judges = np.array([[x["order: judge"], x["order: judge with features"]] for x in own], dtype=float)
        place = np.array([(prompts[: i + 1] == x).sum() for i, x in enumerate(prompts)], dtype=float)[:, None]
        earlier, judged = before(features, owner), before(judges, owner)
        orders = {
            "the other labels": -others(labels.astype(float), owner),
            "judge": judges[:, 0],
            "gate: features so far": order(np.c_[earlier, place], labels, weights, owner),
            "gate: judges so far": order(np.c_[judged, place], labels, weights, owner),
            "gate: all so far": order(np.c_[earlier, judged, place], labels, weights, owner),
            "gate and judge": order(np.c_[judged[:, :1], earlier, place, judges[:, :1]], labels, weights, owner),
            "judge, in a regression": order(judges[:, :1], labels, weights, owner),
        }
        for i, x in enumerate(own):
            scores = {f"order: {name}": round(float(values[i]), 5) for name, values in orders.items()}
            table.append({k: x[k] for k in ("texts", "prompt", "important", "weight")} | scores)
    pq.write_table(pa.Table.from_pylist(table), DATA / "data" / "gate.parquet", compression="zstd")


if __name__ == "__main__":
    main()

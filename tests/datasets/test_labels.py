"""Labels of queries in every form that they come in, and the lines that are none."""

from __future__ import annotations

import pytest

from interbasin.datasets.labels import read_labels
from interbasin.errors import DataError


def written(tmp_path, text: str, name: str = "labels.tsv"):
    path = tmp_path / name
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "0\t3\n0\t5\n2\t1\n",
        "0 3\n0 5\n\n2 1\n",
        "0,3\n0,5\n2,1\n",
        "query,document\n0,3\n0,5\n2,1\n",
        "query-id\tcorpus-id\tscore\n0\t3\t1\n0\t5\t2\n2\t1\t1\n1\t1\t0\n",
        "0 0 3 1\n0 0 5 1\n2 0 1 2\n1 0 4 0\n",
    ],
    ids=["tabs", "blanks", "commas", "titles", "BEIR", "TREC"],
)
def test_every_form_says_the_same(tmp_path, text):
    assert read_labels(written(tmp_path, text)) == {0: [3, 5], 2: [1]}


def test_json_lines(tmp_path):
    text = '{"query": "a", "document": "x"}\n{"query": "b", "document": "y", "relevance": 0}\n'
    path = written(tmp_path, text, "labels.jsonl")
    assert read_labels(path, query_ids=["b", "a"], document_ids=["x", "y"]) == {1: [0]}


def test_ids_are_looked_up(tmp_path):
    path = written(tmp_path, "q7\td1\nq8\td0\n")
    assert read_labels(path, query_ids=["q7", "q8"], document_ids=["d0", "d1"]) == {0: [1], 1: [0]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("q0 dTYPO\nq1 d1\n", "Line 1 of .* names 'dTYPO'"),
        ("qTYPO d0\nq1 d1\n", "Line 1 of .* names 'qTYPO'"),
        ("qTYPO dTYPO 1\nq1 d1 1\n", "Line 1 of .* names 'qTYPO'"),
        ("q0 d0 nan\nq1 d1 1\n", "Line 1 of .* has the relevance 'nan'; a relevance is a number"),
        ("q0 d0 1\nq1 d1 much\n", "Line 2 of .* has the relevance 'much'"),
    ],
)
def test_a_first_line_with_a_mistake_is_not_taken_for_titles(tmp_path, text, said):
    with pytest.raises(DataError, match=said):
        read_labels(written(tmp_path, text), query_ids=["q0", "q1"], document_ids=["d0", "d1"])

"""Misuses of translation: rows that are no pairs, halves that do not match, audits without what they need."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse
import torch
from sklearn.exceptions import NotFittedError
from tests.misuses.table import misuses, public, the
from tests.test_storage import TOO_LONG
from torch import nn

import interbasin as ib
from interbasin import RelativeDecoder, RelativeEncoder, Translator
from interbasin.errors import DataError, FileError, FitError, ShapeError, UnknownNameError


def fit(x: Any = None, y: Any = ..., /, card: Any = None, **options: Any) -> Translator:
    x, y = the.x if x is None else x, the.y if y is ... else y
    return Translator(**options).fit(x, y, **({} if card is None else {"card": card}))


@misuses(
    ("an unknown method", lambda: fit(method="rigde"), UnknownNameError, "ridge"),
    ("a method that is nothing", lambda: fit(method=None), UnknownNameError, "ridge"),
    ("an unknown variant", lambda: fit(variant="prune"), UnknownNameError, "pruned"),
    ("an unknown completion", lambda: fit(completion="full"), UnknownNameError, "'full'"),
    ("an unknown criterion", lambda: fit(method="auto", criterion="recall"), UnknownNameError, "retrieval"),
    ("a delta above one", lambda: fit(delta=1.5), DataError, "delta"),
    ("a delta in words", lambda: fit(delta="a"), DataError, "delta"),
    ("no delta", lambda: fit(delta=None), DataError, "delta"),
    ("no omega", lambda: fit(omega=None), DataError, "omega"),
    ("no whitening", lambda: fit(whitening=None), DataError, "whitening"),
    ("an omega of zero", lambda: fit(omega=0), DataError, "omega"),
    ("an omega that is true", lambda: fit(omega=True), DataError, "omega"),
    ("a strength below zero", lambda: fit(strength=-1.0), DataError, "strength"),
    ("a strength in words", lambda: fit(strength="x"), DataError, "strength"),
    ("a whitening above a half", lambda: fit(whitening=0.7), DataError, "whitening"),
    ("a list for the whitening", lambda: fit(whitening=[0.1]), DataError, "whitening"),
    ("standardise in words", lambda: fit(standardise="yes"), DataError, "standardise"),
    ("a scale that is a number", lambda: fit(scale=1.0), DataError, "scale"),
    ("no lengths", lambda: fit(lengths=None), DataError, "lengths"),
    ("a seed below zero", lambda: fit(seed=-1), DataError, "seed"),
    ("a seed below zero that nothing uses", lambda: fit(seed=-1, method="procrustes"), DataError, "seed"),
    ("a list for the method", lambda: fit(method=[]), UnknownNameError, "ridge"),
    ("a list for the criterion", lambda: fit(method="auto", criterion=[]), UnknownNameError, "retrieval"),
    ("an option that there is none", lambda: fit(ridge=1.0), TypeError, "ridge"),
    ("fewer rows of the target", lambda: fit(the.x, the.y[:9]), ShapeError, "9"),
    ("NaN in the source", lambda: fit(the.x * math.nan), DataError, "source"),
    ("infinity in the target", lambda: fit(the.x, the.y / 0.0), DataError, "target"),
    ("vectors for rows", lambda: fit(the.x[0], the.y[0]), ShapeError, "(4,)"),
    ("one pair", lambda: fit(the.x[:1], the.y[:1]), ShapeError, "1 sample"),
    ("no pairs", lambda: fit(the.x[:0], the.y[:0]), ShapeError, "0 sample"),
    ("no target", lambda: fit(the.x, None), DataError, "fit(X, Y)"),
    ("complex numbers", lambda: fit(the.x.numpy() + 1j), DataError, "Complex"),
    ("objects", lambda: fit(np.array([["a"]], dtype=object)), DataError, "objects"),
    ("a sparse matrix", lambda: fit(scipy.sparse.eye(30, 4)), DataError, ".toarray()"),
    ("rows of different lengths", lambda: fit([[1.0], [1.0, 2.0]]), DataError, "lengths"),
    ("too few pairs to choose a method", lambda: fit(the.x[:5], the.y[:5], method="auto"), FitError, "5"),
    ("a card that is a list", lambda: fit(card=[1]), DataError, "card"),
    ("a card with an unknown entry", lambda: fit(card={"model": "x"}), DataError, "'model'"),
    ("a card with a number", lambda: fit(card={"source_model": 3}), DataError, "source_model"),
    ("a card with an unknown metric", lambda: fit(card={"metric": "l1"}), DataError, "cosine"),
    ("a translator that is not fitted", lambda: Translator().transform(the.x), NotFittedError, "not fitted"),
    ("rows of the target's width", lambda: the.translator.transform(the.y[:, :3]), ShapeError, "expecting 4"),
    ("a vector to translate", lambda: the.translator.transform(the.x[0]), ShapeError, "(4,)"),
    ("NaN to translate", lambda: the.translator.transform(the.x * math.nan), DataError, "NaN"),
    ("nothing to translate", lambda: the.translator.transform(None), ShapeError, "X"),
    ("text to translate", lambda: the.translator.transform([["a"] * 4]), DataError, "X"),
    ("a score of other targets", lambda: the.translator.score(the.x, the.y), ShapeError, "4"),
    ("a score of cosines", lambda: fit(method="relative").score(the.x, the.y), FitError, "score"),
    ("the way back from cosines", lambda: fit(method="relative").inverse_transform(the.x), FitError, "RelativeDecoder"),
    ("the way back from fewer numbers", lambda: the.translator.inverse_transform(the.y[:, :3]), FitError, "way back"),
    ("a translator from a folder that is not there", lambda: Translator.load("missing"), FileError, "missing"),
    ("a translator from a saved map", lambda: Translator.load(the.saved_map), FileError, "translation.json"),
    ("a translator from nothing", lambda: Translator.load(None), FileError, "NoneType"),
    ("a translator over a saved one", lambda: the.translator.save(the.saved_translator), FileError, "force"),
    ("a translator into a name that is too long", lambda: the.translator.save(TOO_LONG), FileError, "long"),
    (
        "a translator over someone's folder",
        lambda: the.translator.save(the.someones_folder, force=True),
        FileError,
        "not write",
    ),
    (
        "figures of constant rows",
        lambda: public.fit_translation(Translator(method="ridge"), torch.ones(30, 4), the.y),
        DataError,
        "source",
    ),
    (
        "figures of a constant target",
        lambda: public.fit_translation(Translator(method="ridge"), the.x, torch.ones(30, 4)),
        DataError,
        "target",
    ),
    (
        "the evaluation of cosines",
        lambda: public.evaluate_translation(fit(method="relative"), the.x, the.y),
        FitError,
        "evaluate",
    ),
    (
        "the evaluation with half a draw",
        lambda: public.evaluate_translation(the.translator, the.x, the.y[:, :3], draws=0.5),
        DataError,
        "draws",
    ),
    (
        "the evaluation with a seed below zero",
        lambda: public.evaluate_translation(the.translator, the.x, the.y[:, :3], seed=-1),
        DataError,
        "seed",
    ),
    (
        "the evaluation on other targets",
        lambda: public.evaluate_translation(the.translator, the.x, the.y),
        ShapeError,
        "expecting 3",
    ),
)
def test_a_translation_that_cannot_be_is_refused(misuse):
    misuse.check()


def encoder(rows: int = 30, **options: Any) -> RelativeEncoder:
    return RelativeEncoder().fit(the.x[:rows], **options)


def decoder(rows: int = 30, **options: Any) -> RelativeDecoder:
    return RelativeDecoder().fit(the.y[:rows], **options)


def stitch(encoder: Any = None, translator: Any = ..., head: Any = None) -> nn.Module:
    encoder, head = encoder or nn.Linear(6, 4), head or nn.Linear(3, 2)
    return ib.stitch(encoder, the.translator if translator is ... else translator, head)


@misuses(
    ("halves of other numbers of anchors", lambda: ib.compose(encoder(), decoder(29)), FitError, "29"),
    (
        "halves of other names",
        lambda: ib.compose(encoder(2, names=["a", "b"]), decoder(2, names=["b", "a"])),
        FitError,
        "names",
    ),
    ("halves with an unknown completion", lambda: ib.compose(encoder(), decoder(), "full"), UnknownNameError, "'full'"),
    ("halves with lengths in words", lambda: ib.compose(encoder(), decoder(), lengths="no"), DataError, "lengths"),
    ("halves the other way round", lambda: ib.compose(decoder(), encoder()), FitError, "RelativeEncoder"),
    ("a translator for a half", lambda: ib.compose(the.translator, decoder()), FitError, "Translator"),
    ("fewer names than anchors", lambda: encoder(names=["a", "b"]), DataError, "2 names"),
    ("anchors of one name", lambda: encoder(2, names=["a", "a"]), DataError, "'a'"),
    ("anchors with NaN", lambda: RelativeEncoder().fit(the.x * math.nan), DataError, "NaN"),
    ("rows of another width for a decoder", lambda: decoder().transform(the.y), ShapeError, "expecting 30"),
    ("a decoder from a folder that is not there", lambda: RelativeDecoder.load("missing"), FileError, "missing"),
    ("stitching without a translator", lambda: stitch(translator=None), DataError, "NoneType"),
    ("stitching with one that is not fitted", lambda: stitch(translator=Translator()), DataError, "fit(X, Y)"),
    ("stitching with cosines", lambda: stitch(translator=fit(method="relative")), DataError, "'relative'"),
    ("stitching an encoder that is no module", lambda: stitch(encoder="bert"), DataError, "str"),
    ("stitching a head that is no module", lambda: stitch(head=[1]), DataError, "list"),
    ("stitching an encoder of another width", lambda: stitch(nn.Linear(6, 5))(torch.ones(2, 6)), ShapeError, "width 5"),
    ("stitching an encoder that gives no rows", lambda: stitch(nn.LSTM(6, 4))(torch.ones(2, 6)), DataError, "tuple"),
    (
        "the state of another stitched network",
        lambda: stitch().load_state_dict(stitch(nn.Linear(6, 2), fit(the.x[:, :2])).state_dict(), strict=False),
        ShapeError,
        "from 2 to 4",
    ),
    ("a decoder from a saved encoder", lambda: RelativeDecoder.load(the.saved_encoder), FileError, "decoder"),
    (
        "a bridge that float32 cannot hold",
        lambda: ib.bridge(fit(the.x, the.y * 1e42, method="ridge")).save("out", check=the.x),
        FitError,
        "float32",
    ),
    ("doctor of no rows", lambda: ib.doctor(np.zeros((0, 3))), DataError, "no rows"),
    ("doctor of a vector", lambda: ib.doctor(np.zeros(3)), ShapeError, "(3,)"),
    ("doctor with a seed below zero", lambda: ib.doctor(the.documents, seed=-1), DataError, "seed"),
    ("doctor of half rows", lambda: ib.doctor(the.documents, rows_per_batch=2.5), DataError, "rows_per_batch"),
    ("doctor of text", lambda: ib.doctor(iter([np.array([["a"]])])), ShapeError, "<U1"),
    ("doctor of batches of other widths", lambda: ib.doctor(iter([np.ones((2, 3)), np.ones((2, 4))])), ShapeError, "4"),
    ("a threshold alone", lambda: ib.bridge(the.translator, threshold=0.5), DataError, "match_threshold"),
    ("scores that are a number", lambda: ib.bridge(the.translator, scores=3), DataError, "recalibrate"),
    (
        "a bridge over a saved translator",
        lambda: ib.bridge(the.translator).save(the.saved_translator, force=True),
        FileError,
        "not write",
    ),
    ("scores of other numbers", lambda: public.recalibrate([1, 2, 3], [1, 2]), ShapeError, "(2,)"),
    ("scores in words", lambda: public.recalibrate(["a"] * 30, np.arange(30.0)), DataError, "numbers"),
    ("too few scores", lambda: public.recalibrate([1, 2, 3], [1, 2, 3]), DataError, "3 pairs"),
    ("scores of NaN", lambda: public.recalibrate([math.nan] * 30, [1] * 30), DataError, "NaN"),
    ("scores that are all the same", lambda: public.recalibrate([1] * 30, np.arange(30)), DataError, "same"),
    ("a threshold that no pair reaches", lambda: public.match_threshold(the.x, the.y, 50), DataError, "50"),
    ("a threshold that every pair reaches", lambda: public.match_threshold(the.x, the.y, -50), DataError, "-50"),
    (
        "a threshold of other numbers of scores",
        lambda: public.match_threshold(the.x, the.y[1:], 0.1),
        ShapeError,
        "(29, 4)",
    ),
    ("a threshold of scores in words", lambda: public.match_threshold(["a"], ["b"], 0.1), DataError, "numbers"),
    (
        "a threshold of scores that are NaN",
        lambda: public.match_threshold(the.x * math.nan, the.y, 0.1),
        DataError,
        "NaN",
    ),
    (
        "a threshold of new scores that are NaN",
        lambda: public.match_threshold(the.x, the.y * math.nan, 0.1),
        DataError,
        "NaN",
    ),
)
def test_parts_that_do_not_fit_are_refused(misuse):
    misuse.check()


def audit(**changes: Any) -> object:
    asked = {
        "pairs": (the.documents[:30], the.documents[:30] @ np.ones((4, 3), np.float32)),
        "queries": (the.queries, the.queries @ np.ones((4, 3), np.float32)),
        "documents": the.documents,
        "methods": ["ridge"],
        "draws": 20,
        "curve": False,
        "depth": 20,
    }
    return ib.audit(**asked | changes)


@misuses(
    ("pairs of another width", lambda: audit(pairs=(the.documents[:30, :2], the.documents[:30])), ShapeError, "pairs"),
    ("queries of another width", lambda: audit(queries=(the.queries, the.queries)), ShapeError, "new queries"),
    ("fewer new queries", lambda: audit(queries=(the.queries, the.queries[:5])), ShapeError, "(5, 4)"),
    ("pairs that are a number", lambda: audit(pairs=3), ShapeError, "(old, new)"),
    ("pairs without rows", lambda: audit(pairs=(the.documents[:0], the.documents[:0])), ShapeError, "pairs"),
    ("one document", lambda: audit(documents=the.documents[0]), ShapeError, "(4,)"),
    ("documents with NaN", lambda: audit(documents=the.documents * math.nan), DataError, "documents"),
    ("fewer new documents", lambda: audit(new_documents=np.ones((9, 3))), ShapeError, "(9, 3)"),
    ("new vectors given twice", lambda: audit(new_documents=np.ones((60, 3)), embed=len), DataError, "embed="),
    ("a margin of two", lambda: audit(margin=2), DataError, "margin"),
    ("a depth below k", lambda: audit(depth=5), DataError, "depth=5"),
    ("no documents to look at", lambda: audit(k=0), DataError, "k must"),
    ("a k that is true", lambda: audit(k=True), DataError, "k must"),
    ("a k that is no whole number", lambda: audit(k=1.5), DataError, "k must"),
    ("a depth that is no whole number", lambda: audit(depth=20.5), DataError, "depth"),
    ("numbers of fewer pairs", lambda: audit(pair_rows=[1, 2]), DataError, "pair_rows"),
    ("numbers of pairs that are not whole", lambda: audit(pair_rows=[0.5] * 30), DataError, "float64"),
    ("numbers of pairs that are no documents", lambda: audit(pair_rows=[*range(29), 99]), DataError, "99"),
    ("a pair that is one document twice", lambda: audit(pair_rows=[*range(29), 0]), DataError, "more than once"),
    ("fewer texts than queries", lambda: audit(query_texts=["a"]), DataError, "1 texts"),
    ("a curve over one pair", lambda: audit(curve=[1]), DataError, "curve"),
    ("a curve over a number", lambda: audit(curve=20), DataError, "curve must"),
    ("a curve over half a pair", lambda: audit(curve=[20.5]), DataError, "curve"),
    ("no methods", lambda: audit(methods=[]), DataError, "ridge"),
    ("a mapping of no methods", lambda: audit(methods={}), DataError, "ridge"),
    ("an unknown method", lambda: audit(methods=["rigde"]), UnknownNameError, "ridge"),
    ("a list for a method", lambda: audit(methods=[[]]), UnknownNameError, "ridge"),
    ("an unknown metric", lambda: audit(metric="cos"), UnknownNameError, "cosine"),
    ("a list for the metric", lambda: audit(metric=[]), UnknownNameError, "cosine"),
    ("a confidence of 95", lambda: audit(confidence=95, new_documents=the.documents[:, :3]), DataError, "95"),
    ("a confidence of 95 without anything to measure", lambda: audit(confidence=95), DataError, "confidence"),
    ("a confidence of nothing", lambda: audit(confidence=0), DataError, "confidence"),
    ("half a draw", lambda: audit(draws=1.5, new_documents=the.documents[:, :3]), DataError, "draws"),
    ("a seed below zero", lambda: audit(seed=-1, methods=["procrustes"]), DataError, "seed"),
    ("no draws", lambda: audit(draws=0, new_documents=the.documents[:, :3]), DataError, "draw"),
    ("a seed in words", lambda: audit(seed="lucky"), DataError, "seed"),
    ("labels of fewer queries", lambda: audit(labels=[0, 1]), DataError, "2"),
    ("labels that are no documents", lambda: audit(labels=[99] * 20), DataError, "99"),
    ("a pool with a document twice", lambda: audit(pool=([0, 0], np.ones((2, 3)))), DataError, "more than once"),
    ("a pool of other numbers of rows", lambda: audit(pool=([0, 1], np.ones((3, 3)))), ShapeError, "(3, 3)"),
    ("an embedding of too few documents", lambda: audit(embed=lambda rows: np.ones((2, 3))), ShapeError, "(2, 3)"),
    ("too few pairs", lambda: audit(pairs=(the.documents[:5], np.ones((5, 3)))), FitError, "5 pairs"),
)
def test_an_audit_that_cannot_be_made_is_refused(misuse):
    misuse.check()

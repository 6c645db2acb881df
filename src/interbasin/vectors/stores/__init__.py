"""Stores of vectors that are read and written: files, Lance tables, FAISS indexes, PostgreSQL tables.

``uri`` says what a VECTORS string means, ``opening`` what a source and a sink are and which one it names. One file per
store implements them, files are those of `interbasin.vectors.files`, and an interrupted run goes on from its journal
(`interbasin.storage.journal`).
"""

from interbasin.vectors.stores.uri import StoreURI, parse_uri

__all__ = ["StoreURI", "parse_uri"]

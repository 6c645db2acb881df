"""Stores of vectors that are read and written: files, Lance tables, FAISS indexes, PostgreSQL tables.

``uri`` says what a VECTORS string means, ``rows`` what a source and a sink are, ``opening`` finds both, one file
per store implements them, and an interrupted run goes on from its journal (`interbasin.storage.journal`).
"""

from interbasin.vectors.stores.uri import StoreURI, parse_uri

__all__ = ["StoreURI", "parse_uri"]

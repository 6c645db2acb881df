"""Stores of vectors that are read and written: files, Lance tables, FAISS indexes, PostgreSQL tables.

``addresses`` says what a VECTORS string means, ``rows`` what a source and a sink are, ``opening`` finds both, one file
per store implements them, and ``unfinished`` keeps what an interrupted run wrote.
"""

from interbasin.vectors.stores.addresses import Address, parse_address

__all__ = ["Address", "parse_address"]

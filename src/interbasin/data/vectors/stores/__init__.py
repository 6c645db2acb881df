"""Vector stores that are translated: files, Lance tables, FAISS indexes, PostgreSQL tables.

``addresses`` says what a VECTORS string means, ``opening`` finds the source and the sink, one file a store implements
both; ``unfinished`` keeps what an interrupted run wrote; ``translating`` puts it together.
"""

from interbasin.data.vectors.stores.addresses import Address, parse_address
from interbasin.data.vectors.stores.translating import translate_vectors

__all__ = ["Address", "parse_address", "translate_vectors"]

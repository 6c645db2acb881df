"""Theseus: a map per pair of spaces, and the update carried through the maps [rinaldi:26].

``maps`` says which maps there are and fits them by ``rules`` (``heads`` for attention), ``carrier`` carries an update
through them. ``by_module`` is the paper's own form, ``by_weights`` needs no data, ``on_disk`` little memory; ``pieces``
serves rules that know tensors and no spaces.
"""

from interbasin.jobs.transport.theseus.carrier import Carrier, Moved
from interbasin.jobs.transport.theseus.maps import fit_maps, seek

__all__ = ["Carrier", "Moved", "fit_maps", "seek"]

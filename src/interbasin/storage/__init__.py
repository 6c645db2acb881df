"""Bytes that survive: files that appear whole, records with a checksum, digests, the journal of a resumable run."""

from interbasin.storage.atomic import READABLE, new_file, new_folder
from interbasin.storage.destination import (
    FORMAT_PREFIX,
    as_path,
    is_ours,
    refuse_file_in_the_way,
    refuse_what_is_in_the_way,
)
from interbasin.storage.records import read_document, read_record, write_document, write_record

__all__ = [
    "FORMAT_PREFIX",
    "READABLE",
    "as_path",
    "is_ours",
    "new_file",
    "new_folder",
    "read_document",
    "read_record",
    "refuse_file_in_the_way",
    "refuse_what_is_in_the_way",
    "write_document",
    "write_record",
]

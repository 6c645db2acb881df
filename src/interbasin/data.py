"""Old names, for one release: ``interbasin.data`` is now `interbasin.datasets` and `interbasin.vectors`."""

from interbasin._lazy import moved_names

__all__ = ["load_digits", "open_data", "open_vectors", "translate_vectors"]  # noqa: F822

__getattr__, __dir__ = moved_names(
    __name__,
    {
        **dict.fromkeys(["Batches", "Digits", "load_digits", "open_data", "splits_of"], "interbasin.datasets"),
        **dict.fromkeys(
            ["Vectors", "default_rows_per_batch", "moments_of_files", "open_vectors", "paired_batches"],
            "interbasin.vectors",
        ),
        "translate_vectors": "interbasin.jobs.translate",
    },
)

"""Old names, for one release: ``interbasin.networks`` became `checkpoints`, `models`, `wiring` and `activations`."""

from interbasin._lazy import moved_names

__all__ = ["load_model", "repair", "reset_batch_norm"]  # noqa: F822

__getattr__, __dir__ = moved_names(
    __name__,
    {
        **dict.fromkeys(["Alignment", "Wiring", "carry", "wire"], "interbasin.wiring"),
        **dict.fromkeys(["fold_norms", "folding_of", "save_folded"], "interbasin.wiring.folding"),
        **dict.fromkeys(["Checkpoint", "open_checkpoint", "write_checkpoint"], "interbasin.checkpoints"),
        **dict.fromkeys(["LoadedModel", "load_model"], "interbasin.models"),
        **dict.fromkeys(["Recording", "record"], "interbasin.activations"),
        **dict.fromkeys(["repair", "reset_batch_norm"], "interbasin.batch_norm"),
        "interpolate": "interbasin.paths",
    },
)

"""What a network is made of: its wiring, found by tracing; its activations, recorded; its checkpoints, in and out."""

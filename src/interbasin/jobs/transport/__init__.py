"""A fine-tune of one network, given to another without training."""

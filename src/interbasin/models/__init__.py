"""What a MODEL on the command line means: a string becomes a network with its weights and example inputs."""

from interbasin.models.base import LoadedModel, map_weights
from interbasin.models.from_transformers import stored_tensors
from interbasin.models.loading import ModelName, load_model, parse_model

__all__ = ["LoadedModel", "ModelName", "load_model", "map_weights", "parse_model", "stored_tensors"]

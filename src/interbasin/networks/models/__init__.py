"""What a MODEL on the command line means: a string becomes a network with its weights and example inputs."""

from interbasin.networks.models.base import LoadedModel
from interbasin.networks.models.from_transformers import stored_tensors
from interbasin.networks.models.loading import load_model
from interbasin.networks.models.names import ModelName, parse_model

__all__ = ["LoadedModel", "ModelName", "load_model", "parse_model", "stored_tensors"]

"""Differentially private federated learning for medicine, on Flower, Opacus and Hydra."""

__version__ = "0.2.0"

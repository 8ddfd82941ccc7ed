"""Differentially private federated learning for medicine, on Flower, Opacus and Hydra."""

__version__ = "0.1.0"

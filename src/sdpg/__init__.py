"""Stochastic Decoupled Policy Gradient: robot policies end-to-end from pixels on hardware people own."""

__version__ = "0.1.0"

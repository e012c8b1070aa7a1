"""Runs a policy that `sdpg export` wrote on a robot. Needs numpy and onnxruntime, and neither torch nor a simulator."""

__version__ = "0.1.0"

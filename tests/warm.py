"""What a process has imported that programs of tests are forked from (`processes.py`). It runs nothing."""

import gc
import os

os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # else whoever asks for a GPU here leaves none to the forks

import ipykernel.kernelapp
import IPython.core.interactiveshell
import torch
import torch._dynamo
import torch.distributed

import grape.magics
import grape.sessions
import grape.streams
import tests.processes

__all__ = ["IPython", "grape", "ipykernel", "tests", "torch"]

gc.collect()
gc.freeze()

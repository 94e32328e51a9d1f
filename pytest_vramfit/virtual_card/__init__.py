"""A GPU that passes for a smaller card, whose driver serves what does not fit from host memory.

The worker's process gets a small library (``overflow.c``) loaded before CUDA's runtime, so that
PyTorch's own allocator asks it for memory instead. Nothing else changes: the allocator keeps its
statistics, its cache and its threads.
"""

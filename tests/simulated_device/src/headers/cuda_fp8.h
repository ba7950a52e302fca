// nccl.h includes this header without need; the original needs nvcc's.

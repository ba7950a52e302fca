"""Calls NCCL directly, without torch, for what a job under PyTorch cannot show, or not as quickly.

argv: CASE, folder of the libraries. Exit status 0: all was right.
"""

import ctypes
import os
import sys
import threading
import time
from pathlib import Path

case, libraries = sys.argv[1], Path(sys.argv[2])
SUCCESS = 0
INT8 = 0


def library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(next(libraries.glob(f"{name}.so.*"))), mode=ctypes.RTLD_GLOBAL)


cuda, nccl = library("libcudart"), library("libnccl")


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * 128),)


def join(identity: UniqueId, ranks: int, rank: int) -> ctypes.c_void_p:
    comm = ctypes.c_void_p()
    assert nccl.ncclCommInitRank(ctypes.byref(comm), ranks, identity, rank) == SUCCESS
    return comm


os.environ["RANK"] = "0"
identity = UniqueId()
nccl.ncclGetUniqueId(ctypes.byref(identity))

if case == "init_hang":
    control = Path(os.environ["SIMDEV_CONTROL"])
    control.write_text("init_hang rank=1\n")
    process = os.fork()
    if not process:
        os.environ["RANK"] = "1"  # before the faults are read
        join(identity, 2, 1)
        os._exit(0)
    joined = threading.Thread(target=join, args=(identity, 2, 0))
    joined.start()
    joined.join(0.3)
    assert joined.is_alive()
    control.unlink()
    joined.join()
    assert os.waitpid(process, 0)[1] == 0

elif case == "order":  # kernels of one communicator in two streams
    comm = join(identity, 1, 0)
    streams = [ctypes.c_void_p() for _ in range(3)]
    address = ctypes.c_void_p()
    assert cuda.cudaMalloc(ctypes.byref(address), 64) == SUCCESS
    for stream in streams:
        assert cuda.cudaStreamCreate(ctypes.byref(stream)) == SUCCESS
    for stream in streams[:2]:
        assert nccl.ncclAllReduce(address, address, 64, INT8, 0, comm, stream) == SUCCESS
    assert cuda.cudaMemsetAsync(address, 0, 64, streams[2]) == SUCCESS
    assert cuda.cudaStreamSynchronize(streams[2]) == SUCCESS
    time.sleep(0.2)  # the second kernel would end meanwhile if it did not wait for the first
    assert [cuda.cudaStreamQuery(stream) == SUCCESS for stream in streams] == [False, False, True]
    assert nccl.ncclCommAbort(comm) == SUCCESS
    assert cuda.cudaDeviceSynchronize() == SUCCESS

elif case == "killed in init":
    print("joins", flush=True)
    join(identity, 2, 0)  # the other rank never comes

elif case == "init":
    join(identity, 1, 0)

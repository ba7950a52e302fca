"""Two ranks that end as argv[1] says, with process groups alive or destroyed. Knows nothing of otel-fr."""

import os
import signal
import sys
import threading

import torch
import torch.distributed as dist

how, groups = sys.argv[1:]
dist.init_process_group("gloo")
for size in range(1, 20):
    dist.all_reduce(torch.ones(size))
if groups == "destroyed":
    dist.destroy_process_group()
if how == "exit":
    sys.exit(3)
elif how == "os_exit":
    os._exit(4)
elif how == "raises":
    raise ValueError("bad sample 4711")
elif how == "sigterm":
    os.kill(os.getpid(), signal.SIGTERM)
elif how == "thread":
    threading.Thread(target=os._exit, args=(6,)).start()
    threading.Event().wait()

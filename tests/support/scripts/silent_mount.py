"""Mounts a FUSE file system that takes every request and never answers. A process that uses it sleeps uninterruptibly.

Usage: silent_mount.py FOLDER. Prints "mounted", or why it cannot mount. Unmounts when its standard input is closed.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading

_INIT = 26  # FUSE_INIT of linux/fuse.h
_DETACH = 2  # MNT_DETACH of umount2(2)


def main(folder: bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        print(error.strerror, flush=True)
        return
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"silent", folder, b"fuse.silent", 0, options):
        print(os.strerror(ctypes.get_errno()), flush=True)
        return
    threading.Thread(target=_serve, args=[device], daemon=True).start()
    print("mounted", flush=True)
    sys.stdin.read()
    libc.umount2(folder, _DETACH)
    os._exit(0)  # closes the device; the kernel then answers all requests with an error


def _serve(device: int) -> None:
    while True:
        data = os.read(device, 1 << 17)
        _, operation, unique = struct.unpack_from("<IIQ", data)
        if operation == _INIT:
            read_ahead = struct.unpack_from("<IIII", data, 40)[2]
            answer = struct.pack("<IIIIHHIIHHI", 7, 31, read_ahead, 0, 12, 10, 4096, 1, 1, 0, 0) + bytes(28)
            os.write(device, struct.pack("<IiQ", 16 + len(answer), 0, unique) + answer)


if __name__ == "__main__":
    main(sys.argv[1].encode())

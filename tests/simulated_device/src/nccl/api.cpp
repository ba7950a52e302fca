// NCCL's interface, as far as torch needs it and it can be simulated; the stubs of the rest return ncclInvalidUsage.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstring>
#include <random>
#include <string>

#include "../device.hpp"
#include "communicator.hpp"
#include "data.hpp"

using namespace simdev;

// ---------------------------------------------------------------- communicators

SIMDEV_API ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;  // of the headers, which match torch's NCCL
  return ncclSuccess;
}
SIMDEV_API ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  for (char& byte : id->internal) byte = static_cast<char>(random());
  return ncclSuccess;
}
SIMDEV_API ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return init_communicator(out, ranks, id, rank, config);
}
SIMDEV_API ncclResult_t ncclCommInitRank(ncclComm_t* out, int ranks, ncclUniqueId id, int rank) {
  return init_communicator(out, ranks, id, rank, nullptr);
}
SIMDEV_API ncclResult_t ncclCommInitRankScalable(ncclComm_t* out, int ranks, int rank, int, ncclUniqueId* ids,
                                                 ncclConfig_t* config) {
  return init_communicator(out, ranks, ids[0], rank, config);
}
SIMDEV_API ncclResult_t ncclCommInitAll(ncclComm_t*, int, const int*) {
  return failure(ncclInvalidUsage, "a process has one rank of a communicator");
}
SIMDEV_API ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* out, ncclConfig_t* config) {
  return split_communicator(parent, color, key, out, config);
}
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
SIMDEV_API ncclResult_t ncclCommShrink(ncclComm_t parent, int* without, int count, ncclComm_t* out, ncclConfig_t* config,
                                       int flags) {
  if (flags & NCCL_SHRINK_ABORT) parent->abort();
  return shrink_communicator(parent, without, count, out, config);
}
#endif

SIMDEV_API ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm) comm->abort();  // PyTorch's watchdog also aborts communicators that do not exist yet
  return ncclSuccess;
}
SIMDEV_API ncclResult_t ncclCommRevoke(ncclComm_t comm, int) { return ncclCommAbort(comm); }
SIMDEV_API ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (comm) comm->finish();
  return ncclSuccess;
}
// The object is kept: threads that an abort has released may still look at it.
SIMDEV_API ncclResult_t ncclCommDestroy(ncclComm_t comm) { return ncclCommFinalize(comm); }
SIMDEV_API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = comm ? comm->state.load() : ncclSuccess;
  return ncclSuccess;
}
SIMDEV_API ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->ranks;
  return ncclSuccess;
}
SIMDEV_API ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
SIMDEV_API ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  *device = comm->device;
  return ncclSuccess;
}

// The texts are NCCL's own, for programs that look for them.
SIMDEV_API const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError: return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}
SIMDEV_API const char* ncclGetLastError(ncclComm_t) { return last_failure(); }

// ---------------------------------------------------------------- calls and groups

namespace {

// A communicator's calls between ncclGroupStart and ncclGroupEnd. They become one kernel, in the stream of the first call.
struct Pending {
  ncclComm_t comm;
  cudaStream_t stream;
  std::vector<Operation> operations;
};
thread_local int depth = 0;
thread_local std::vector<Pending> pending;

ncclResult_t call(ncclComm_t comm, cudaStream_t stream, const Operation& operation) {
  if (!comm) return failure(ncclInvalidArgument, "no communicator");
  if (comm->is_aborted) return failure(ncclInvalidUsage, "the communicator was aborted");
  if (operation.peer < 0 || operation.peer >= comm->ranks) return failure(ncclInvalidArgument, "no such rank");
  const bool reduces = operation.kind == Kind::all_reduce || operation.kind == Kind::reduce ||
                       operation.kind == Kind::reduce_scatter;
  if (reduces && !can_reduce(operation.type)) return failure(ncclInvalidArgument, "8-bit floating-point numbers are not reduced");
  if (!depth) {
    comm->submit(stream, {operation});
    return ncclSuccess;
  }
  for (Pending& one : pending)
    if (one.comm == comm) {
      one.operations.push_back(operation);
      return ncclSuccess;
    }
  pending.push_back({comm, stream, {operation}});
  return ncclSuccess;
}

const char* in(const void* address) { return static_cast<const char*>(address); }
char* out(void* address) { return static_cast<char*>(address); }

}  // namespace

SIMDEV_API ncclResult_t ncclGroupStart() {
  depth++;
  return ncclSuccess;
}
SIMDEV_API ncclResult_t ncclGroupEnd() {
  if (--depth > 0) return ncclSuccess;
  std::vector<Pending> all;
  all.swap(pending);
  for (Pending& one : all) one.comm->submit(one.stream, std::move(one.operations));
  return ncclSuccess;
}
SIMDEV_API ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t*) { return ncclGroupEnd(); }

SIMDEV_API ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t reduction,
                                      ncclComm_t comm, cudaStream_t stream) {
  return call(comm, stream, {Kind::all_reduce, in(send), out(receive), count, type, reduction, 0});
}
SIMDEV_API ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t reduction,
                                   int root, ncclComm_t comm, cudaStream_t stream) {
  return call(comm, stream, {Kind::reduce, in(send), out(receive), count, type, reduction, root});
}
SIMDEV_API ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                                      ncclComm_t comm, cudaStream_t stream) {
  return call(comm, stream, {Kind::broadcast, in(send), out(receive), count, type, 0, root});
}
SIMDEV_API ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                                  cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}
SIMDEV_API ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                                      cudaStream_t stream) {
  return call(comm, stream, {Kind::all_gather, in(send), out(receive), count, type, 0, 0});
}
SIMDEV_API ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type,
                                          ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream) {
  return call(comm, stream, {Kind::reduce_scatter, in(send), out(receive), count, type, reduction, 0});
}
SIMDEV_API ncclResult_t ncclAlltoAll(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                                     cudaStream_t stream) {
  return call(comm, stream, {Kind::all_to_all, in(send), out(receive), count, type, 0, 0});
}
SIMDEV_API ncclResult_t ncclGather(const void* send, void* receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                                   cudaStream_t stream) {
  return call(comm, stream, {Kind::gather, in(send), out(receive), count, type, 0, root});
}
SIMDEV_API ncclResult_t ncclScatter(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                                    ncclComm_t comm, cudaStream_t stream) {
  return call(comm, stream, {Kind::scatter, in(send), out(receive), count, type, 0, root});
}
SIMDEV_API ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                 cudaStream_t stream) {
  return call(comm, stream, {Kind::send, in(send), nullptr, count, type, 0, peer});
}
SIMDEV_API ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                 cudaStream_t stream) {
  return call(comm, stream, {Kind::receive, nullptr, out(receive), count, type, 0, peer});
}
SIMDEV_API ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* reduction, void* scalar, ncclDataType_t type,
                                                 ncclScalarResidence_t, ncclComm_t comm) {
  *reduction = comm->add_factor(read_scalar(scalar, type));
  return ncclSuccess;
}
SIMDEV_API ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) { return ncclSuccess; }

// ---------------------------------------------------------------- memory: all of it can be used by all operations

static ncclResult_t result_of(cudaError_t error) { return error == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError; }

SIMDEV_API ncclResult_t ncclMemAlloc(void** address, size_t size) { return result_of(cudaMalloc(address, size)); }
SIMDEV_API ncclResult_t ncclMemFree(void* address) { return result_of(cudaFree(address)); }
SIMDEV_API ncclResult_t ncclCommRegister(const ncclComm_t, void* buffer, size_t, void** handle) {
  *handle = buffer;
  return ncclSuccess;
}
SIMDEV_API ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
SIMDEV_API ncclResult_t ncclCommWindowRegister(ncclComm_t, void*, size_t, ncclWindow_t* window, int) {
  *window = nullptr;
  return ncclSuccess;
}
SIMDEV_API ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) { return ncclSuccess; }
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 0)
SIMDEV_API ncclResult_t ncclCommMemStats(ncclComm_t, ncclCommMemStat_t, uint64_t* value) {
  *value = 0;
  return ncclSuccess;
}
SIMDEV_API ncclResult_t ncclCommSuspend(ncclComm_t, int) { return ncclSuccess; }
SIMDEV_API ncclResult_t ncclCommResume(ncclComm_t) { return ncclSuccess; }
#endif

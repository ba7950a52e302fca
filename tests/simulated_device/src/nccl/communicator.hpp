// A communicator: how it is created, and in which order its kernels execute on the device.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "../device.hpp"
#include "meeting.hpp"
#include "operations.hpp"

// NCCL declares this type without a namespace.
struct ncclComm {
  ncclComm(std::string name, int rank, int ranks, bool is_blocking)
      : name(std::move(name)), rank(rank), ranks(ranks), is_blocking(is_blocking) {
    cudaGetDevice(&device);
  }

  const std::string name;  // all ranks compute the same one
  int rank, ranks;         // in a split, known once the parent's ranks have met
  int device = 0;
  const bool is_blocking;
  simdev::Meeting meeting;
  std::atomic<bool> is_aborted{false};
  std::atomic<ncclResult_t> state{ncclInProgress};
  std::atomic<int> children{0};

  simdev::Meeting::GivenUp given_up() {
    return [this] { return is_aborted.load(); };
  }
  void abort();
  void finish();  // waits for its kernels, unless it is aborted

  // Enqueues the operations as one kernel in the stream. Runs on the thread that calls NCCL.
  void submit(cudaStream_t stream, std::vector<simdev::Operation> operations);

  // Factors of ncclRedOpCreatePreMulSum.
  ncclRedOp_t add_factor(double factor);
  double factor(int reduction);

 private:
  long new_ticket();
  void wait_for_turn(long ticket);
  void end_turn(long ticket);
  void execute(long ticket, const std::vector<simdev::Operation>& operations, const std::shared_ptr<simdev::Mark>& begin);
  void execute_operations(const std::vector<simdev::Operation>& operations, long kernel);
  void hold(double seconds);  // an abort ends it

  // A communicator's kernels execute in the order of their calls, even in different streams: a kernel that does not end blocks
  // all later ones.
  std::mutex mutex_;
  std::condition_variable turn_;
  long tickets_ = 0, served_ = 0;
  std::vector<double> factors_;
};

namespace simdev {

// Keeps the text for ncclGetLastError, and returns the result.
ncclResult_t failure(ncclResult_t result, const std::string& why);
const char* last_failure();

// Like the NCCL functions of the same names.
ncclResult_t init_communicator(ncclComm_t* out, int ranks, const ncclUniqueId& id, int rank, const ncclConfig_t* config);
ncclResult_t split_communicator(ncclComm_t parent, int color, int key, ncclComm_t* out, const ncclConfig_t* config);
ncclResult_t shrink_communicator(ncclComm_t parent, const int* without, int count, ncclComm_t* out, const ncclConfig_t* config);

}  // namespace simdev

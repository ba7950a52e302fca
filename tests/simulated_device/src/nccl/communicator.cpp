#include "communicator.hpp"

#include <algorithm>
#include <cstdio>
#include <system_error>
#include <thread>

#include "../device.hpp"
#include "../faults.hpp"

using namespace simdev;

namespace {

void trace(const char* what, const ncclComm& comm, long kernel = 0) {
  if (is_traced())
    fprintf(stderr, "simulated device: NCCL: %s, rank %d of %d, %.8s, kernel %ld\n", what, comm.rank, comm.ranks,
            comm.name.c_str(), kernel);
}

}  // namespace

// ---------------------------------------------------------------- kernels

long ncclComm::new_ticket() {
  std::lock_guard lock(mutex_);
  return tickets_++;
}

void ncclComm::wait_for_turn(long ticket) {
  std::unique_lock lock(mutex_);
  turn_.wait(lock, [&] { return served_ == ticket || is_aborted; });
}

void ncclComm::end_turn(long ticket) {
  std::lock_guard lock(mutex_);
  served_ = std::max(served_, ticket + 1);
  turn_.notify_all();
}

void ncclComm::submit(cudaStream_t stream, std::vector<Operation> operations) {
  auto shared = std::make_shared<const std::vector<Operation>>(std::move(operations));
  if (is_capturing(stream)) {  // each replay is a kernel of its own
    enqueue(stream, [this, shared] { execute(new_ticket(), *shared, nullptr); }, Pace::may_wait);
    return;
  }
  const long ticket = new_ticket();
  enqueue(stream, [this, ticket, shared, begin = mark_at_end(stream)] { execute(ticket, *shared, begin); }, Pace::may_wait);
}

void ncclComm::hold(double seconds) {
  const double end = now() + seconds;
  while (now() < end && !is_aborted) sleep_for(std::min(0.02, std::max(0.0, end - now())));
}

void ncclComm::execute(long ticket, const std::vector<Operation>& operations, const std::shared_ptr<Mark>& begin) {
  if (auto ms = active(Fault::late)) {
    // PyTorch records a call's start event just before the call: the device reaches it when it comes to the kernel.
    if (begin) begin->is_reached = false;
    hold(*ms / 1e3);
    if (begin) begin->reach();
  }
  wait_for_turn(ticket);
  const long kernel = nccl_kernel_begins();
  trace("kernel begins", *this, kernel);
  if (!is_aborted) execute_operations(operations, kernel);
  trace(is_aborted ? "kernel ends by an abort" : "kernel ends", *this, kernel);
  end_turn(ticket);
}

void ncclComm::execute_operations(const std::vector<Operation>& operations, long kernel) {
  std::vector<Operation> messages;
  for (const Operation& operation : operations)
    if (operation.is_message())
      messages.push_back(operation);
    else
      execute_collective(*this, operation);
  if (!messages.empty()) execute_messages(*this, messages);  // the messages of one kernel proceed side by side
  if (strikes(Fault::endless, kernel)) wait_while(Fault::endless, given_up());
}

// ---------------------------------------------------------------- the end

void ncclComm::abort() {
  trace("abort", *this);
  is_aborted = true;
  std::lock_guard lock(mutex_);
  turn_.notify_all();
}

void ncclComm::finish() {
  std::unique_lock lock(mutex_);
  turn_.wait(lock, [&] { return served_ == tickets_ || is_aborted; });
}

// ---------------------------------------------------------------- the user's reductions

ncclRedOp_t ncclComm::add_factor(double factor) {
  std::lock_guard lock(mutex_);
  factors_.push_back(factor);
  return static_cast<ncclRedOp_t>(ncclNumOps + factors_.size() - 1);
}

double ncclComm::factor(int reduction) {
  std::lock_guard lock(mutex_);
  return factors_[reduction - ncclNumOps];
}

// ---------------------------------------------------------------- the beginning

namespace simdev {
namespace {

thread_local std::string failure_of_thread;

bool is_blocking(const ncclConfig_t* config, bool otherwise) {
  return !config || config->blocking == NCCL_CONFIG_UNDEF_INT ? otherwise : config->blocking != 0;
}

// Waits until all ranks have joined or the communicator is aborted. Sets the state.
void join(ncclComm& comm) {
  if (comm.ranks > MOST_RANKS) {
    comm.state = failure(ncclInvalidArgument, "the simulated NCCL has at most 64 ranks");
    return;
  }
  try {
    comm.meeting.join(comm.name, comm.rank, comm.ranks, comm.given_up());
    comm.state = comm.meeting.is_complete() ? ncclSuccess : ncclInternalError;
  } catch (const std::system_error& error) {
    comm.state = failure(ncclSystemError, error.what());
  }
  trace("joined", comm);
}

// Runs `make`, which sets the state. For a communicator that does not block, it runs on a new thread.
ncclResult_t start(ncclComm* comm, ncclComm_t* out, std::function<void()> make) {
  *out = comm;
  if (!comm->is_blocking) {
    std::thread(std::move(make)).detach();
    return ncclInProgress;
  }
  make();
  return comm->state;
}

}  // namespace

ncclResult_t failure(ncclResult_t result, const std::string& why) {
  failure_of_thread = "simulated NCCL: " + why;
  return result;
}
const char* last_failure() { return failure_of_thread.c_str(); }

ncclResult_t init_communicator(ncclComm_t* out, int ranks, const ncclUniqueId& id, int rank, const ncclConfig_t* config) {
  std::string name;
  for (int i = 0; i < 16; i++) {
    char hex[3];
    snprintf(hex, sizeof hex, "%02x", static_cast<unsigned char>(id.internal[i]));
    name += hex;
  }
  auto* comm = new ncclComm(name, rank, ranks, is_blocking(config, true));
  return start(comm, out, [comm] {
    wait_while(Fault::init_hang, comm->given_up());
    join(*comm);
  });
}

ncclResult_t split_communicator(ncclComm_t parent, int color, int key, ncclComm_t* out, const ncclConfig_t* config) {
  const std::string name = parent->name + "." + std::to_string(++parent->children) + "." + std::to_string(color);
  auto* comm = new ncclComm(name, 0, 0, is_blocking(config, parent->is_blocking));
  const auto make = [parent, comm, color, key] {
    const auto given_up = [=] { return parent->is_aborted || comm->is_aborted; };
    Meeting& meeting = parent->meeting;
    meeting.color(parent->rank) = color, meeting.key(parent->rank) = key;
    bool met = meeting.meet_on_host(given_up);
    std::vector<std::pair<int, int>> members;  // key and rank in the parent: they order the ranks
    for (int rank = 0; met && rank < parent->ranks; rank++)
      if (meeting.color(rank) == color) members.emplace_back(meeting.key(rank), rank);
    std::sort(members.begin(), members.end());
    met = met && meeting.meet_on_host(given_up);  // from here on the next split may write its colors
    if (!met) {
      comm->state = failure(ncclInternalError, "the communicator was aborted");
      return;
    }
    comm->ranks = static_cast<int>(members.size());
    for (size_t i = 0; i < members.size(); i++)
      if (members[i].second == parent->rank) comm->rank = static_cast<int>(i);
    if (color != NCCL_SPLIT_NOCOLOR) join(*comm);
  };
  if (color != NCCL_SPLIT_NOCOLOR) return start(comm, out, make);
  *out = nullptr;
  make();
  return comm->state == ncclInternalError ? ncclInternalError : ncclSuccess;
}

ncclResult_t shrink_communicator(ncclComm_t parent, const int* without, int count, ncclComm_t* out, const ncclConfig_t* config) {
  std::string name = parent->name + ".without";
  for (int i = 0; i < count; i++) name += "-" + std::to_string(without[i]);
  int rank = 0, ranks = 0;
  for (int old = 0; old < parent->ranks; old++) {
    if (std::find(without, without + count, old) != without + count) continue;
    if (old == parent->rank) rank = ranks;
    ranks++;
  }
  auto* comm = new ncclComm(name, rank, ranks, is_blocking(config, parent->is_blocking));
  return start(comm, out, [comm] { join(*comm); });
}

}  // namespace simdev

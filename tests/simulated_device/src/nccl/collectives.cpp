// Collectives: in each round of one chunk, every rank lays out its part and takes what it needs from the others' parts.
#include <algorithm>
#include <cstring>

#include "communicator.hpp"
#include "data.hpp"

namespace simdev {
namespace {

class Collective {
 public:
  Collective(ncclComm& comm, const Operation& operation)
      : comm_(comm), operation_(operation), meeting_(comm.meeting), bytes_(operation.count * width_of(operation.type)) {
    // Scattered data has a part for each rank, and the parts share the chunk.
    const size_t parts = is_scattered() ? comm.ranks : 1;
    piece_ = std::max<size_t>(64, CHUNK_BYTES / parts / 64 * 64);
  }

  void execute() {
    meeting_.call(comm_.rank) = {static_cast<int>(operation_.kind), operation_.peer, bytes_};
    for (size_t round = 0; round < rounds(bytes_); round++) {
      const size_t at = round * piece_, size = std::min(piece_, bytes_ - std::min(bytes_, at));
      give(at, size);
      if (!meeting_.meet_on_device(comm_.given_up())) return;
      if (round == 0 && !others_fit()) {
        meeting_.wait([] { return false; }, comm_.given_up());
        return;
      }
      if (size) take(at, size);
      if (!meeting_.meet_on_device(comm_.given_up())) return;  // from here on the chunks may be written again
    }
  }

 private:
  bool is_scattered() const {
    return operation_.kind == Kind::reduce_scatter || operation_.kind == Kind::all_to_all || operation_.kind == Kind::scatter;
  }
  bool is_root() const { return operation_.peer == comm_.rank; }
  size_t rounds(size_t bytes) const { return std::max<size_t>(1, (bytes + piece_ - 1) / piece_); }

  // NCCL's kernels compare nothing. If operations or roots differ, they wait for data that does not come. A rank with fewer bytes
  // than this one ends first, and this one waits. If sizes differ but need equally many rounds, all end, with wrong data.
  bool others_fit() {
    for (int rank = 0; rank < comm_.ranks; rank++) {
      const Call& other = meeting_.call(rank);
      if (other.kind != static_cast<int>(operation_.kind) || other.root != operation_.peer) return false;
      if (rounds(other.bytes) < rounds(bytes_)) return false;
    }
    return true;
  }

  void give(size_t at, size_t size) {
    const bool only_root_gives = operation_.kind == Kind::broadcast || operation_.kind == Kind::scatter;
    if (!size || (only_root_gives && !is_root())) return;
    char* chunk = meeting_.chunk(comm_.rank);
    if (!is_scattered()) {
      memcpy(chunk, operation_.input + at, size);
      return;
    }
    for (int rank = 0; rank < comm_.ranks; rank++) memcpy(chunk + rank * piece_, operation_.input + rank * bytes_ + at, size);
  }

  void take(size_t at, size_t size) {
    char* output = operation_.output + at;
    const size_t own = comm_.rank * piece_;  // where this rank's part of scattered data begins
    switch (operation_.kind) {
      case Kind::all_reduce: reduce(output, 0, size); break;
      case Kind::reduce:
        if (is_root()) reduce(output, 0, size);
        break;
      case Kind::reduce_scatter: reduce(output, own, size); break;
      case Kind::broadcast: memmove(output, meeting_.chunk(operation_.peer), size); break;
      case Kind::scatter: memcpy(output, meeting_.chunk(operation_.peer) + own, size); break;
      case Kind::gather:
        if (is_root()) collect(output, 0, size);
        break;
      case Kind::all_gather: collect(output, 0, size); break;
      case Kind::all_to_all: collect(output, own, size); break;
      case Kind::send:
      case Kind::receive: break;
    }
  }

  // One part from each rank.
  void collect(char* output, size_t from, size_t size) {
    for (int rank = 0; rank < comm_.ranks; rank++) memcpy(output + rank * bytes_, meeting_.chunk(rank) + from, size);
  }

  void reduce(char* output, size_t from, size_t size) {
    const size_t count = size / width_of(operation_.type);
    memcpy(output, meeting_.chunk(0) + from, size);
    for (int rank = 1; rank < comm_.ranks; rank++)
      combine(output, meeting_.chunk(rank) + from, count, operation_.type, operation_.reduction);
    if (operation_.reduction == ncclAvg) scale(output, count, operation_.type, 1.0 / comm_.ranks);
    if (operation_.reduction >= ncclNumOps) scale(output, count, operation_.type, comm_.factor(operation_.reduction));
  }

  ncclComm& comm_;
  const Operation& operation_;
  Meeting& meeting_;
  size_t bytes_, piece_;
};

}  // namespace

void execute_collective(ncclComm& comm, const Operation& operation) { Collective(comm, operation).execute(); }

}  // namespace simdev

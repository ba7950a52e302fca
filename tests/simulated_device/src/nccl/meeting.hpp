// Where the ranks of one communicator meet: a file in shared memory, mapped by each of them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace simdev {

constexpr int MOST_RANKS = 64;               // of a communicator
constexpr size_t CHUNK_BYTES = 256 << 10;    // of a rank's data in one round of a collective
constexpr size_t LETTER_BYTES = 64 << 10;    // of a piece of a message

// What a rank calls. The others check whether it fits their calls.
struct Call {
  int kind, root;
  uint64_t bytes;
};

// Carries messages from one rank to another, one letter at a time.
struct alignas(64) Mailbox {
  std::atomic<uint64_t> written, read;
  uint64_t bytes;
};

class Meeting {
 public:
  using GivenUp = std::function<bool()>;

  // Waits until all ranks have joined, or `given_up` returns true. Throws std::system_error if there is no shared memory.
  void join(const std::string& name, int rank, int ranks, const GivenUp& given_up);
  bool is_complete() const { return complete_; }

  // Waits until `done` returns true. False: given up first. A rank that changes what others wait for must notify.
  bool wait(const std::function<bool()>& done, const GivenUp& given_up);
  void notify();

  // Waits until all ranks reach their next step: of kernels on the device, or of calls on the host.
  bool meet_on_device(const GivenUp& given_up) { return meet(&Place::device_step, ++device_step_, given_up); }
  bool meet_on_host(const GivenUp& given_up) { return meet(&Place::host_step, ++host_step_, given_up); }

  Call& call(int rank) { return place(rank).call; }
  char* chunk(int rank) { return chunks_ + rank * CHUNK_BYTES; }
  // Color and key of ncclCommSplit.
  int& color(int rank) { return place(rank).color; }
  int& key(int rank) { return place(rank).key; }

  Mailbox& mailbox(int from, int to) { return mailboxes_[from * ranks_ + to]; }
  char* letter(int from, int to) { return letters_ + (from * ranks_ + to) * LETTER_BYTES; }

 private:
  struct alignas(64) Place {
    std::atomic<uint64_t> device_step, host_step;
    Call call;
    int color, key;
  };
  struct Hall {
    std::atomic<uint32_t> changes, joined;
    Place places[MOST_RANKS];
  };
  Place& place(int rank) { return hall_->places[rank]; }
  bool meet(std::atomic<uint64_t> Place::* step, uint64_t number, const GivenUp& given_up);

  int rank_ = 0, ranks_ = 0;
  uint64_t device_step_ = 0, host_step_ = 0;
  std::atomic<bool> complete_{false};
  // Never unmapped: a kernel that an abort left waiting may still read it.
  Hall* hall_ = nullptr;
  Mailbox* mailboxes_ = nullptr;
  char *chunks_ = nullptr, *letters_ = nullptr;
};

}  // namespace simdev

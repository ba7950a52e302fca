// Sends and receives: letters of at most 64 KiB through the mailbox of the two ranks. The messages of one kernel proceed side
// by side, but messages with the same peer and direction proceed in order.
#include <algorithm>
#include <cstring>
#include <set>
#include <tuple>

#include "communicator.hpp"
#include "data.hpp"

namespace simdev {
namespace {

class Message {
 public:
  Message(ncclComm& comm, const Operation& operation)
      : operation_(operation),
        bytes_(operation.count * width_of(operation.type)),
        from_(is_send() ? comm.rank : operation.peer),
        to_(is_send() ? operation.peer : comm.rank),
        mailbox_(comm.meeting.mailbox(from_, to_)),
        letter_(comm.meeting.letter(from_, to_)) {}

  bool is_send() const { return operation_.kind == Kind::send; }
  bool is_over() const { return is_over_; }
  std::tuple<bool, int, int> way() const { return {is_send(), from_, to_}; }  // a rank may send to itself

  // Sends or receives a letter. Returns whether one was sent or received.
  bool move() { return is_send() ? send() : receive(); }

 private:
  bool send() {
    if (last_letter_) {  // like NCCL without buffers: a send ends once it is received
      is_over_ = mailbox_.read >= last_letter_;
      return false;
    }
    if (mailbox_.written != mailbox_.read) return false;
    const size_t size = std::min(LETTER_BYTES, bytes_ - moved_);
    memcpy(letter_, operation_.input + moved_, size);
    mailbox_.bytes = size;
    moved_ += size;
    const uint64_t number = ++mailbox_.written;
    if (moved_ < bytes_) return true;
    last_letter_ = number;
    return true;
  }

  bool receive() {
    if (mailbox_.written == mailbox_.read) return false;
    const size_t size = std::min<size_t>(mailbox_.bytes, bytes_ - moved_);
    memcpy(operation_.output + moved_, letter_, size);
    moved_ += size;
    is_over_ = moved_ >= bytes_;
    mailbox_.read++;
    return true;
  }

  const Operation& operation_;
  size_t bytes_, moved_ = 0;
  int from_, to_;
  Mailbox& mailbox_;
  char* letter_;
  uint64_t last_letter_ = 0;  // its number, once it is written
  bool is_over_ = false;
};

}  // namespace

void execute_messages(ncclComm& comm, const std::vector<Operation>& operations) {
  std::vector<Message> messages;
  for (const Operation& operation : operations) messages.emplace_back(comm, operation);
  const auto move_all = [&] {
    bool has_moved = false, all_over = true;
    std::set<std::tuple<bool, int, int>> taken;
    for (Message& message : messages) {
      if (message.is_over() || !taken.insert(message.way()).second) {
        all_over = all_over && message.is_over();
        continue;
      }
      has_moved = message.move() || has_moved;
      all_over = all_over && message.is_over();
    }
    if (has_moved) comm.meeting.notify();
    return all_over;
  };
  comm.meeting.wait(move_all, comm.given_up());
}

}  // namespace simdev

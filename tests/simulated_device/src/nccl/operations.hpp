// What one NCCL call asks for, and the two ways to carry it out.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <vector>

namespace simdev {

enum class Kind { all_reduce, broadcast, reduce, all_gather, reduce_scatter, all_to_all, gather, scatter, send, receive };

struct Operation {
  Kind kind;
  const char* input;
  char* output;
  size_t count;  // of elements, as passed to NCCL's function
  ncclDataType_t type;
  int reduction;  // an ncclRedOp_t, or one made by ncclRedOpCreatePreMulSum
  int peer;       // the root, or the other rank of a message
  bool is_message() const { return kind == Kind::send || kind == Kind::receive; }
};

// On the stream's thread. They return when this rank's part is done, or when the communicator is aborted.
void execute_collective(ncclComm& comm, const Operation& operation);
void execute_messages(ncclComm& comm, const std::vector<Operation>& messages);

}  // namespace simdev

// What goes wrong in this process, by SIMDEV_FAULTS and the control file SIMDEV_CONTROL: ../README.md has the grammar.
#pragma once

#include <functional>
#include <optional>

namespace simdev {

enum class Fault {
  stuck,      // the device executes nothing more
  endless,    // one NCCL kernel does not end here
  late,       // NCCL kernels start late here
  kernel_ms,  // other kernels take so long
  init_hang,  // this rank does not join new communicators
};

// Whether this process can have faults at all: if not, nothing is looked up.
bool faults_are_possible();

// What the fault is given (ms), if it acts now; 0 if it is given nothing. The control file is looked at every 20 ms.
std::optional<long> active(Fault fault);

// Counts the NCCL kernels that have begun in this process, which `after=N` refers to. The number of the new one, from 1.
long nccl_kernel_begins();

// Whether the fault is for the NCCL kernel of this number and for no later one.
bool strikes(Fault fault, long kernel);

// Returns once the fault acts no longer, or `given_up` says so.
void wait_while(Fault fault, const std::function<bool()>& given_up = nullptr);

}  // namespace simdev

// The faults of this process, from SIMDEV_FAULTS and the control file SIMDEV_CONTROL. ../README.md has the grammar.
#pragma once

#include <functional>
#include <optional>

namespace simdev {

enum class Fault {
  stuck,      // the device executes nothing more
  endless,    // one NCCL kernel does not end here
  late,       // NCCL kernels start late here
  kernel_ms,  // other kernels take this long
  init_hang,  // this rank does not join new communicators
};

// Whether this process can have faults at all: if not, nothing is looked up.
bool faults_are_possible();

// The fault's ms if it acts now; 0 if it takes none. The control file is checked every 20 ms.
std::optional<long> active(Fault fault);

// Counts an NCCL kernel that begins in this process, for `after=N`. Returns its number, from 1.
long nccl_kernel_begins();

// Whether the fault acts on exactly the NCCL kernel with this number.
bool strikes(Fault fault, long kernel);

// Waits until the fault no longer acts, or `given_up` returns true.
void wait_while(Fault fault, const std::function<bool()>& given_up = nullptr);

}  // namespace simdev

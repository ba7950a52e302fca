// The device's clock: monotonic, in seconds.
#pragma once

#include <chrono>
#include <thread>

namespace simdev {

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
inline void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

}  // namespace simdev

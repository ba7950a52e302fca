#include "faults.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "clock.hpp"

namespace simdev {
namespace {

struct Kind {
  const char* name;
  bool takes_ms;  // and needs it
};
// In the order of `Fault`.
constexpr std::array<Kind, 5> KINDS{{
    {"stuck", false},
    {"endless", false},
    {"late", true},
    {"kernel_ms", true},
    {"init_hang", false},
}};

struct Setting {
  bool on = false;
  long after = 0, value = 0;
};
using Settings = std::array<Setting, KINDS.size()>;

const char* variable(const char* name) {
  const char* value = getenv(name);
  return value && *value ? value : nullptr;
}
const char* const of_environment = variable("SIMDEV_FAULTS");
const char* const control_file = variable("SIMDEV_CONTROL");

std::atomic<long> kernels_begun{0};

long number(std::string_view text, const std::string& line) {
  long value = -1;
  auto [end, error] = std::from_chars(text.begin(), text.end(), value);
  if (error != std::errc() || end != text.end() || value < 0)
    throw std::invalid_argument("'" + std::string(text) + "' in '" + line + "' is not a number from 0");
  return value;
}

size_t kind_of(const std::string& name, const std::string& line) {
  std::string known;
  for (size_t i = 0; i < KINDS.size(); i++) {
    if (name == KINDS[i].name) return i;
    known += std::string(known.empty() ? "" : ", ") + KINDS[i].name;
  }
  throw std::invalid_argument("no fault is named '" + name + "' (in '" + line + "'); there are " + known);
}

// One fault: KIND [rank=N|*] [after=N] [ms=N].
void read_line(const std::string& line, Settings& settings) {
  std::istringstream words(line);
  std::string name, word;
  if (!(words >> name) || name[0] == '#') return;
  const size_t index = kind_of(name, line);
  const Kind& kind = KINDS[index];
  Setting setting{true};
  bool is_ours = true, has_value = !kind.takes_ms;
  while (words >> word) {
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals), value = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (key == "rank" && value == "*") continue;
    if (key == "rank") {
      const char* own = variable("RANK");
      is_ours = own && number(own, line) == number(value, line);
    } else if (key == "after") {
      setting.after = number(value, line);
    } else if (kind.takes_ms && key == "ms") {
      setting.value = number(value, line);
      has_value = true;
    } else {
      throw std::invalid_argument("'" + name + "' takes no '" + key + "' (in '" + line + "')");
    }
  }
  if (!has_value) throw std::invalid_argument("'" + name + "' needs ms=N (in '" + line + "')");
  if (is_ours) settings[index] = setting;
}

void read_all(const std::string& text, char separator, Settings& settings) {
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line, separator)) read_line(line, settings);
}

// The settings from the environment and the control file. Only one thread may use it at a time.
class Source {
 public:
  Source() {
    try {
      if (of_environment) read_all(of_environment, ';', initial_);
    } catch (const std::invalid_argument& error) {
      // A job without the intended fault would pass for a test of it.
      fprintf(stderr, "simulated device: SIMDEV_FAULTS: %s\n", error.what());
      _exit(2);
    }
    current_ = initial_;
  }

  const Settings& look() {
    constexpr double EVERY = 0.02;
    if (!control_file || now() - looked_at_ < EVERY) return current_;
    looked_at_ = now();
    struct stat found {};
    const bool is_there = stat(control_file, &found) == 0;
    const Version version{is_there, found.st_ino, found.st_size, found.st_mtim.tv_sec, found.st_mtim.tv_nsec};
    if (version == version_) return current_;
    version_ = version;
    Settings settings = initial_;
    try {
      std::ostringstream text;
      if (is_there) text << std::ifstream(control_file).rdbuf();
      read_all(text.str(), '\n', settings);
      current_ = settings;
    } catch (const std::invalid_argument& error) {
      // The job runs, and the file may still be corrected: the faults remain as they were.
      fprintf(stderr, "simulated device: %s: %s; the file is ignored until it changes\n", control_file, error.what());
    }
    return current_;
  }

 private:
  struct Version {
    bool is_there = false;
    ino_t inode = 0;
    off_t size = 0;
    time_t seconds = 0;
    long nanoseconds = 0;
    bool operator==(const Version&) const = default;
  };
  Settings initial_, current_;
  Version version_;
  double looked_at_ = -1;
};

Setting setting_of(Fault fault) {
  static std::mutex& mutex = *new std::mutex;  // threads may look until the process is gone
  std::lock_guard lock(mutex);
  static Source& source = *new Source;
  return source.look()[static_cast<size_t>(fault)];
}

}  // namespace

bool faults_are_possible() { return of_environment || control_file; }

std::optional<long> active(Fault fault) {
  if (!faults_are_possible()) return {};
  const Setting setting = setting_of(fault);
  if (!setting.on || kernels_begun.load() < setting.after) return {};
  return setting.value;
}

long nccl_kernel_begins() { return ++kernels_begun; }

bool strikes(Fault fault, long kernel) {
  if (!faults_are_possible()) return false;
  const Setting setting = setting_of(fault);
  return setting.on && kernel == setting.after + 1;
}

void wait_while(Fault fault, const std::function<bool()>& given_up) {
  while (active(fault) && !(given_up && given_up())) sleep_for(0.02);
}

}  // namespace simdev

#include "meeting.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>
#include <system_error>

namespace simdev {
namespace {

constexpr char FOLDER[] = "/dev/shm/";
constexpr char PREFIX[] = "simulated-nccl-";

size_t whole_pages(size_t bytes) { return (bytes + 4095) & ~size_t(4095); }

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

// Whether the path still leads to the open file.
bool is_linked(int file, const std::string& path) {
  struct stat opened {}, named {};
  return !fstat(file, &opened) && !stat(path.c_str(), &named) && opened.st_ino == named.st_ino;
}

// Ranks hold a shared lock on a file until all have joined, and then unlink it. A file without a lock is from a job that was
// killed before: the next job unlinks it.
void unlink_abandoned() {
  std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(FOLDER), closedir);
  while (dirent* entry = folder ? readdir(folder.get()) : nullptr) {
    if (strncmp(entry->d_name, PREFIX, strlen(PREFIX))) continue;
    const std::string path = std::string(FOLDER) + entry->d_name;
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) continue;  // another user's, or it is gone
    if (!flock(file, LOCK_EX | LOCK_NB)) unlink(path.c_str());
    close(file);
  }
}

int open_locked(const std::string& path) {
  while (true) {
    const int file = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0) fail("open");
    flock(file, LOCK_SH);
    if (is_linked(file, path)) return file;
    close(file);  // unlinked between the two calls
  }
}

}  // namespace

void Meeting::join(const std::string& name, int rank, int ranks, const GivenUp& given_up) {
  rank_ = rank, ranks_ = ranks;
  const size_t n = ranks, hall = whole_pages(sizeof(Hall)), mailboxes = whole_pages(n * n * sizeof(Mailbox));
  const size_t size = hall + mailboxes + n * CHUNK_BYTES + n * n * LETTER_BYTES;
  const std::string path = std::string(FOLDER) + PREFIX + name;
  unlink_abandoned();
  const int file = open_locked(path);
  if (ftruncate(file, size)) fail("ftruncate");
  char* at = static_cast<char*>(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0));
  if (at == MAP_FAILED) fail("mmap");
  hall_ = reinterpret_cast<Hall*>(at);
  mailboxes_ = reinterpret_cast<Mailbox*>(at + hall);
  chunks_ = at + hall + mailboxes;
  letters_ = chunks_ + n * CHUNK_BYTES;
  hall_->joined++;
  notify();
  complete_ = wait([&] { return hall_->joined >= n; }, given_up);
  unlink(path.c_str());
  close(file);
}

void Meeting::notify() {
  hall_->changes++;
  syscall(SYS_futex, &hall_->changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool Meeting::wait(const std::function<bool()>& done, const GivenUp& given_up) {
  while (true) {
    const uint32_t seen = hall_->changes;
    if (done()) return true;
    if (given_up()) return false;
    const timespec most{0, 20'000'000};  // what makes this rank give up may notify nobody
    syscall(SYS_futex, &hall_->changes, FUTEX_WAIT, seen, &most, nullptr, 0);
  }
}

bool Meeting::meet(std::atomic<uint64_t> Place::* step, uint64_t number, const GivenUp& given_up) {
  (place(rank_).*step) = number;
  notify();
  return wait(
      [&] {
        for (int rank = 0; rank < ranks_; rank++)
          if ((place(rank).*step) < number) return false;
        return true;
      },
      given_up);
}

}  // namespace simdev

// Streams, events and graphs.
//
// A stream is a queue, and its worker runs the work in order. If the stream is idle, work that cannot wait runs at once on the
// thread that enqueues it: another thread would cost 50 us for each small kernel.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "../device.hpp"

namespace simdev {

struct Item {
  Work work;
  Pace pace;
};

class Stream;

// The captured work. It is replayed in one stream, in the order of the calls.
struct Graph {
  unsigned long long id = 0;
  std::vector<Item> items;
  std::set<Stream*> streams;  // streams that are being captured into it
};

class Stream {
 public:
  Stream(int device, int priority) : device(device), priority(priority) {}
  const int device, priority;

  void add(Work work, Pace pace);
  // Enqueues work that reaches the mark. `is_timed`: the event has timing.
  void record(std::shared_ptr<Mark> mark, bool is_timed);
  bool is_idle();
  // Waits until all work that was enqueued before is executed.
  void finish();
  // No more work comes: the worker ends after the queued work.
  void retire();

  void capture_into(Graph* graph);
  void end_capture(Graph* graph);
  Graph* graph();
  std::shared_ptr<Mark> mark_at_end();

 private:
  void push(Work work);  // needs the lock
  void execute_all();
  bool is_idle_locked() const { return queue_.empty() && !is_executing_; }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  bool is_executing_ = false, has_worker_ = false, is_retired_ = false;
  Graph* graph_ = nullptr;
  std::shared_ptr<Mark> mark_at_end_;
};

struct Event {
  explicit Event(unsigned flags) : flags(flags) {}
  const unsigned flags;
  bool is_timed() const { return !(flags & cudaEventDisableTiming); }

  // The newest record, and the capture it belongs to (0: none). A record in a graph has no mark: it orders the graph only.
  std::pair<std::shared_ptr<Mark>, unsigned long long> newest();
  std::shared_ptr<Mark> mark() { return newest().first; }
  void set(std::shared_ptr<Mark> mark, unsigned long long capture);

 private:
  std::mutex mutex_;
  std::shared_ptr<Mark> mark_;
  unsigned long long capture_ = 0;
};

// A handle of 0 to 2 is the default stream of the thread's device.
Stream& stream_of(cudaStream_t handle);
inline Event& event_of(cudaEvent_t handle) { return *reinterpret_cast<Event*>(handle); }

Stream* new_stream(int device, int priority);
void retire_stream(Stream& stream);
void finish_device(int device);

// Graphs that are being captured. null: the capture has ended.
Graph* begin_capture(Stream& stream);
Graph* capture_with_id(unsigned long long id);
void end_capture(Graph& graph);

}  // namespace simdev

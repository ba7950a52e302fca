#include "streams.hpp"

#include <thread>

#include "../faults.hpp"
#include "devices.hpp"

namespace simdev {

// ---------------------------------------------------------------- streams

void Stream::push(Work work) {
  queue_.push_back(std::move(work));
  if (!has_worker_) {
    has_worker_ = true;
    std::thread([this] { execute_all(); }).detach();  // it may wait for ever: nothing joins it
  }
  changed_.notify_all();
}

void Stream::add(Work work, Pace pace) {
  std::unique_lock lock(mutex_);
  mark_at_end_ = nullptr;
  if (graph_) {
    graph_->items.push_back({std::move(work), pace});
    return;
  }
  if (pace == Pace::may_wait || !is_idle_locked() || active(Fault::stuck)) return push(std::move(work));
  is_executing_ = true;
  lock.unlock();
  work();
  lock.lock();
  is_executing_ = false;
  if (has_worker_) changed_.notify_all();
}

void Stream::execute_all() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return (!queue_.empty() && !is_executing_) || (is_retired_ && queue_.empty()); });
    if (queue_.empty()) return;
    is_executing_ = true;
    lock.unlock();
    wait_while(Fault::stuck);
    lock.lock();
    Work work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
    is_executing_ = false;
    changed_.notify_all();
  }
}

void Stream::record(std::shared_ptr<Mark> mark, bool is_timed) {
  add([mark] { mark->reach(); }, Pace::prompt);
  std::lock_guard lock(mutex_);
  if (is_timed && !graph_) mark_at_end_ = std::move(mark);
}

std::shared_ptr<Mark> Stream::mark_at_end() {
  std::lock_guard lock(mutex_);
  return mark_at_end_;
}

bool Stream::is_idle() {
  std::lock_guard lock(mutex_);
  return is_idle_locked();
}

void Stream::finish() {
  auto end = std::make_shared<Mark>();
  {
    std::lock_guard lock(mutex_);
    if (is_idle_locked()) return;
    push([end] { end->reach(); });
  }
  end->wait();
}

void Stream::retire() {
  std::lock_guard lock(mutex_);
  is_retired_ = true;
  changed_.notify_all();
}

void Stream::capture_into(Graph* graph) {
  std::lock_guard lock(mutex_);
  graph_ = graph;
  graph->streams.insert(this);
}

void Stream::end_capture(Graph* graph) {
  std::lock_guard lock(mutex_);
  if (graph_ == graph) graph_ = nullptr;
}

Graph* Stream::graph() {
  std::lock_guard lock(mutex_);
  return graph_;
}

// ---------------------------------------------------------------- all streams of the devices

namespace {

// Threads of streams run until the process is gone, so nothing of this is destroyed at exit.
struct All {
  std::mutex mutex;
  std::map<int, std::set<Stream*>> of_device;
  std::map<int, Stream*> default_of_device;
};
All& all = *new All;

}  // namespace

Stream* new_stream(int device, int priority) {
  auto* stream = new Stream(device, priority);
  std::lock_guard lock(all.mutex);
  all.of_device[device].insert(stream);
  return stream;
}

void retire_stream(Stream& stream) {
  {
    std::lock_guard lock(all.mutex);
    all.of_device[stream.device].erase(&stream);
  }
  stream.retire();  // the object stays: its worker or a graph may still use it
}

Stream& stream_of(cudaStream_t handle) {
  if (reinterpret_cast<uintptr_t>(handle) > 2) return *reinterpret_cast<Stream*>(handle);
  const int device = current_device();
  {
    std::lock_guard lock(all.mutex);
    if (auto found = all.default_of_device.find(device); found != all.default_of_device.end()) return *found->second;
  }
  Stream* made = new_stream(device, 0);
  std::lock_guard lock(all.mutex);
  return *all.default_of_device.emplace(device, made).first->second;
}

void finish_device(int device) {
  std::set<Stream*> streams;
  {
    std::lock_guard lock(all.mutex);
    streams = all.of_device[device];
  }
  for (Stream* stream : streams)
    if (!stream->graph()) stream->finish();
}

void enqueue(cudaStream_t stream, Work work, Pace pace) { stream_of(stream).add(std::move(work), pace); }
bool is_capturing(cudaStream_t stream) { return stream_of(stream).graph() != nullptr; }
std::shared_ptr<Mark> mark_at_end(cudaStream_t stream) { return stream_of(stream).mark_at_end(); }

// ---------------------------------------------------------------- events

std::pair<std::shared_ptr<Mark>, unsigned long long> Event::newest() {
  std::lock_guard lock(mutex_);
  return {mark_, capture_};
}

void Event::set(std::shared_ptr<Mark> mark, unsigned long long capture) {
  std::lock_guard lock(mutex_);
  mark_ = std::move(mark);
  capture_ = capture;
}

// ---------------------------------------------------------------- captures

namespace {

struct Captures {
  std::mutex mutex;
  std::map<unsigned long long, Graph*> active;
  unsigned long long newest = 0;
};
Captures& captures = *new Captures;

}  // namespace

Graph* begin_capture(Stream& stream) {
  auto* graph = new Graph;
  {
    std::lock_guard lock(captures.mutex);
    graph->id = ++captures.newest;
    captures.active[graph->id] = graph;
  }
  stream.capture_into(graph);
  return graph;
}

Graph* capture_with_id(unsigned long long id) {
  std::lock_guard lock(captures.mutex);
  auto found = captures.active.find(id);
  return found == captures.active.end() ? nullptr : found->second;
}

void end_capture(Graph& graph) {
  for (Stream* stream : graph.streams) stream->end_capture(&graph);
  graph.streams.clear();
  std::lock_guard lock(captures.mutex);
  captures.active.erase(graph.id);
}

}  // namespace simdev

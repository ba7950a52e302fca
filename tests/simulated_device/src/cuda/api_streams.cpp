// CUDA's runtime API: streams and events.
#include <cuda_runtime_api.h>

#include "../device.hpp"
#include "devices.hpp"
#include "streams.hpp"

using namespace simdev;

// ---------------------------------------------------------------- streams

SIMDEV_API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  *stream = reinterpret_cast<cudaStream_t>(new_stream(current_device(), priority));
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
SIMDEV_API cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
SIMDEV_API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  retire_stream(stream_of(stream));
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return stream_of(stream).is_idle() ? cudaSuccess : cudaErrorNotReady;
}
SIMDEV_API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  stream_of(stream).finish();
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  *priority = stream_of(stream).priority;
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  auto [mark, capture] = event_of(event).newest();
  if (Graph* graph = capture ? capture_with_id(capture) : nullptr) stream_of(stream).capture_into(graph);
  if (mark && !mark->is_reached) stream_of(stream).add([mark = mark] { mark->wait(); }, Pace::may_wait);
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  stream_of(stream).add([=] { function(data); }, Pace::may_wait);
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned) {
  stream_of(stream).add([=] { function(stream, cudaSuccess, data); }, Pace::may_wait);
  return cudaSuccess;
}

// ---------------------------------------------------------------- events

SIMDEV_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = reinterpret_cast<cudaEvent_t>(new Event(flags));
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
SIMDEV_API cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete &event_of(event);
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream_handle, unsigned flags) {
  Event& event = event_of(handle);
  Stream& stream = stream_of(stream_handle);
  Graph* graph = stream.graph();
  if (graph && !(flags & cudaEventRecordExternal)) {
    event.set(nullptr, graph->id);
    return cudaSuccess;
  }
  auto mark = std::make_shared<Mark>();
  event.set(mark, 0);
  stream.record(mark, event.is_timed());
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}
SIMDEV_API cudaError_t cudaEventQuery(cudaEvent_t event) {
  auto mark = event_of(event).mark();
  return !mark || mark->is_reached ? cudaSuccess : cudaErrorNotReady;  // an event that was never recorded is complete
}
SIMDEV_API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (auto mark = event_of(event).mark()) mark->wait();
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  auto first = event_of(begin).mark(), last = event_of(end).mark();
  if (!first || !last || !event_of(begin).is_timed() || !event_of(end).is_timed())
    return fail(cudaErrorInvalidResourceHandle);
  if (!first->is_reached || !last->is_reached) return cudaErrorNotReady;
  *ms = static_cast<float>((last->at - first->at) * 1e3);
  return cudaSuccess;
}

// Other processes' events and memory are not simulated.
SIMDEV_API cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t*, cudaEvent_t) { return fail(cudaErrorNotSupported); }
SIMDEV_API cudaError_t cudaIpcOpenEventHandle(cudaEvent_t*, cudaIpcEventHandle_t) { return fail(cudaErrorNotSupported); }
SIMDEV_API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) { return fail(cudaErrorNotSupported); }
SIMDEV_API cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) { return fail(cudaErrorNotSupported); }
SIMDEV_API cudaError_t cudaIpcCloseMemHandle(void*) { return fail(cudaErrorNotSupported); }

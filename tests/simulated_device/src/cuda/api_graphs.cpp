// CUDA's runtime API: graphs. A graph is the list of what was captured; nodes and their dependencies are not simulated.
#include <cuda_runtime_api.h>

#include <utility>

#include "../device.hpp"
#include "devices.hpp"
#include "streams.hpp"

using namespace simdev;

namespace {

Graph* graph_of(cudaGraph_t handle) { return reinterpret_cast<Graph*>(handle); }
Graph* graph_of(cudaGraphExec_t handle) { return reinterpret_cast<Graph*>(handle); }

}  // namespace

SIMDEV_API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream_of(stream).graph()) return fail(cudaErrorIllegalState);
  begin_capture(stream_of(stream));
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* out) {
  Graph* graph = stream_of(stream).graph();
  if (!graph) return fail(cudaErrorIllegalState);
  end_capture(*graph);
  *out = reinterpret_cast<cudaGraph_t>(graph);
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream_of(stream).graph() ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

static void capture_info(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* out,
                         const cudaGraphNode_t** dependencies, size_t* count) {
  static cudaGraphNode_t no_node[1] = {nullptr};
  Graph* graph = stream_of(stream).graph();
  *status = graph ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (id) *id = graph ? graph->id : 0;
  if (out) *out = reinterpret_cast<cudaGraph_t>(graph);
  if (dependencies) *dependencies = no_node;
  if (count) *count = 0;
}
#if CUDART_VERSION >= 13000
SIMDEV_API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                                cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
                                                const cudaGraphEdgeData** edges, size_t* count) {
  capture_info(stream, status, id, graph, dependencies, count);
  if (edges) *edges = nullptr;
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t*, const cudaGraphEdgeData*, size_t,
                                                           unsigned) {
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*, size_t* count) {
  *count = 0;
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaGraphAddNode(cudaGraphNode_t*, cudaGraph_t, const cudaGraphNode_t*, const cudaGraphEdgeData*, size_t,
                                        cudaGraphNodeParams*) {
  return fail(cudaErrorNotSupported);
}
#else  // CUDA 12 names these after the version of the signature
SIMDEV_API cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                                   cudaGraph_t* graph, const cudaGraphNode_t** dependencies, size_t* count) {
  capture_info(stream, status, id, graph, dependencies, count);
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t*, size_t, unsigned) {
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, size_t* count) {
  *count = 0;
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaGraphAddNode(cudaGraphNode_t*, cudaGraph_t, const cudaGraphNode_t*, size_t, cudaGraphNodeParams*) {
  return fail(cudaErrorNotSupported);
}
#endif
SIMDEV_API cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t, cudaGraph_t, const cudaGraphNode_t*,
                                                     const cudaGraphEdgeData*, size_t, cudaStreamCaptureMode) {
  return fail(cudaErrorNotSupported);
}
SIMDEV_API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  static thread_local cudaStreamCaptureMode of_thread = cudaStreamCaptureModeGlobal;
  std::swap(of_thread, *mode);
  return cudaSuccess;
}

SIMDEV_API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long) {
  auto* copy = new Graph;
  copy->items = graph_of(graph)->items;
  *out = reinterpret_cast<cudaGraphExec_t>(copy);
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  for (const Item& item : graph_of(graph)->items) stream_of(stream).add(item.work, item.pace);
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph_of(graph);
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph_of(graph);
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
  *count = graph_of(graph)->items.size();
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle*, cudaGraph_t, unsigned, unsigned) {
  return fail(cudaErrorNotSupported);
}

// Objects that a graph keeps alive in CUDA are never freed here.
SIMDEV_API cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned, unsigned) { return cudaSuccess; }
SIMDEV_API cudaError_t cudaUserObjectCreate(cudaUserObject_t* out, void*, cudaHostFn_t, unsigned, unsigned) {
  static char object;
  *out = reinterpret_cast<cudaUserObject_t>(&object);
  return cudaSuccess;
}
SIMDEV_API cudaError_t cudaUserObjectRelease(cudaUserObject_t, unsigned) { return cudaSuccess; }

// The Python module `otel_fr.capture.native._ringwriter`: its types, and the table of functions for the kernel.
#include "misses.hpp"
#include "recorder.hpp"

namespace otel_fr {
namespace {

constexpr unsigned long kU32 = 0xFFFFFFFF, kMaxPayload = 64 * 1024 - 16;

using Guard = std::lock_guard<std::mutex>;

// Calls `use` with the ring, under the lock. False: the ring is closed.
//
// `use` must make no Python object: this may start a garbage collection, which may destroy a Work, whose destructor takes the
// lock.
template <class Use>
bool locked(Core& core, Use use) {
  Guard guard(core.lock);
  if (core.ring) use(*core.ring);
  return core.ring != nullptr;
}

PyObject* closed() {
  PyErr_SetString(PyExc_ValueError, "the ring is closed");
  return nullptr;
}

// Reads argument `index` as an integer of at most `limit`. Sets OverflowError if it is larger.
bool number(PyObject* const* args, Py_ssize_t index, uint64_t limit, uint64_t* value) {
  *value = PyLong_AsUnsignedLongLong(args[index]);
  if (*value == static_cast<uint64_t>(-1) && PyErr_Occurred()) return false;
  if (*value <= limit) return true;
  PyErr_Format(PyExc_OverflowError, "argument %zd is larger than %llu", index, static_cast<unsigned long long>(limit));
  return false;
}

bool time_of(PyObject* value, int64_t* ns) {
  *ns = PyLong_AsLongLong(value);
  return *ns != -1 || !PyErr_Occurred();
}

bool arguments(Py_ssize_t count, Py_ssize_t wanted) {
  if (count == wanted) return true;
  PyErr_Format(PyExc_TypeError, "%zd arguments are needed, not %zd", wanted, count);
  return false;
}

// ---- Core: a ring

struct PyCore {
  PyObject_HEAD
  Py_buffer mapping;
  std::shared_ptr<Core> core;
};

void close_core(PyCore* self) {
  if (!self->core) return;
  {
    Guard guard(self->core->lock);
    self->core->ring.reset();
  }
  if (self->mapping.obj) PyBuffer_Release(&self->mapping);
}

PyObject* core_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* mapping;
  unsigned long long v[9];
  if (!PyArg_ParseTuple(args, "OKKKKKKKKK", &mapping, v, v + 1, v + 2, v + 3, v + 4, v + 5, v + 6, v + 7, v + 8))
    return nullptr;
  auto* self = reinterpret_cast<PyCore*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  new (&self->core) std::shared_ptr<Core>(std::make_shared<Core>());
  if (PyObject_GetBuffer(mapping, &self->mapping, PyBUF_WRITABLE) < 0) {
    Py_DECREF(self);
    return nullptr;
  }
  Layout layout{v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8]};
  auto* base = static_cast<uint8_t*>(self->mapping.buf);
  if (static_cast<uint64_t>(self->mapping.len) < layout.file_size || reinterpret_cast<uintptr_t>(base) % 8 ||
      layout.slots_start + layout.slots * sizeof(Slot) > layout.file_size || layout.slots != layout.capacity + 1) {
    PyErr_SetString(PyExc_ValueError, "the mapping does not have the layout of a ring");
    Py_DECREF(self);
    return nullptr;
  }
  self->core->ring = std::make_unique<Ring>(base, layout);
  return reinterpret_cast<PyObject*>(self);
}

void core_dealloc(PyCore* self) {
  close_core(self);
  self->core.~shared_ptr();
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* core_close(PyCore* self, PyObject*) {
  close_core(self);
  Py_RETURN_NONE;
}

PyObject* core_append(PyCore* self, PyObject* const* args, Py_ssize_t count) {
  if (!arguments(count, 13)) return nullptr;
  uint64_t group, signature, site, thread, generation, kind, flags, pair, timeout;
  Slot slot{};
  if (!number(args, 0, INT64_MAX, &group) || !number(args, 1, kU32, &signature) || !number(args, 2, kU32, &site) ||
      !number(args, 3, kU32, &thread) || !number(args, 4, kU32, &generation) || !number(args, 5, 255, &kind) ||
      !number(args, 6, 255, &flags) || !number(args, 7, UINT64_MAX, &slot.coll_seq) ||
      !number(args, 8, UINT64_MAX, &slot.p2p_seq) || !number(args, 9, UINT64_MAX, &slot.op_id) ||
      !number(args, 10, UINT64_MAX, &pair) || !number(args, 11, UINT64_MAX, &timeout) ||
      !time_of(args[12], &slot.issued_ns))
    return nullptr;
  slot.signature = static_cast<uint32_t>(signature);
  slot.site = static_cast<uint32_t>(site);
  slot.thread = static_cast<uint32_t>(thread);
  slot.generation = static_cast<uint32_t>(generation);
  slot.kind = static_cast<uint8_t>(kind);
  slot.flags = static_cast<uint8_t>(flags);
  slot.pair_index = static_cast<uint32_t>(pair);
  slot.timeout_ms = slot_timeout(timeout);
  bool is_known = true;
  uint64_t ticket = Ring::kStale;
  bool open = locked(*self->core, [&](Ring& ring) {
    if (slot.generation != ring.generation()) return;
    RingGroup* found = ring.group(static_cast<int64_t>(group));
    is_known = found;
    if (found) ticket = ring.append(*found, slot);
  });
  if (!open) return closed();
  if (is_known) return PyLong_FromUnsignedLongLong(ticket);
  PyErr_SetObject(PyExc_KeyError, args[0]);
  return nullptr;
}

PyObject* core_complete(PyCore* self, PyObject* const* args, Py_ssize_t count) {
  uint64_t ticket, group, sequence, state;
  int64_t ended;
  if (!arguments(count, 5) || !number(args, 0, UINT64_MAX, &ticket) || !number(args, 1, INT64_MAX, &group) ||
      !number(args, 2, UINT64_MAX, &sequence) || !number(args, 3, 3, &state) || !time_of(args[4], &ended))
    return nullptr;
  bool open = locked(*self->core, [&](Ring& ring) {
    ring.complete(ticket, static_cast<int64_t>(group), sequence, static_cast<uint32_t>(state), ended);
  });
  return open ? Py_NewRef(Py_None) : closed();
}

PyObject* core_wait(PyCore* self, PyObject* const* args, Py_ssize_t count) {
  uint64_t ticket;
  int64_t waited;
  if (!arguments(count, 2) || !number(args, 0, UINT64_MAX, &ticket) || !time_of(args[1], &waited)) return nullptr;
  return locked(*self->core, [&](Ring& ring) { ring.wait(ticket, waited); }) ? Py_NewRef(Py_None) : closed();
}

PyObject* core_add_group(PyCore* self, PyObject* args) {
  const char *payload, *shortened;
  Py_ssize_t size, short_size;
  if (!PyArg_ParseTuple(args, "y#y#", &payload, &size, &shortened, &short_size)) return nullptr;
  int64_t index = 0;
  bool open = locked(*self->core, [&](Ring& ring) {
    index = ring.add_group({payload, static_cast<size_t>(size)}, {shortened, static_cast<size_t>(short_size)});
  });
  return open ? PyLong_FromLongLong(index) : closed();
}

PyObject* core_remove_group(PyCore* self, PyObject* args) {
  long long index;
  if (!PyArg_ParseTuple(args, "L", &index)) return nullptr;
  return locked(*self->core, [&](Ring& ring) { ring.remove_group(index); }) ? Py_NewRef(Py_None) : closed();
}

PyObject* core_define(PyCore* self, PyObject* args) {
  unsigned int kind;
  const char* payload;
  Py_ssize_t size;
  if (!PyArg_ParseTuple(args, "Iy#", &kind, &payload, &size)) return nullptr;
  if (static_cast<unsigned long>(size) > kMaxPayload) {
    PyErr_SetString(PyExc_ValueError, "the definition is too large");
    return nullptr;
  }
  unsigned int ref = 0, generation = 0;
  bool open = locked(*self->core, [&](Ring& ring) {
    ref = ring.define(kind, payload, static_cast<size_t>(size));
    generation = ring.generation();
  });
  return open ? Py_BuildValue("II", ref, generation) : closed();
}

PyObject* core_count(PyCore* self, PyObject* args) {
  int counter;
  unsigned long long n;
  if (!PyArg_ParseTuple(args, "iK", &counter, &n)) return nullptr;
  if (counter < 0 || counter >= 30) return PyErr_Format(PyExc_IndexError, "there is no counter %d", counter);
  return locked(*self->core, [&](Ring& ring) { ring.count(counter, n); }) ? Py_NewRef(Py_None) : closed();
}

PyObject* core_head(PyCore* self, void*) {
  uint64_t head = 0;
  return locked(*self->core, [&](Ring& ring) { head = ring.head(); }) ? PyLong_FromUnsignedLongLong(head) : closed();
}

PyObject* core_generation(PyCore* self, void*) {
  uint32_t generation = 0;
  bool open = locked(*self->core, [&](Ring& ring) { generation = ring.generation(); });
  return open ? PyLong_FromUnsignedLong(generation) : closed();
}

template <class Function>
PyCFunction method(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef core_methods[] = {
    {"append", method(core_append), METH_FASTCALL, "The call's ticket; 0: its references are stale."},
    {"complete", method(core_complete), METH_FASTCALL, nullptr},
    {"wait", method(core_wait), METH_FASTCALL, nullptr},
    {"add_group", method(core_add_group), METH_VARARGS, nullptr},
    {"remove_group", method(core_remove_group), METH_VARARGS, nullptr},
    {"define", method(core_define), METH_VARARGS, "Reference of a definition, and the generation after it."},
    {"count", method(core_count), METH_VARARGS, nullptr},
    {"close", method(core_close), METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef core_getset[] = {{"head", reinterpret_cast<getter>(core_head), nullptr, nullptr, nullptr},
                             {"generation", reinterpret_cast<getter>(core_generation), nullptr, nullptr, nullptr},
                             {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot core_slots[] = {{Py_tp_new, reinterpret_cast<void*>(core_new)},
                            {Py_tp_dealloc, reinterpret_cast<void*>(core_dealloc)},
                            {Py_tp_methods, core_methods},
                            {Py_tp_getset, core_getset},
                            {0, nullptr}};

PyType_Spec core_spec = {"otel_fr.capture.native._ringwriter.Core", sizeof(PyCore), 0, Py_TPFLAGS_DEFAULT, core_slots};

PyTypeObject* core_type = nullptr;

// ---- Recorder

struct PyRecorder {
  PyObject_HEAD
  Recorder* recorder;  // never freed: see api.cpp
  PythonMisses* misses;
};

PyObject* recorder_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *core, *handlers, *batches;
  unsigned long main_thread;
  if (!PyArg_ParseTuple(args, "O!OO!k", core_type, &core, &handlers, &PyDict_Type, &batches, &main_thread))
    return nullptr;
  auto* self = reinterpret_cast<PyRecorder*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  auto misses = std::make_unique<PythonMisses>(handlers, batches, main_thread);
  self->misses = misses.get();
  self->recorder = new Recorder(reinterpret_cast<PyCore*>(core)->core, std::move(misses), main_thread, batches);
  self->misses->set_recorder(self->recorder);
  return reinterpret_cast<PyObject*>(self);
}

PyObject* recorder_close(PyRecorder* self, PyObject*) {
  self->recorder->close();
  self->misses->clear();
  Py_RETURN_NONE;
}

void recorder_dealloc(PyRecorder* self) {
  if (self->recorder) Py_XDECREF(recorder_close(self, nullptr));
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* recorder_add_group(PyRecorder* self, PyObject* args) {
  const char* name;
  Py_ssize_t size;
  if (!PyArg_ParseTuple(args, "s#", &name, &size)) return nullptr;
  self->recorder->add_group({name, static_cast<size_t>(size)});
  Py_RETURN_NONE;
}

PyObject* recorder_set_index(PyRecorder* self, PyObject* args) {
  const char* name;
  Py_ssize_t size;
  long long index;
  if (!PyArg_ParseTuple(args, "s#L", &name, &size, &index)) return nullptr;
  self->recorder->set_index({name, static_cast<size_t>(size)}, index);
  Py_RETURN_NONE;
}

PyObject* recorder_remove_group(PyRecorder* self, PyObject* args) {
  const char* name;
  Py_ssize_t size;
  if (!PyArg_ParseTuple(args, "s#", &name, &size)) return nullptr;
  self->recorder->remove_group({name, static_cast<size_t>(size)});
  Py_RETURN_NONE;
}

PyObject* recorder_activate(PyRecorder* self, PyObject* args) {
  int active;
  if (!PyArg_ParseTuple(args, "p", &active)) return nullptr;
  set_active(active ? self->recorder : nullptr);
  Py_RETURN_NONE;
}

PyObject* get_on(PyRecorder* self, void*) { return PyBool_FromLong(self->recorder->on); }

int set_on(PyRecorder* self, PyObject* value, void*) {
  int on = value ? PyObject_IsTrue(value) : 0;
  if (on < 0) return -1;
  self->recorder->on = static_cast<uint32_t>(on);
  return 0;
}

PyObject* get_watched(PyRecorder* self, void*) { return PyLong_FromLongLong(self->recorder->core().watched); }

PyMethodDef recorder_methods[] = {
    {"add_group", method(recorder_add_group), METH_VARARGS, nullptr},
    {"set_index", method(recorder_set_index), METH_VARARGS, nullptr},
    {"remove_group", method(recorder_remove_group), METH_VARARGS, nullptr},
    {"activate", method(recorder_activate), METH_VARARGS, "True: the kernels record here; False: nowhere."},
    {"close", method(recorder_close), METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef recorder_getset[] = {
    {"on", reinterpret_cast<getter>(get_on), reinterpret_cast<setter>(set_on), nullptr, nullptr},
    {"watched", reinterpret_cast<getter>(get_watched), nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot recorder_slots[] = {{Py_tp_new, reinterpret_cast<void*>(recorder_new)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(recorder_dealloc)},
                                {Py_tp_methods, recorder_methods},
                                {Py_tp_getset, recorder_getset},
                                {0, nullptr}};

PyType_Spec recorder_spec = {"otel_fr.capture.native._ringwriter.Recorder", sizeof(PyRecorder), 0, Py_TPFLAGS_DEFAULT,
                             recorder_slots};

PyModuleDef module_def = {PyModuleDef_HEAD_INIT, "_ringwriter", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace otel_fr

PyMODINIT_FUNC PyInit__ringwriter() {
  using namespace otel_fr;
  PyObject* module = PyModule_Create(&module_def);
  if (!module) return nullptr;
  core_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&core_spec));
  PyObject* recorder = PyType_FromSpec(&recorder_spec);
  PyObject* address = PyLong_FromVoidPtr(const_cast<OfrApi*>(api()));
  if (!core_type || !recorder || !address || PyModule_AddObject(module, "Core", Py_NewRef(core_type)) < 0 ||
      PyModule_AddObject(module, "Recorder", recorder) < 0 || PyModule_AddObject(module, "API", address) < 0)
    return nullptr;
  return module;
}

#include "misses.hpp"

#include "frames.h"

namespace otel_fr {
namespace {

constexpr Py_ssize_t kNoMain = 64;  // attempts to classify the main thread's frames

// Raises the exception that a signal handler raised while a hook ran, as soon as Python code runs again.
int raise_later(void* exception) {
  auto* value = static_cast<PyObject*>(exception);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value)), value);
  Py_DECREF(value);
  return -1;
}

// An error of otel-fr must not reach the caller. KeyboardInterrupt and SystemExit, which are no errors, come from a signal
// handler, and are raised later.
void keep_exception(Recorder* recorder) {
  if (PyErr_ExceptionMatches(PyExc_Exception)) {
    PyErr_Clear();
    return recorder->failed();
  }
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (value && traceback) PyException_SetTraceback(value, traceback);
  if (value && Py_AddPendingCall(raise_later, Py_NewRef(value))) Py_DECREF(value);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
}

const PyThreadState* state_of(unsigned long thread) {
  PyInterpreterState* interpreter = PyInterpreterState_Main();
  for (PyThreadState* state = PyInterpreterState_ThreadHead(interpreter); state; state = PyThreadState_Next(state))
    if (state->thread_id == thread) return state;
  return nullptr;
}

}  // namespace

PythonMisses::PythonMisses(PyObject* handlers, PyObject* batches, unsigned long main_thread)
    : handlers_(Py_NewRef(handlers)), batches_(Py_NewRef(batches)), main_thread_(main_thread) {}

void PythonMisses::clear() {
  Py_CLEAR(handlers_);
  Py_CLEAR(batches_);
}

// Returns the result, or null for None or an exception.
PyObject* PythonMisses::called(const char* method, const char* format, ...) {
  if (!handlers_) return nullptr;
  PyObject* handlers = Py_NewRef(handlers_);
  PyObject* function = PyObject_GetAttrString(handlers, method);
  Py_DECREF(handlers);
  PyObject* result = nullptr;
  if (function) {
    va_list values;
    va_start(values, format);
    PyObject* arguments = Py_VaBuildValue(format, values);
    va_end(values);
    if (arguments) result = PyObject_CallObject(function, arguments);
    Py_XDECREF(arguments);
    Py_DECREF(function);
  }
  if (!result) {
    keep_exception(recorder_);
  } else if (result == Py_None) {
    Py_CLEAR(result);
  }
  return result;
}

bool PythonMisses::define_group(const OfrCall& call) {
  Gil gil;
  PyObject* result = called("define_group", "(s#)", call.group, static_cast<Py_ssize_t>(call.group_length));
  Py_XDECREF(result);
  return result;
}

bool PythonMisses::define_signature(const OfrCall& call, Signature* signature) {
  Gil gil;
  PyObject* result = called("define_signature", "(s#Iy#)", call.group, static_cast<Py_ssize_t>(call.group_length),
                            call.code, reinterpret_cast<const char*>(call.key),
                            static_cast<Py_ssize_t>(call.key_words * 8));
  if (!result) return false;
  int coalesces = 0;
  unsigned long long timeout = 0;
  long long receives = 0, peer = 0, tag = 0;
  bool good = PyArg_ParseTuple(result, "IIIIIKpLLL", &signature->ref, &signature->generation, &signature->mode,
                               &signature->step, &signature->op_step, &timeout, &coalesces, &receives, &peer,
                               &tag);
  Py_DECREF(result);
  if (!good) PyErr_Clear();
  signature->timeout_ms = timeout;
  signature->coalesces = coalesces;
  signature->pair = {receives, peer, tag};
  return good;
}

bool PythonMisses::define_site(bool of_main, uint32_t* ref, uint32_t* generation) {
  Gil gil;
  PyObject* result = called("define_site", "(i)", static_cast<int>(of_main));
  bool good = result && PyArg_ParseTuple(result, "II", ref, generation);
  if (!good) PyErr_Clear();
  Py_XDECREF(result);
  return good;
}

bool PythonMisses::define_thread(uint32_t* ref, uint32_t* generation) {
  Gil gil;
  PyObject* result = called("define_thread", "()");
  bool good = result && PyArg_ParseTuple(result, "II", ref, generation);
  if (!good) PyErr_Clear();
  Py_XDECREF(result);
  return good;
}

bool PythonMisses::classify(const void* code) {
  Gil gil;
  PyObject* result = called("is_library", "(O)", static_cast<PyObject*>(const_cast<void*>(code)));
  if (!result) return false;
  bool is_library = PyObject_IsTrue(result) == 1;
  Py_DECREF(result);
  if (!recorder_->set_library(code, is_library)) Py_XDECREF(called("forget_codes", "(O)", code));
  return true;
}

bool PythonMisses::main_site(SiteKey* site) {
  Gil gil;
  // The main thread's frames may change whenever it can run Python code. So read them again after each call of a
  // handler.
  for (Py_ssize_t i = 0; i < kNoMain; ++i) {
    recorder_->walk(state_of(main_thread_), site);
    if (!site->unknown) return true;
    if (!classify(site->unknown)) return false;
  }
  *site = {};
  return true;
}

bool PythonMisses::batch(const OfrCall& call, uint64_t* batch) {
  Gil gil;
  PyObject* result = called("batch", "(s#)", call.group, static_cast<Py_ssize_t>(call.group_length));
  if (!result) return false;
  *batch = PyLong_AsUnsignedLongLong(result);
  Py_DECREF(result);
  if (PyErr_Occurred()) PyErr_Clear();
  return true;
}

}  // namespace otel_fr

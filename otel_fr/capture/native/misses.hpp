// Calls from the recorder into Python: `Handlers` in capture/native/recorder.py.
#pragma once

#include "recorder.hpp"

namespace otel_fr {

// Holds the GIL, even in a thread that Python does not know. Preserves an exception that is being raised.
class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) { PyErr_Fetch(&type_, &value_, &traceback_); }
  ~Gil() {
    PyErr_Restore(type_, value_, traceback_);
    PyGILState_Release(state_);
  }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  PyGILState_STATE state_;
  PyObject *type_, *value_, *traceback_;
};

class PythonMisses final : public Misses {
 public:
  // `batches`: torch's dict of the groups that coalesce.
  PythonMisses(PyObject* handlers, PyObject* batches, unsigned long main_thread);

  void set_recorder(Recorder* recorder) { recorder_ = recorder; }

  bool define_group(const OfrCall& call) override;
  bool define_signature(const OfrCall& call, Signature* signature) override;
  bool define_site(bool of_main, uint32_t* ref, uint32_t* generation) override;
  bool define_thread(uint32_t* ref, uint32_t* generation) override;
  bool classify(const void* code) override;
  bool main_site(SiteKey* site) override;
  bool batch(const OfrCall& call, uint64_t* batch) override;

  // Drops all references to Python objects. The caller holds the GIL. Calls of other methods fail from then on.
  void clear();

 private:
  PyObject* called(const char* method, const char* format, ...);

  PyObject *handlers_, *batches_;
  unsigned long main_thread_;
  Recorder* recorder_ = nullptr;
};

}  // namespace otel_fr

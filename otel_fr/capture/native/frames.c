/* CPython has no public API to read frames without making objects, so this uses the internal structures of each version. */
#include "frames.h"

#define Py_BUILD_CORE_MODULE 1
#include <Python.h>

#if PY_VERSION_HEX < 0x030A0000 || PY_VERSION_HEX >= 0x030E0000
#error "the frames of this Python are not known"
#endif
#ifdef Py_GIL_DISABLED
#error "only for a Python with a GIL"
#endif

#if PY_VERSION_HEX < 0x030B0000

#include <frameobject.h>

const void *ofr_frame_first(const void *thread) { return ((const PyThreadState *)thread)->frame; }

const void *ofr_frame_read(const void *frame, OfrFrame *read) {
  const PyFrameObject *object = frame;
  read->code = object->f_code;
  read->position = object->f_lasti;
  return object->f_back;
}

#else

#include <internal/pycore_frame.h>

/* Frames of C code, and frames whose function has not begun, are not shown. */
static const void *first_shown(_PyInterpreterFrame *frame) {
  while (frame && _PyFrame_IsIncomplete(frame)) frame = frame->previous;
  return frame;
}

const void *ofr_frame_first(const void *thread) {
#if PY_VERSION_HEX >= 0x030D0000
  return first_shown(((const PyThreadState *)thread)->current_frame);
#else
  return first_shown(((const PyThreadState *)thread)->cframe->current_frame);
#endif
}

const void *ofr_frame_read(const void *frame, OfrFrame *read) {
  _PyInterpreterFrame *inner = (_PyInterpreterFrame *)frame;
#if PY_VERSION_HEX >= 0x030D0000
  read->code = _PyFrame_GetCode(inner);
#else
  read->code = inner->f_code;
#endif
  read->position = _PyInterpreterFrame_LASTI(inner);
  return first_shown(inner->previous);
}

#endif

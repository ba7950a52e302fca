/* CPython has no public way to read frames without making objects, so this uses the structures of each version. */
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

const void *ofr_frame_back(const void *frame) { return ((const PyFrameObject *)frame)->f_back; }

void *ofr_frame_code(const void *frame) { return ((const PyFrameObject *)frame)->f_code; }

int ofr_frame_position(const void *frame) { return ((const PyFrameObject *)frame)->f_lasti; }

#else

#include <internal/pycore_frame.h>

/* As _PyFrame_IsIncomplete, which Python's own f_back uses. */
static const void *first_complete(const _PyInterpreterFrame *frame) {
  while (frame) {
#if PY_VERSION_HEX >= 0x030C0000
    if (frame->owner == FRAME_OWNED_BY_CSTACK) {
      frame = frame->previous;
      continue;
    }
#endif
    if (!_PyFrame_IsIncomplete((_PyInterpreterFrame *)frame)) return frame;
    frame = frame->previous;
  }
  return NULL;
}

const void *ofr_frame_first(const void *thread) {
#if PY_VERSION_HEX >= 0x030D0000
  return first_complete(((const PyThreadState *)thread)->current_frame);
#else
  return first_complete(((const PyThreadState *)thread)->cframe->current_frame);
#endif
}

const void *ofr_frame_back(const void *frame) { return first_complete(((const _PyInterpreterFrame *)frame)->previous); }

void *ofr_frame_code(const void *frame) {
#if PY_VERSION_HEX >= 0x030D0000
  return _PyFrame_GetCode((_PyInterpreterFrame *)frame);
#else
  return ((const _PyInterpreterFrame *)frame)->f_code;
#endif
}

int ofr_frame_position(const void *frame) { return _PyInterpreterFrame_LASTI((_PyInterpreterFrame *)frame); }

#endif

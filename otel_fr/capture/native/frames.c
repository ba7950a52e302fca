/* CPython has no public way to read frames without making objects, so this uses the structures of each version. */
#include "frames.h"

#define Py_BUILD_CORE_MODULE 1
#include <Python.h>

#include "api.h"

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
  read->is_generator = 0;
  return object->f_back;
}

/* There, every frame is shown. */
int ofr_code_first(const void *code) {
  (void)code;
  return -1;
}

#else

#include <internal/pycore_frame.h>

/* Those of C code have no function. */
static const void *first_of_python(const _PyInterpreterFrame *frame) {
#if PY_VERSION_HEX >= 0x030C0000
  while (frame && frame->owner == FRAME_OWNED_BY_CSTACK) frame = frame->previous;
#endif
  return frame;
}

OFR_HOT const void *ofr_frame_first(const void *thread) {
#if PY_VERSION_HEX >= 0x030D0000
  return first_of_python(((const PyThreadState *)thread)->current_frame);
#else
  return first_of_python(((const PyThreadState *)thread)->cframe->current_frame);
#endif
}

const void *ofr_frame_read(const void *frame, OfrFrame *read) {
  const _PyInterpreterFrame *inner = frame;
#if PY_VERSION_HEX >= 0x030D0000
  read->code = _PyFrame_GetCode((_PyInterpreterFrame *)frame);
#else
  read->code = inner->f_code;
#endif
  read->position = _PyInterpreterFrame_LASTI((_PyInterpreterFrame *)frame);
  read->is_generator = inner->owner == FRAME_OWNED_BY_GENERATOR;
  return first_of_python(inner->previous);
}

/* See _PyFrame_IsIncomplete, which Python's own f_back uses. */
int ofr_code_first(const void *code) { return ((const PyCodeObject *)code)->_co_firsttraceable; }

#endif

OFR_HOT int ofr_frames_are(const void *frame, const OfrFrame *expected, size_t count, int are_all) {
  OfrFrame read;
  for (size_t i = 0; i < count; ++i) {
    if (!frame) return 0;
    frame = ofr_frame_read(frame, &read);
    if (read.code != expected[i].code || read.position != expected[i].position) return 0;
  }
  return !are_all || !frame;
}

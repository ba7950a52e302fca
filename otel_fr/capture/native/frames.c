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

static const void *instruction_of(const void *frame) {
  const PyFrameObject *object = frame;
  return PyBytes_AS_STRING(object->f_code->co_code) + object->f_lasti;
}

static const void *next_outward(const void *frame) { return ((const PyFrameObject *)frame)->f_back; }

static void fetch_frame(const void *frame) { __builtin_prefetch(&((const PyFrameObject *)frame)->f_code); }

const void *ofr_frame_read(const void *frame, OfrFrame *read) {
  const PyFrameObject *object = frame;
  read->place = (OfrPlace){frame, instruction_of(frame)};
  read->code = object->f_code;
  read->position = object->f_lasti;
  read->is_generator = 0;
  return next_outward(frame);
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

static const void *instruction_of(const void *frame) {
#if PY_VERSION_HEX >= 0x030D0000
  return ((const _PyInterpreterFrame *)frame)->instr_ptr;
#else
  return ((const _PyInterpreterFrame *)frame)->prev_instr;
#endif
}

static const void *next_outward(const void *frame) {
  return first_of_python(((const _PyInterpreterFrame *)frame)->previous);
}

static void fetch_frame(const void *frame) { __builtin_prefetch(&((const _PyInterpreterFrame *)frame)->previous); }

const void *ofr_frame_read(const void *frame, OfrFrame *read) {
  const _PyInterpreterFrame *inner = frame;
  read->place = (OfrPlace){frame, instruction_of(frame)};
#if PY_VERSION_HEX >= 0x030D0000
  read->code = _PyFrame_GetCode((_PyInterpreterFrame *)frame);
#else
  read->code = inner->f_code;
#endif
  read->position = _PyInterpreterFrame_LASTI((_PyInterpreterFrame *)frame);
  read->is_generator = inner->owner == FRAME_OWNED_BY_GENERATOR;
  return next_outward(frame);
}

/* See _PyFrame_IsIncomplete, which Python's own f_back uses. */
int ofr_code_first(const void *code) { return ((const PyCodeObject *)code)->_co_firsttraceable; }

#endif

/* Each frame is read where it was the time before, once that is known to be where it is now: so the processor reads them all
 * at once, ahead of the comparisons, and waits for memory once. By the pointer from each frame to the next outward, it would
 * wait for each. */
OFR_HOT int ofr_frames_are(const void *frame, OfrPlace *expected, size_t count, int are_all) {
  for (size_t i = 0; i < count; ++i) fetch_frame(expected[i].frame);
  for (size_t i = 0; i < count; ++i) {
    if (!frame) return 0;
    const void *same = expected[i].frame;
    __asm__("" : "+r"(same)); /* or the compiler reads at `frame`, since they are equal */
    if (__builtin_expect(expected[i].frame != frame, 0)) expected[i].frame = same = frame;
    if (instruction_of(same) != expected[i].instruction) return 0;
    frame = next_outward(same);
  }
  return !are_all || !frame;
}

/* The Python frames of a thread, innermost first, without making frame objects.
 *
 * A thread may read its own frames without the GIL: only it changes them, and they keep their code objects alive.
 * For those of another thread the caller holds the GIL. */
#ifndef OTEL_FR_FRAMES_H
#define OTEL_FR_FRAMES_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What tells a frame from others, as long as its code object lives. */
typedef struct {
  const void *frame;       /* it may exist no longer */
  const void *instruction; /* the address in the code that it is at */
} OfrPlace;

typedef struct {
  OfrPlace place;
  const void *code; /* borrowed */
  int position;     /* in the code */
  int is_generator;
} OfrFrame;

/* The innermost frame of a thread. NULL: none. `thread`: PyThreadState. */
const void *ofr_frame_first(const void *thread);

/* Whether the frames from this one outward are at these instructions, and, with `are_all`, there are no others: 1 or 0.
 * Corrects which frames are expected. */
int ofr_frames_are(const void *frame, OfrPlace *expected, size_t count, int are_all);

/* Reads a frame. Returns the next one outward, or NULL. */
const void *ofr_frame_read(const void *frame, OfrFrame *read);

/* The position from which on a frame of this code object runs its function; before, Python shows no such frame, unless it
 * is a generator's. For the caller to remember: reading it of each frame would be a cache miss each. */
int ofr_code_first(const void *code);

#ifdef __cplusplus
}
#endif
#endif

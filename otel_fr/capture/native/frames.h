/* The Python frames of a thread, innermost first, without making frame objects.
 *
 * A thread may read its own frames without the GIL: only it changes them, and they keep their code objects alive.
 * For those of another thread the caller holds the GIL. */
#ifndef OTEL_FR_FRAMES_H
#define OTEL_FR_FRAMES_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  const void *code; /* borrowed */
  int position;     /* in the code */
  int is_generator;
} OfrFrame;

/* The innermost frame of a thread. NULL: none. `thread`: PyThreadState. */
const void *ofr_frame_first(const void *thread);

/* Reads a frame. Returns the next one outward, or NULL. */
const void *ofr_frame_read(const void *frame, OfrFrame *read);

/* The position from which on a frame of this code object runs its function; before, Python shows no such frame, unless it
 * is a generator's. For the caller to remember: reading it of each frame would be a cache miss each. */
int ofr_code_first(const void *code);

#ifdef __cplusplus
}
#endif
#endif

/* Reads the Python frames of a thread, innermost first, without making frame objects.
 *
 * A thread may read its own frames without the GIL: only it changes them, and they keep their code objects alive.
 * To read the frames of another thread, the caller must hold the GIL. */
#ifndef OTEL_FR_FRAMES_H
#define OTEL_FR_FRAMES_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  const void *code; /* borrowed */
  int position;     /* in the code */
} OfrFrame;

/* Returns the innermost frame that Python shows of a thread (a PyThreadState), or NULL. */
const void *ofr_frame_first(const void *thread);

/* Reads a frame. Returns the next frame outward that Python shows, or NULL. */
const void *ofr_frame_read(const void *frame, OfrFrame *read);

#ifdef __cplusplus
}
#endif
#endif

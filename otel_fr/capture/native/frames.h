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

typedef struct {
  const void *code; /* borrowed */
  int position;     /* in the code */
} OfrFrame;

/* The innermost frame of a thread that Python shows. NULL: none. `thread`: PyThreadState. */
const void *ofr_frame_first(const void *thread);

/* Reads a frame. Returns the next one outward that Python shows, or NULL. */
const void *ofr_frame_read(const void *frame, OfrFrame *read);

#ifdef __cplusplus
}
#endif
#endif

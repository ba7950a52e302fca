/* The Python frames of a thread, innermost first, without making frame objects.
 *
 * A thread may read its own frames without the GIL: only it changes them, and they keep their code objects alive.
 * For those of another thread the caller holds the GIL. */
#ifndef OTEL_FR_FRAMES_H
#define OTEL_FR_FRAMES_H

#ifdef __cplusplus
extern "C" {
#endif

/* The innermost frame of a thread, and the next one outward. NULL: none. `thread`: PyThreadState. */
const void *ofr_frame_first(const void *thread);
const void *ofr_frame_back(const void *frame);

/* Its code object (borrowed), and its position in the code. */
void *ofr_frame_code(const void *frame);
int ofr_frame_position(const void *frame);

#ifdef __cplusplus
}
#endif
#endif

/* Between the ring writer (a CPython extension, free of torch) and the kernel (bound to one torch, free of Python). */
#ifndef OTEL_FR_API_H
#define OTEL_FR_API_H

#include <stddef.h>
#include <stdint.h>

#define OFR_API_VERSION 5

/* What is known of a call before it is passed on. Sizes in words of 8 bytes. */
typedef struct {
  const char *group; /* the process group's c10d name */
  size_t group_length;
  const uint64_t *key; /* equal for calls with equal signature in one group; capture/native/key.py reads it */
  size_t key_words;
  int64_t timeout_ms; /* <= 0: the group's */
  uint32_t code;      /* of the operator */
  uint32_t kind;      /* KIND_* of the ring */
} OfrCall;

/* A recorded call that has not ended: how its end becomes known, and what that needs. */
typedef struct {
  void *recorder;
  uint64_t ticket;
  int64_t group_index;
  uint64_t sequence; /* of a collective; 0: it has none */
  uint32_t mode;     /* capture/completion.py: EndMode; OFR_MODE_BATCH: OFR_MODE_DEVICE, of a member of a batch */
} OfrPending;

typedef struct {
  uint32_t version;
  const uint32_t *on; /* not 0: calls are recorded; may change at any time, by an atomic access */
  /* Records a call. 0: it is not recorded. Never fails; holds no lock when it returns. */
  int (*begin)(const OfrCall *call, OfrPending *pending);
  /* Records an end, from any thread: RecordState, monotonic ns (0: unknown). */
  void (*end)(const OfrPending *pending, uint32_t state, int64_t ended_ns);
  /* Records since when a thread waits for a call, from any thread: monotonic ns, or OFR_POSTED. */
  void (*wait)(const OfrPending *pending, int64_t waited_ns);
  /* A callback waits for the end of a call (1), or exists no longer (-1). */
  void (*watch)(void *recorder, int change);
  /* Counts an error of otel-fr's own. */
  void (*failed)(void);
} OfrApi;

/* Where an operator's arguments are: indexes of its schema; -1: it has none such. */
typedef struct {
  const char *name; /* without the namespace */
  uint32_t code;
  uint32_t kind;
  int32_t group;
  int32_t timeout;
  int32_t reduce_op;
  int32_t tensor_count;
  int32_t tensors[4];
  int32_t number_count; /* root, peer, tag: those it has */
  int32_t numbers[3];
  int32_t list_count; /* output splits, input splits */
  int32_t lists[2];
} OfrOperator;

/* No thread waits for it yet: POSTED of ring/layout.py. */
enum { OFR_POSTED = 1 };

/* RecordState and EndMode, as in Python. */
enum { OFR_COMPLETED = 1, OFR_FAILED = 2, OFR_UNKNOWN = 3 };
enum { OFR_MODE_IGNORE = 0, OFR_MODE_WORK = 1, OFR_MODE_RETURN = 2, OFR_MODE_UNKNOWN = 3, OFR_MODE_DEVICE = 4, OFR_MODE_BATCH = 5 };

#endif

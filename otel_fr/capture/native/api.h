/* Interface between the ring writer (a CPython extension without torch) and the kernel (for one torch, no Python). */
#ifndef OTEL_FR_API_H
#define OTEL_FR_API_H

#include <stddef.h>
#include <stdint.h>

#define OFR_API_VERSION 5

/* A call that the kernel is about to pass on to torch. */
typedef struct {
  const char *group; /* the process group's c10d name */
  size_t group_length;
  const uint64_t *key; /* equal for calls with equal signatures in one group; capture/native/key.py reads it */
  size_t key_words;   /* of 8 bytes */
  int64_t timeout_ms; /* <= 0: the group's timeout */
  uint32_t code;      /* the operator's code */
  uint32_t kind;      /* KIND_* of the ring */
} OfrCall;

/* A recorded call that has not ended. */
typedef struct {
  void *recorder;
  uint64_t ticket;
  int64_t group_index;
  uint64_t sequence; /* the collective's sequence number; 0: not a collective */
  uint32_t mode;     /* how its end becomes known: an OFR_MODE_* */
} OfrPending;

typedef struct {
  uint32_t version;
  const uint32_t *on; /* not 0: calls are recorded. May change at any time, so read it atomically */
  /* Records a call. Returns 0 if the call is not recorded. Never fails; holds no lock when it returns. */
  int (*begin)(const OfrCall *call, OfrPending *pending);
  /* Records the end of a call: its RecordState, and monotonic ns (0: unknown). Any thread may call this. */
  void (*end)(const OfrPending *pending, uint32_t state, int64_t ended_ns);
  /* Records since when a thread waits for a call: monotonic ns, or OFR_POSTED. Any thread may call this. */
  void (*wait)(const OfrPending *pending, int64_t waited_ns);
  /* Counts callbacks that wait for the end of a call: 1: there is one more; -1: there is one less. */
  void (*watch)(void *recorder, int change);
  /* Counts an error in otel-fr's own code. */
  void (*failed)(void);
} OfrApi;

/* Positions of an operator's arguments in its schema; -1: it has no such argument. */
typedef struct {
  const char *name; /* without the namespace */
  uint32_t code;
  uint32_t kind;
  int32_t group;
  int32_t timeout;
  int32_t reduce_op;
  int32_t tensor_count;
  int32_t tensors[4];
  int32_t number_count; /* root, peer, tag, if the operator has them */
  int32_t numbers[3];
  int32_t list_count; /* output splits, input splits, if the operator has them */
  int32_t lists[2];
} OfrOperator;

/* No thread waits for the call yet: POSTED of ring/layout.py. */
enum { OFR_POSTED = 1 };

/* RecordState and EndMode, as in Python. OFR_MODE_BATCH: OFR_MODE_DEVICE for a member of a batch. */
enum { OFR_COMPLETED = 1, OFR_FAILED = 2, OFR_UNKNOWN = 3 };
enum { OFR_MODE_IGNORE = 0, OFR_MODE_WORK = 1, OFR_MODE_RETURN = 2, OFR_MODE_UNKNOWN = 3, OFR_MODE_DEVICE = 4, OFR_MODE_BATCH = 5 };

#endif

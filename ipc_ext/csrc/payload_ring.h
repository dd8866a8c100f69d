/* Payload ring: room for tensors, released in any order. See payload_ring.c. */
#pragma once
#include "api.h"
#include "bell.h"

#include <pthread.h>
#include <stdalign.h>

/* What is said about the payload that begins at a granule. The tag is generation << 2 | state. */
typedef struct {
    _Atomic uint64_t tag;
    _Atomic uint64_t nbytes;
} ss_slot;

typedef struct {
    alignas(64) _Atomic uint64_t used;   /* bytes; the producer adds, whoever releases subtracts */
    alignas(64) ss_bell_word space_bell; /* producers sleep here */
    alignas(64) ss_slot slots[];         /* one for each granule */
} ss_payload_shared;

struct ss_payload_ring {
    ss_segment *segment;
    const _Atomic uint32_t *shut;
    ss_payload_shared *shared;
    unsigned char *data;
    uint64_t limit, capacity, granule, slots; /* the granule is the limit's */
    ss_bell space;
    _Atomic uint64_t held;      /* bytes under leases of this process */
    _Atomic uint64_t *held_map; /* one bit for each granule of theirs */
    alignas(64) pthread_mutex_t lock; /* producers of this process; guards the rest */
    uint64_t generation;
    uint32_t *spans; /* granules of the live payload that begins here; 0: none does */
};

uint64_t ss_payload_table_bytes(uint64_t capacity);
int ss_payload_open(ss_payload_ring *ring, void *table, void *data, uint64_t limit);
void ss_payload_close(ss_payload_ring *ring);

void ss_segment_hold(ss_segment *segment); /* in segment.c */

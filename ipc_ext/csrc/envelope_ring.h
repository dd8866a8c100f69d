/* Envelope ring: small frames, in order, one consumer. See envelope_ring.c. */
#pragma once
#include "api.h"
#include "bell.h"

#include <pthread.h>
#include <stdalign.h>

/* What both sides map. Each cursor has a cache line of its own: the two sides would otherwise take
 * the line from each other on every frame. */
typedef struct {
    alignas(64) _Atomic uint64_t head;       /* bytes ever pushed; the producer writes */
    alignas(64) _Atomic uint64_t tail;       /* bytes ever drained; the consumer writes */
    alignas(64) ss_bell_word data_bell;      /* the consumer sleeps here */
    alignas(64) ss_bell_word space_bell;     /* producers sleep here */
    alignas(64) unsigned char data[];
} ss_envelope_shared;

/* One side's own view; nothing in it can be changed by the peer. */
struct ss_envelope_ring {
    ss_segment *segment;
    const _Atomic uint32_t *shut;
    ss_envelope_shared *shared;
    uint64_t capacity;
    ss_bell data, space;
    alignas(64) pthread_mutex_t lock; /* producers of this process; guards the next two */
    uint64_t head;
    uint64_t seen_tail;
    alignas(64) uint64_t tail; /* the consumer's */
};

int ss_envelope_capacity_ok(uint64_t capacity);
uint64_t ss_envelope_bytes(uint64_t capacity);
void ss_envelope_open(ss_envelope_ring *ring, void *memory, uint64_t capacity);

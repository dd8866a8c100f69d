/* Payload ring: room for tensors, given in order, returned in any order. See payload_ring.c. */
#pragma once
#include "api.h"
#include "bell.h"

#include <pthread.h>
#include <stdalign.h>

/* One reservation. Its tag is generation << 2 | state. */
typedef struct {
    _Atomic uint64_t tag;
    _Atomic uint64_t offset; /* of the payload in the data region */
    _Atomic uint64_t nbytes;
    _Atomic uint64_t end; /* position (bytes ever reserved) just past it */
} ss_slot;

typedef struct {
    alignas(64) _Atomic uint64_t head; /* reservations ever made; the producer writes this line */
    _Atomic uint64_t head_position;    /* bytes ever reserved */
    _Atomic uint64_t tail;             /* reservations ever reclaimed */
    _Atomic uint64_t tail_position;
    alignas(64) ss_bell_word space_bell; /* producers sleep here */
    alignas(64) ss_slot slots[];
} ss_payload_shared;

struct ss_payload_ring {
    ss_segment *segment;
    const _Atomic uint32_t *shut;
    ss_payload_shared *shared;
    unsigned char *data;
    uint64_t capacity, granule, slots;
    ss_bell space;
    _Atomic uint64_t held; /* bytes under leases of this process */
    alignas(64) pthread_mutex_t lock; /* producers of this process; guards the rest */
    uint64_t head, head_position;
    uint64_t tail, tail_position;
};

uint64_t ss_payload_table_bytes(uint64_t capacity);
int ss_payload_open(ss_payload_ring *ring, void *table, void *data, uint64_t capacity);

/* LEAD: see LEAD_NOTE_payload_ring.txt in this folder before going on with this file.
 *
 * Payload ring: room for tensors, given in order, returned in any order.
 *
 * A data region, page-aligned, and beside it a table of reservations. A reservation takes a whole
 * number of granules (a page, or more in rings above 64 MiB), so payloads are page-aligned, a payload
 * without bytes still has a place of its own, and the table, with one slot for each granule, can never
 * be full before the data region is. A payload is contiguous: one that would cross the end skips to the
 * start, and what it skipped belongs to it. With payloads of at most a quarter of the ring, an empty
 * ring always has room, wherever it stands.
 *
 * Reservation n (counted from 0) lives in slot n % slots with generation n + 1, a number that is
 * never used again. The tag holds generation and state in one word, so that each change of state is one
 * compare-and-swap that also proves the handle:
 *
 *     RESERVED -> COMMITTED -> RELEASED        (RESERVED -> RELEASED: the producer gives up)
 *                 COMMITTED -> LEASED -> RELEASED   (a lease alone ends its payload)
 *
 * Only the producer moves the cursors: before it reserves, it takes back the released reservations at
 * the tail. The peer only flips tags. `used` therefore walks over the released prefix without
 * moving anything, so that both sides see room as soon as it is released.
 *
 * Ordering: a release publishes "we no longer touch these bytes", and the producer acquires it when it
 * reclaims. A commit publishes the bytes to whoever checks the handle. A release is seq_cst for the
 * reason that bell.c gives.
 *
 * Cursors are private, as in the envelope ring. What is read from the table is loaded once and
 * checked; a handle is compared with its slot and bounded by the ring before any address comes of it.
 */
#include "payload_ring.h"

#include <stddef.h>

enum { PAGE = 4096, MAX_SLOTS = 16384 };
static const uint64_t MAX_CAPACITY = UINT64_C(1) << 44;

enum state { RELEASED, RESERVED, COMMITTED, LEASED };

static uint64_t tag_of(uint64_t generation, enum state state) { return generation << 2 | state; }

static uint64_t granule_of(uint64_t bytes)
{
    uint64_t granule = PAGE;
    while (granule * MAX_SLOTS < bytes) granule *= 2;
    return granule;
}

static uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

/* Rounds up to four granules at a time, so that a quarter of the ring is a whole number of them. */
uint64_t ss_payload_capacity(uint64_t bytes)
{
    if (bytes == 0 || bytes > MAX_CAPACITY) return 0;
    return round_up(bytes, 4 * granule_of(bytes));
}

uint64_t ss_payload_table_bytes(uint64_t capacity)
{
    return sizeof(ss_payload_shared) + capacity / granule_of(capacity) * sizeof(ss_slot);
}

/* Fresh shared memory is all zeros: an empty ring whose slots are all RELEASED, generation 0. */
int ss_payload_open(ss_payload_ring *ring, void *table, void *data, uint64_t capacity)
{
    ring->shared = table;
    ring->data = data;
    ring->capacity = capacity;
    ring->granule = granule_of(capacity);
    ring->slots = capacity / ring->granule;
    ring->space.word = &ring->shared->space_bell;
    ring->head = atomic_load_explicit(&ring->shared->head, memory_order_relaxed);
    ring->head_position = atomic_load_explicit(&ring->shared->head_position, memory_order_relaxed);
    ring->tail = atomic_load_explicit(&ring->shared->tail, memory_order_relaxed);
    ring->tail_position = atomic_load_explicit(&ring->shared->tail_position, memory_order_relaxed);
    pthread_mutex_init(&ring->lock, NULL);
    return ring->head - ring->tail <= ring->slots &&
           ring->head_position - ring->tail_position <= capacity &&
           ring->head_position % ring->granule == 0 && ring->tail_position % ring->granule == 0;
}

static int is_shut(const ss_payload_ring *ring)
{
    return atomic_load_explicit(ring->shut, memory_order_seq_cst) != 0;
}

static ss_slot *slot_of(const ss_payload_ring *ring, uint64_t generation)
{
    return &ring->shared->slots[(generation - 1) % ring->slots];
}

/* Moves (*tail, *position) over the released reservations in front of `head`. */
static int skip_released(const ss_payload_ring *ring, uint64_t head, uint64_t *tail,
                         uint64_t *position)
{
    while (*tail != head) {
        ss_slot *slot = slot_of(ring, *tail + 1);
        uint64_t tag = tag_of(*tail + 1, RELEASED);
        if (atomic_load_explicit(&slot->tag, memory_order_acquire) != tag) return SS_TRUE;
        uint64_t end = atomic_load_explicit(&slot->end, memory_order_acquire);
        /* A reader that is not the producer may meet a slot that is being given anew. */
        if (atomic_load_explicit(&slot->tag, memory_order_relaxed) != tag) return SS_TRUE;
        uint64_t span = end - *position;
        if (span == 0 || span > ring->capacity || span % ring->granule) return SS_CORRUPT;
        *position = end;
        *tail += 1;
    }
    return SS_TRUE;
}

static int reclaim(ss_payload_ring *ring)
{
    uint64_t tail = ring->tail, position = ring->tail_position;
    if (skip_released(ring, ring->head, &tail, &position) != SS_TRUE) return SS_CORRUPT;
    if (ring->head_position - position > ring->capacity) return SS_CORRUPT;
    ring->tail = tail;
    ring->tail_position = position;
    atomic_store_explicit(&ring->shared->tail, tail, memory_order_release);
    atomic_store_explicit(&ring->shared->tail_position, position, memory_order_release);
    return SS_TRUE;
}

/* The tag is taken out of use first and set last. Release on every field: whoever sees a new field
 * sees that the old tag is gone, and knows that what was read does not belong together. */
static ss_reservation fill_slot(ss_payload_ring *ring, uint64_t offset, uint64_t nbytes,
                                uint64_t end)
{
    uint64_t generation = ring->head + 1;
    ss_slot *slot = slot_of(ring, generation);
    atomic_store_explicit(&slot->tag, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->offset, offset, memory_order_release);
    atomic_store_explicit(&slot->nbytes, nbytes, memory_order_release);
    atomic_store_explicit(&slot->end, end, memory_order_release);
    atomic_store_explicit(&slot->tag, tag_of(generation, RESERVED), memory_order_release);
    ring->head = generation;
    ring->head_position = end;
    atomic_store_explicit(&ring->shared->head, ring->head, memory_order_release);
    atomic_store_explicit(&ring->shared->head_position, end, memory_order_release);
    return (ss_reservation){SS_TRUE, offset, generation};
}

static ss_reservation reserve_locked(ss_payload_ring *ring, uint64_t nbytes)
{
    int status = reclaim(ring);
    if (status != SS_TRUE) return (ss_reservation){.status = status};
    uint64_t span = nbytes ? round_up(nbytes, ring->granule) : ring->granule;
    uint64_t offset = ring->head_position % ring->capacity;
    uint64_t skipped = ring->capacity - offset < span ? ring->capacity - offset : 0;
    uint64_t room = ring->capacity - (ring->head_position - ring->tail_position);
    if (skipped + span > room) return (ss_reservation){.status = SS_FALSE};
    return fill_slot(ring, skipped ? 0 : offset, nbytes, ring->head_position + skipped + span);
}

ss_reservation ss_payload_reserve(ss_payload_ring *ring, uint64_t nbytes)
{
    if (ring == NULL) return (ss_reservation){.status = SS_SHUT};
    if (nbytes > ring->capacity / 4) return (ss_reservation){.status = SS_TOO_LARGE};
    pthread_mutex_lock(&ring->lock);
    ss_reservation reservation = reserve_locked(ring, nbytes);
    pthread_mutex_unlock(&ring->lock);
    return reservation;
}

ss_reservation ss_payload_reserve_wait(ss_payload_ring *ring, uint64_t nbytes, int64_t timeout)
{
    const ss_reservation shut = {.status = SS_SHUT};
    if (ring == NULL || is_shut(ring)) return shut;
    ss_reservation reservation = ss_payload_reserve(ring, nbytes);
    if (reservation.status != SS_FALSE) return reservation;
    uint32_t seen = ss_bell_arm(&ring->space);
    if (is_shut(ring)) return shut;
    reservation = ss_payload_reserve(ring, nbytes);
    if (reservation.status != SS_FALSE) return reservation;
    ss_bell_sleep(&ring->space, seen, timeout);
    return is_shut(ring) ? shut : ss_payload_reserve(ring, nbytes);
}

/* The caller tries once more after this, and sleeps only if there is still no room. */
int ss_payload_arm_space(ss_payload_ring *ring)
{
    if (ring == NULL) return SS_SHUT;
    ss_bell_arm(&ring->space);
    return is_shut(ring) ? SS_SHUT : SS_TRUE;
}

/* Returns the slot that the handle names, or NULL. The bound holds whatever the slot says. */
static ss_slot *find(const ss_payload_ring *ring, uint64_t offset, uint64_t generation,
                     uint64_t nbytes)
{
    if (generation == 0 || generation > UINT64_MAX >> 2) return NULL;
    if (offset > ring->capacity || nbytes > ring->capacity - offset) return NULL;
    ss_slot *slot = slot_of(ring, generation);
    uint64_t tag = atomic_load_explicit(&slot->tag, memory_order_acquire);
    if (tag >> 2 != generation || (tag & 3) == RELEASED) return NULL;
    if (atomic_load_explicit(&slot->offset, memory_order_relaxed) != offset) return NULL;
    if (atomic_load_explicit(&slot->nbytes, memory_order_relaxed) != nbytes) return NULL;
    return slot;
}

static int move(ss_slot *slot, uint64_t generation, enum state from, enum state to)
{
    uint64_t tag = tag_of(generation, from);
    return atomic_compare_exchange_strong_explicit(&slot->tag, &tag, tag_of(generation, to),
                                                   memory_order_seq_cst, memory_order_relaxed);
}

int ss_payload_check(ss_payload_ring *ring, uint64_t offset, uint64_t generation, uint64_t nbytes)
{
    if (ring == NULL) return SS_SHUT;
    return find(ring, offset, generation, nbytes) ? SS_TRUE : SS_STALE;
}

int ss_payload_commit(ss_payload_ring *ring, uint64_t offset, uint64_t generation,
                      uint64_t nbytes)
{
    if (ring == NULL) return SS_SHUT;
    ss_slot *slot = find(ring, offset, generation, nbytes);
    return slot && move(slot, generation, RESERVED, COMMITTED) ? SS_TRUE : SS_STALE;
}

int ss_payload_release(ss_payload_ring *ring, uint64_t offset, uint64_t generation,
                       uint64_t nbytes)
{
    if (ring == NULL) return SS_SHUT;
    ss_slot *slot = find(ring, offset, generation, nbytes);
    if (slot == NULL || !(move(slot, generation, COMMITTED, RELEASED) ||
                          move(slot, generation, RESERVED, RELEASED))) {
        return SS_STALE;
    }
    ss_bell_notify(&ring->space);
    return SS_TRUE;
}

int ss_payload_lease(ss_payload_ring *ring, uint64_t offset, uint64_t generation, uint64_t nbytes)
{
    if (ring == NULL) return SS_SHUT;
    ss_slot *slot = find(ring, offset, generation, nbytes);
    if (slot == NULL || !move(slot, generation, COMMITTED, LEASED)) return SS_STALE;
    atomic_fetch_add_explicit(&ring->held, nbytes, memory_order_relaxed);
    return SS_TRUE;
}

/* Ends a lease: called by finalisers, from any thread, so it takes no lock. `data` is there for the
 * caller's finaliser protocol only. A slot that the peer has damaged is left as it is. */
void ss_payload_unlease(ss_payload_ring *ring, uint64_t generation, uint64_t nbytes, char *data)
{
    (void)data;
    atomic_fetch_sub_explicit(&ring->held, nbytes, memory_order_relaxed);
    if (move(slot_of(ring, generation), generation, LEASED, RELEASED)) {
        ss_bell_notify(&ring->space);
    }
}

char *ss_payload_data(const ss_payload_ring *ring) { return (char *)ring->data; }

uint64_t ss_payload_size(const ss_payload_ring *ring) { return ring ? ring->capacity : 0; }

uint64_t ss_payload_chunk(const ss_payload_ring *ring) { return ring ? ring->capacity / 4 : 0; }

/* A snapshot, exact when nobody moves. The tail is read first: what is read later can only be further
 * on. A damaged table counts as a full ring. */
uint64_t ss_payload_used(const ss_payload_ring *ring)
{
    if (ring == NULL) return 0;
    uint64_t position = atomic_load_explicit(&ring->shared->tail_position, memory_order_acquire);
    uint64_t tail = atomic_load_explicit(&ring->shared->tail, memory_order_acquire);
    uint64_t head = atomic_load_explicit(&ring->shared->head, memory_order_acquire);
    if (head - tail > ring->slots) return ring->capacity;
    int status = skip_released(ring, head, &tail, &position);
    uint64_t end = atomic_load_explicit(&ring->shared->head_position, memory_order_acquire);
    uint64_t used = end - position;
    return status == SS_TRUE && used < ring->capacity ? used : ring->capacity;
}

uint64_t ss_payload_held(const ss_payload_ring *ring)
{
    return ring ? atomic_load_explicit(&ring->held, memory_order_relaxed) : 0;
}

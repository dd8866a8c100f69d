/* Payload ring: room for tensors, released in any order.
 *
 * A page-aligned data region is cut into granules (a page, or more in rings above 64 MiB), and
 * beside it lies a table with a slot for each granule. A payload takes whole granules, at least
 * one, in one piece; its slot is that of its first granule. So payloads are page-aligned, a payload
 * without bytes still has a place of its own, and the table can never be full before the region is.
 *
 * Room is given first-fit: the search goes up from the start, takes back payloads that were
 * released, and steps over the others. A payload that is kept for ever costs its own room and
 * nothing else. The same few pages are used again and again while little is in flight, which the
 * caches like, and what is kept gathers at the start, which leaves the rest in one piece.
 *
 * A reservation's generation is never used again. The tag holds generation and state in one word,
 * so that each change of state is one compare-and-swap that also proves the handle:
 *
 *     RESERVED -> COMMITTED -> RELEASED             (RESERVED -> RELEASED: the producer gives up)
 *                 COMMITTED -> LEASED -> RELEASED   (a lease alone ends its payload)
 *
 * The producer alone decides what is where, from private extents; of the table it trusts only that
 * a payload was released. A handle is compared with its slot and bounded by the ring before any
 * address comes of it. The worst that a hostile peer can do is to release too early, or to lie
 * about `used`.
 *
 * Ordering: a release publishes "we no longer touch these bytes", and the producer acquires it when
 * it takes them back. A commit publishes the bytes to whoever checks the handle. A release is
 * seq_cst for the reason that bell.c gives, and so is the load that looks for it.
 *
 * Payloads that are kept can cut the region up. Since payloads are at most a quarter of the ring,
 * room for the next one comes back as long as the leases leave one such gap between them: that is
 * what ss_payload_has_gap tells a consumer, who then keeps its last lease or copies.
 */
#include "payload_ring.h"

#include <stdlib.h>

enum { PAGE = 4096, MAX_SLOTS = 16384, WORD_BITS = 64 };
static const uint64_t MAX_CAPACITY = UINT64_C(1) << 44;

enum state { RELEASED, RESERVED, COMMITTED, LEASED };

static uint64_t tag_of(uint64_t generation, enum state state) { return generation << 2 | state; }

static uint64_t granule_of(uint64_t bytes)
{
    uint64_t granule = PAGE;
    while (granule * MAX_SLOTS < bytes) granule *= 2;
    return granule;
}

static uint64_t ceiling(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit; }

/* Rounds up to four granules at a time, so that a quarter of the ring is a whole number of them. */
uint64_t ss_payload_capacity(uint64_t bytes)
{
    if (bytes == 0 || bytes > MAX_CAPACITY) return 0;
    uint64_t unit = 4 * granule_of(bytes);
    return ceiling(bytes, unit) * unit;
}

uint64_t ss_payload_table_bytes(uint64_t capacity)
{
    return sizeof(ss_payload_shared) + capacity / granule_of(capacity) * sizeof(ss_slot);
}

/* Fresh shared memory is all zeros: every slot RELEASED, of generation 0. Returns 0: no memory. */
int ss_payload_open(ss_payload_ring *ring, void *table, void *data, uint64_t limit)
{
    ring->shared = table;
    ring->data = data;
    ring->limit = ring->capacity = limit;
    ring->granule = granule_of(limit);
    ring->slots = limit / ring->granule;
    ring->space.word = &ring->shared->space_bell;
    ring->spans = calloc(ring->slots, sizeof *ring->spans);
    ring->held_map = calloc(ceiling(ring->slots, WORD_BITS), sizeof *ring->held_map);
    pthread_mutex_init(&ring->lock, NULL);
    return ring->spans != NULL && ring->held_map != NULL;
}

void ss_payload_close(ss_payload_ring *ring)
{
    pthread_mutex_destroy(&ring->lock);
    free(ring->held_map);
    free(ring->spans);
}

/* Uses the first `bytes` of the region, rounded up, from now on. Each side keeps its own capacity,
 * and the consumer's may be behind only while nothing lies beyond it. It grows while payloads live,
 * whose places stay what they are; it shrinks before the first of them. The caller sees to it that
 * no other thread is in the ring. */
int ss_payload_resize(ss_payload_ring *ring, uint64_t bytes)
{
    if (ring == NULL) return SS_SHUT;
    uint64_t unit = 4 * ring->granule, capacity = ceiling(bytes, unit) * unit;
    if (bytes == 0 || bytes > ring->limit) return SS_RANGE;
    pthread_mutex_lock(&ring->lock);
    int used = ring->generation || atomic_load_explicit(&ring->held, memory_order_relaxed);
    int allowed = capacity >= ring->capacity || !used;
    if (allowed) {
        ring->capacity = capacity;
        ring->slots = capacity / ring->granule;
    }
    pthread_mutex_unlock(&ring->lock);
    return allowed ? SS_TRUE : SS_FALSE;
}

static int is_shut(const ss_payload_ring *ring)
{
    return atomic_load_explicit(ring->shut, memory_order_seq_cst) != 0;
}

static uint64_t granules_of(const ss_payload_ring *ring, uint64_t nbytes)
{
    return nbytes ? ceiling(nbytes, ring->granule) : 1;
}

/* Returns the granules of the live payload at `at`, after taking it back if it was released. */
static uint64_t live_span(ss_payload_ring *ring, uint64_t at)
{
    if (ring->spans[at] == 0) return 0;
    uint64_t tag = atomic_load_explicit(&ring->shared->slots[at].tag, memory_order_seq_cst);
    if ((tag & 3) == RELEASED) ring->spans[at] = 0;
    return ring->spans[at];
}

/* Returns the first of `need` free granules in a row, or `slots`. `at` only ever stops where a
 * payload begins or on a free granule. */
static uint64_t find_room(ss_payload_ring *ring, uint64_t need)
{
    for (uint64_t at = 0, row = 0; at < ring->slots;) {
        uint64_t span = live_span(ring, at);
        row = span ? 0 : row + 1;
        at += span ? span : 1;
        if (row == need) return at - need;
    }
    return ring->slots;
}

static ss_reservation reserve_locked(ss_payload_ring *ring, uint64_t nbytes)
{
    uint64_t need = granules_of(ring, nbytes), at = find_room(ring, need);
    if (at == ring->slots) return (ss_reservation){.status = SS_FALSE};
    uint64_t generation = ++ring->generation;
    ss_slot *slot = &ring->shared->slots[at];
    atomic_fetch_add_explicit(&ring->shared->used, need * ring->granule, memory_order_relaxed);
    atomic_store_explicit(&slot->nbytes, nbytes, memory_order_relaxed);
    /* Release: whoever sees the tag sees the length too. */
    atomic_store_explicit(&slot->tag, tag_of(generation, RESERVED), memory_order_release);
    ring->spans[at] = (uint32_t)need;
    return (ss_reservation){SS_TRUE, at * ring->granule, generation};
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

/* The flag is not taken back once there is room: another thread of ours may sleep on it. */
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

/* Returns the slot of a live payload, or NULL. The bounds hold whatever the slot says. */
static ss_slot *find(const ss_payload_ring *ring, uint64_t offset, uint64_t generation,
                     uint64_t nbytes)
{
    if (generation > UINT64_MAX >> 2 || offset % ring->granule) return NULL;
    if (offset >= ring->capacity || nbytes > ring->capacity - offset) return NULL;
    ss_slot *slot = &ring->shared->slots[offset / ring->granule];
    uint64_t tag = atomic_load_explicit(&slot->tag, memory_order_acquire);
    if (tag >> 2 != generation || (tag & 3) == RELEASED) return NULL;
    return atomic_load_explicit(&slot->nbytes, memory_order_relaxed) == nbytes ? slot : NULL;
}

static int move(ss_slot *slot, uint64_t generation, enum state from, enum state to)
{
    uint64_t tag = tag_of(generation, from);
    return atomic_compare_exchange_strong_explicit(&slot->tag, &tag, tag_of(generation, to),
                                                   memory_order_seq_cst, memory_order_relaxed);
}

int ss_payload_check(const ss_payload_ring *ring, uint64_t offset, uint64_t generation,
                     uint64_t nbytes)
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

static int give_back(ss_payload_ring *ring, ss_slot *slot, uint64_t generation, uint64_t nbytes,
                     enum state from)
{
    if (!move(slot, generation, from, RELEASED)) return SS_STALE;
    uint64_t bytes = granules_of(ring, nbytes) * ring->granule;
    atomic_fetch_sub_explicit(&ring->shared->used, bytes, memory_order_relaxed);
    ss_bell_notify(&ring->space);
    return SS_TRUE;
}

int ss_payload_release(ss_payload_ring *ring, uint64_t offset, uint64_t generation,
                       uint64_t nbytes)
{
    if (ring == NULL) return SS_SHUT;
    ss_slot *slot = find(ring, offset, generation, nbytes);
    if (slot == NULL) return SS_STALE;
    int status = give_back(ring, slot, generation, nbytes, COMMITTED);
    return status == SS_TRUE ? status : give_back(ring, slot, generation, nbytes, RESERVED);
}

/* Sets or clears the bits of a payload's granules, a word at a time. */
static void mark_held(ss_payload_ring *ring, uint64_t offset, uint64_t nbytes, int held)
{
    uint64_t at = offset / ring->granule, end = at + granules_of(ring, nbytes);
    while (at < end) {
        uint64_t bit = at % WORD_BITS, count = WORD_BITS - bit;
        if (count > end - at) count = end - at;
        uint64_t mask = (UINT64_MAX >> (WORD_BITS - count)) << bit;
        _Atomic uint64_t *word = &ring->held_map[at / WORD_BITS];
        if (held) {
            atomic_fetch_or_explicit(word, mask, memory_order_relaxed);
        } else {
            atomic_fetch_and_explicit(word, ~mask, memory_order_relaxed);
        }
        at += count;
    }
}

int ss_payload_lease(ss_payload_ring *ring, uint64_t offset, uint64_t generation, uint64_t nbytes)
{
    if (ring == NULL) return SS_SHUT;
    ss_slot *slot = find(ring, offset, generation, nbytes);
    if (slot == NULL || !move(slot, generation, COMMITTED, LEASED)) return SS_STALE;
    ss_segment_hold(ring->segment);
    atomic_fetch_add_explicit(&ring->held, nbytes, memory_order_relaxed);
    mark_held(ring, offset, nbytes, 1);
    return SS_TRUE;
}

/* Ends a lease. Finalisers call this, on any thread, so it takes no lock, and in any order, so a
 * lease has its own hold on the segment. `data` is what the caller's finaliser is handed, and not
 * needed. Where the peer has damaged the slot, nothing can be released. */
void ss_payload_unlease(ss_payload_ring *ring, uint64_t offset, uint64_t generation,
                        uint64_t nbytes, char *data)
{
    (void)data;
    atomic_fetch_sub_explicit(&ring->held, nbytes, memory_order_relaxed);
    mark_held(ring, offset, nbytes, 0);
    ss_slot *slot = &ring->shared->slots[offset / ring->granule];
    give_back(ring, slot, generation, nbytes, LEASED);
    ss_segment_drop(ring->segment);
}

/* SS_TRUE: the leases of this process leave a quarter of the ring in one piece between them. */
int ss_payload_has_gap(const ss_payload_ring *ring)
{
    if (ring == NULL) return SS_SHUT;
    uint64_t row = 0;
    for (uint64_t at = 0; at < ring->slots && row < ring->slots / 4;) {
        uint64_t word = atomic_load_explicit(&ring->held_map[at / WORD_BITS], memory_order_relaxed);
        int whole = word == 0 && at % WORD_BITS == 0 && ring->slots - at >= WORD_BITS;
        uint64_t count = whole ? WORD_BITS : 1;
        row = word >> at % WORD_BITS & 1 ? 0 : row + count;
        at += count;
    }
    return row >= ring->slots / 4;
}

char *ss_payload_data(const ss_payload_ring *ring) { return (char *)ring->data; }

uint64_t ss_payload_size(const ss_payload_ring *ring) { return ring ? ring->capacity : 0; }

uint64_t ss_payload_chunk(const ss_payload_ring *ring) { return ring ? ring->capacity / 4 : 0; }

/* The peer adds to this number too: whatever it says, the answer is one that a ring can give. */
uint64_t ss_payload_used(const ss_payload_ring *ring)
{
    if (ring == NULL) return 0;
    uint64_t used = atomic_load_explicit(&ring->shared->used, memory_order_relaxed);
    return used < ring->capacity ? used : ring->capacity;
}

uint64_t ss_payload_held(const ss_payload_ring *ring)
{
    return ring ? atomic_load_explicit(&ring->held, memory_order_relaxed) : 0;
}

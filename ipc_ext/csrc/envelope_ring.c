/* Envelope ring: small frames, in order, one consumer.
 *
 * The ring is a power of two of bytes. A frame is a 64-bit length followed by its bytes, padded to
 * a multiple of 8; so a length never straddles the end of the ring, while a frame's bytes may. head
 * and tail count bytes for ever (2^64 of them last for centuries), their difference is what is in
 * the ring.
 *
 * Each side advances its own cursor from a private copy and only publishes it; what it reads of the
 * peer's cursor, and every length, is loaded once into a local and checked before it is used. A
 * hostile or damaged value is thus SS_CORRUPT, never an access out of bounds.
 *
 * Ordering: the producer's store of head publishes the frame's bytes, the consumer's load of head
 * acquires them; the consumer's store of tail hands the space back, the producer's load of tail
 * acquires it. Both stores are seq_cst, more than release, for the reason that bell.c gives.
 *
 * Several threads of the producing process share a mutex in private memory. It is held for a copy
 * and never while asleep, and a process that dies with it in hand takes it along.
 */
#include "envelope_ring.h"

#include <string.h>

enum { LENGTH_BYTES = 8, MIN_CAPACITY = 64, CACHE_LINE = 64, FETCHED_AHEAD = 256 };
static const uint64_t MAX_CAPACITY = UINT64_C(1) << 30;

_Static_assert(sizeof(_Atomic uint64_t) == 8 && ATOMIC_LLONG_LOCK_FREE == 2,
               "atomics between processes must be lock-free");

int ss_envelope_capacity_ok(uint64_t capacity)
{
    return capacity >= MIN_CAPACITY && capacity <= MAX_CAPACITY &&
           (capacity & (capacity - 1)) == 0;
}

uint64_t ss_envelope_bytes(uint64_t capacity) { return sizeof(ss_envelope_shared) + capacity; }

/* Fresh shared memory is all zeros, which is an empty ring. Each side opens it once, before it has
 * done anything with it, so both start at zero, whatever the peer may have pushed already. */
void ss_envelope_open(ss_envelope_ring *ring, void *memory, uint64_t capacity)
{
    ring->shared = memory;
    ring->capacity = capacity;
    ring->data.word = &ring->shared->data_bell;
    ring->space.word = &ring->shared->space_bell;
    pthread_mutex_init(&ring->lock, NULL);
}

static uint64_t frame_bytes(uint64_t length)
{
    return LENGTH_BYTES + ((length + 7) & ~UINT64_C(7));
}

static _Atomic uint64_t *length_at(const ss_envelope_ring *ring, uint64_t position)
{
    return (_Atomic uint64_t *)(ring->shared->data + (position & (ring->capacity - 1)));
}

static void copy_in(ss_envelope_ring *ring, uint64_t position, const char *from, uint64_t length)
{
    uint64_t at = position & (ring->capacity - 1), first = ring->capacity - at;
    if (first > length) first = length;
    memcpy(ring->shared->data + at, from, first);
    memcpy(ring->shared->data, from + first, length - first);
}

static void copy_out(ss_envelope_ring *ring, uint64_t position, char *to, uint64_t length)
{
    uint64_t at = position & (ring->capacity - 1), first = ring->capacity - at;
    if (first > length) first = length;
    memcpy(to, ring->shared->data + at, first);
    memcpy(to + first, ring->shared->data, length - first);
}

static int is_shut(const ss_envelope_ring *ring)
{
    return atomic_load_explicit(ring->shut, memory_order_seq_cst) != 0;
}

/* Looks at the consumer's cursor only when the last one seen leaves too little room: that line is
 * the consumer's, and fetching it for each frame would cost more than the frame. */
static int has_room(ss_envelope_ring *ring, uint64_t need)
{
    if (ring->capacity - (ring->head - ring->seen_tail) >= need) return SS_TRUE;
    uint64_t tail = atomic_load_explicit(&ring->shared->tail, memory_order_seq_cst);
    if (ring->head - tail > ring->capacity) return SS_CORRUPT;
    ring->seen_tail = tail;
    return ring->capacity - (ring->head - tail) >= need;
}

/* Takes the lines of the next frame from the consumer's cache, to be written, while the caller
 * prepares it. Otherwise the store that publishes the frame waits for each of them: it is seq_cst,
 * so nothing written before it may still be on its way. A plain __builtin_prefetch(_, 1) asks for
 * the lines only to read them, unless the compiler is told that the processor can do more. */
static void fetch_ahead(const ss_envelope_ring *ring)
{
    for (uint64_t ahead = 0; ahead < FETCHED_AHEAD; ahead += CACHE_LINE) {
        const unsigned char *at =
            ring->shared->data + ((ring->head + ahead) & (ring->capacity - 1));
#ifdef __x86_64__
        __asm__ volatile("prefetchw %0" : : "m"(*at));
#else
        __builtin_prefetch(at, 1);
#endif
    }
}

static int push_locked(ss_envelope_ring *ring, const char *frame, uint64_t length)
{
    uint64_t need = frame_bytes(length);
    int status = has_room(ring, need);
    if (status != SS_TRUE) return status;
    /* Relaxed: the store of head below publishes it. */
    atomic_store_explicit(length_at(ring, ring->head), length, memory_order_relaxed);
    copy_in(ring, ring->head + LENGTH_BYTES, frame, length);
    ring->head += need;
    atomic_store_explicit(&ring->shared->head, ring->head, memory_order_seq_cst);
    fetch_ahead(ring);
    return SS_TRUE;
}

int ss_envelope_push(ss_envelope_ring *ring, const char *frame, size_t length)
{
    if (ring == NULL) return SS_SHUT;
    if (length > ring->capacity - LENGTH_BYTES) return SS_TOO_LARGE;
    pthread_mutex_lock(&ring->lock);
    int status = push_locked(ring, frame, length);
    pthread_mutex_unlock(&ring->lock);
    if (status == SS_TRUE) ss_bell_notify(&ring->data);
    return status;
}

/* The flag is not taken back once there is room: another thread of ours may sleep on it. */
int ss_envelope_push_wait(ss_envelope_ring *ring, const char *frame, size_t length,
                          int64_t timeout)
{
    if (ring == NULL || is_shut(ring)) return SS_SHUT;
    int status = ss_envelope_push(ring, frame, length);
    if (status != SS_FALSE) return status;
    uint32_t seen = ss_bell_arm(&ring->space);
    if (is_shut(ring)) return SS_SHUT;
    status = ss_envelope_push(ring, frame, length);
    if (status != SS_FALSE) return status;
    ss_bell_sleep(&ring->space, seen, timeout);
    return is_shut(ring) ? SS_SHUT : ss_envelope_push(ring, frame, length);
}

/* Takes up to `limit` frames. `out` holds `capacity` bytes and receives them end to end; `ends`
 * holds limit + 1 numbers: 0, then the end of each frame in `out`. Returns how many, or SS_CORRUPT.
 */
int ss_envelope_drain(ss_envelope_ring *ring, char *out, uint32_t *ends, int limit)
{
    if (ring == NULL) return SS_SHUT;
    uint64_t head = atomic_load_explicit(&ring->shared->head, memory_order_acquire);
    uint64_t tail = ring->tail, filled = 0;
    if (head - tail > ring->capacity) return SS_CORRUPT;
    int count = 0;
    ends[0] = 0;
    while (count < limit && tail != head) {
        uint64_t available = head - tail;
        uint64_t length = atomic_load_explicit(length_at(ring, tail), memory_order_relaxed);
        if (length > ring->capacity - LENGTH_BYTES || frame_bytes(length) > available) {
            return SS_CORRUPT;
        }
        copy_out(ring, tail + LENGTH_BYTES, out + filled, length);
        filled += length;
        tail += frame_bytes(length);
        ends[++count] = (uint32_t)filled;
    }
    if (count == 0) return 0;
    ring->tail = tail;
    atomic_store_explicit(&ring->shared->tail, tail, memory_order_seq_cst);
    ss_bell_notify(&ring->space);
    return count;
}

/* SS_TRUE: there is something to drain. seq_cst, to pair with the arming before it. */
static int ready(const ss_envelope_ring *ring)
{
    if (is_shut(ring)) return SS_SHUT;
    return atomic_load_explicit(&ring->shared->head, memory_order_seq_cst) != ring->tail;
}

/* SS_TRUE: armed, the consumer may sleep. SS_FALSE: there is something to drain. */
int ss_envelope_arm(ss_envelope_ring *ring)
{
    if (ring == NULL) return SS_SHUT;
    ss_bell_arm(&ring->data);
    int status = ready(ring);
    if (status == SS_FALSE) return SS_TRUE;
    ss_bell_disarm(&ring->data);
    return status == SS_TRUE ? SS_FALSE : status;
}

/* The caller tries once more after this, and sleeps only if there is still no room. */
int ss_envelope_arm_space(ss_envelope_ring *ring)
{
    if (ring == NULL) return SS_SHUT;
    ss_bell_arm(&ring->space);
    return is_shut(ring) ? SS_SHUT : SS_TRUE;
}

int ss_envelope_wait(ss_envelope_ring *ring, uint32_t spin, int64_t timeout)
{
    if (ring == NULL) return SS_SHUT;
    int status = ready(ring);
    for (; status == SS_FALSE && spin > 0; spin--) {
        ss_pause();
        status = ready(ring);
    }
    if (status != SS_FALSE) return status;
    uint32_t seen = ss_bell_arm(&ring->data);
    status = ready(ring);
    if (status == SS_FALSE) {
        ss_bell_sleep(&ring->data, seen, timeout);
        status = ready(ring);
    }
    ss_bell_disarm(&ring->data);
    return status;
}

uint64_t ss_envelope_capacity(const ss_envelope_ring *ring) { return ring ? ring->capacity : 0; }

/* A snapshot. The tail is read first: a head read later can only be further on. */
uint64_t ss_envelope_used(const ss_envelope_ring *ring)
{
    if (ring == NULL) return 0;
    uint64_t tail = atomic_load_explicit(&ring->shared->tail, memory_order_acquire);
    uint64_t head = atomic_load_explicit(&ring->shared->head, memory_order_relaxed);
    uint64_t used = head - tail;
    return used < ring->capacity ? used : ring->capacity;
}

/* Payload ring: limits, handles, what is kept for ever, and releases from many threads. */
#include "harness.h"

enum { PAGE_BYTES = 4096, PAGES = 64, HANDLE_RING = 1 << 12 };
enum { PRODUCERS = 2, RELEASERS = 3, WINDOW = 24 };
static const uint64_t PAYLOADS = 200000 / ROUNDS_DIVISOR;
static const uint64_t RING = PAGE_BYTES * PAGES;

typedef struct {
    uint64_t offset, generation, nbytes, seed;
} payload;

static ss_segment *segment_with_ring(uint64_t bytes)
{
    return make_segment((ss_layout){HANDLE_RING, 64, 1, bytes, 1});
}

static payload reserve(ss_payload_ring *ring, uint64_t nbytes)
{
    ss_reservation reservation = ss_payload_reserve(ring, nbytes);
    CHECK(reservation.status == SS_TRUE);
    CHECK(reservation.offset % PAGE_BYTES == 0 && reservation.offset + nbytes <= RING);
    return (payload){reservation.offset, reservation.generation, nbytes, 0};
}

static int release(ss_payload_ring *ring, payload p)
{
    return ss_payload_release(ring, p.offset, p.generation, p.nbytes);
}

static int commit(ss_payload_ring *ring, payload p)
{
    return ss_payload_commit(ring, p.offset, p.generation, p.nbytes);
}

static int lease(ss_payload_ring *ring, payload p)
{
    return ss_payload_lease(ring, p.offset, p.generation, p.nbytes);
}

static void unlease(ss_payload_ring *ring, payload p)
{
    ss_payload_unlease(ring, p.offset, p.generation, p.nbytes, NULL);
}

static void sizes(void)
{
    const uint64_t limit = UINT64_C(1) << 44;
    CHECK(ss_payload_capacity(0) == 0 && ss_payload_capacity(limit + 1) == 0);
    CHECK(ss_payload_capacity(UINT64_MAX) == 0);
    CHECK(ss_payload_capacity(1) == 4 * PAGE_BYTES && ss_payload_capacity(limit) == limit);
    for (uint64_t bytes = 1; bytes <= limit; bytes += bytes / 3 + 1) {
        uint64_t capacity = ss_payload_capacity(bytes);
        CHECK(capacity >= bytes && ss_payload_capacity(capacity) == capacity);
        CHECK(ss_payload_table_bytes(capacity) <= 16384 * 16 + 256);
    }
}

static void full_and_oversized(void)
{
    ss_segment *segment = segment_with_ring(RING);
    ss_payload_ring *ring = &segment->outputs;
    payload pages[PAGES];
    CHECK(ss_payload_reserve(ring, RING / 4 + 1).status == SS_TOO_LARGE);
    CHECK(ss_payload_reserve(ring, UINT64_MAX).status == SS_TOO_LARGE);
    for (int i = 0; i < PAGES; i++) pages[i] = reserve(ring, i % 2 ? PAGE_BYTES : 0);
    CHECK(ss_payload_used(ring) == RING);
    CHECK(ss_payload_reserve(ring, 0).status == SS_FALSE);
    CHECK(ss_payload_reserve_wait(ring, 0, 0).status == SS_FALSE);
    CHECK(release(ring, pages[40]) == SS_TRUE);
    CHECK(reserve(ring, 1).offset == pages[40].offset);
    CHECK(ss_payload_reserve(ring, 1).status == SS_FALSE);
    ss_segment_drop(segment);
}

static void handles(void)
{
    ss_segment *segment = segment_with_ring(RING);
    ss_payload_ring *ring = &segment->outputs;
    payload p = reserve(ring, 100);
    CHECK(ss_payload_check(ring, p.offset, p.generation, 100) == SS_TRUE);
    CHECK(ss_payload_check(ring, p.offset, p.generation, 101) == SS_STALE);
    CHECK(ss_payload_check(ring, p.offset, p.generation + 1, 100) == SS_STALE);
    CHECK(ss_payload_check(ring, p.offset, p.generation | UINT64_C(1) << 62, 100) == SS_STALE);
    CHECK(ss_payload_check(ring, p.offset + 1, p.generation, 100) == SS_STALE);
    CHECK(ss_payload_check(ring, RING, p.generation, 0) == SS_STALE);
    CHECK(ss_payload_check(ring, UINT64_MAX - 4095, p.generation, 100) == SS_STALE);
    CHECK(ss_payload_check(ring, PAGE_BYTES, 0, 0) == SS_STALE);
    CHECK(lease(ring, p) == SS_STALE); /* not committed */
    CHECK(commit(ring, p) == SS_TRUE && commit(ring, p) == SS_STALE);
    CHECK(lease(ring, p) == SS_TRUE && lease(ring, p) == SS_STALE);
    CHECK(ss_payload_held(ring) == 100);
    CHECK(release(ring, p) == SS_STALE); /* a lease alone ends it */
    unlease(ring, p);
    CHECK(ss_payload_held(ring) == 0 && ss_payload_used(ring) == 0);
    CHECK(release(ring, p) == SS_STALE && commit(ring, p) == SS_STALE);
    p = reserve(ring, 1);
    CHECK(release(ring, p) == SS_TRUE && release(ring, p) == SS_STALE);
    ring->shared->used = UINT64_MAX;
    CHECK(ss_payload_used(ring) == RING);
    ss_segment_drop(segment);
}

/* Keeps every lease that leaves a gap, and goes on with the rest. */
/* It shrinks before the first payload only, and grows around those that live. */
static void grows(void)
{
    ss_segment *segment = segment_with_ring(RING);
    ss_payload_ring *ring = &segment->outputs;
    CHECK(ss_payload_resize(NULL, 1) == SS_SHUT);
    CHECK(ss_payload_resize(ring, 0) == SS_RANGE && ss_payload_resize(ring, RING + 1) == SS_RANGE);
    CHECK(ss_payload_resize(ring, 7 * PAGE_BYTES) == SS_TRUE);
    CHECK(ss_payload_size(ring) == 8 * PAGE_BYTES);
    payload kept[8];
    for (int i = 0; i < 8; i++) kept[i] = reserve(ring, PAGE_BYTES);
    CHECK(ss_payload_reserve(ring, 1).status == SS_FALSE);
    CHECK(ss_payload_resize(ring, 4 * PAGE_BYTES) == SS_FALSE);
    CHECK(commit(ring, kept[0]) == SS_TRUE && lease(ring, kept[0]) == SS_TRUE);
    CHECK(ss_payload_has_gap(ring) == SS_TRUE);
    CHECK(ss_payload_resize(ring, RING) == SS_TRUE);
    payload large = reserve(ring, RING / 4);
    CHECK(large.offset == 8 * PAGE_BYTES);
    unlease(ring, kept[0]);
    for (int i = 1; i < 8; i++) CHECK(release(ring, kept[i]) == SS_TRUE);
    CHECK(release(ring, large) == SS_TRUE && ss_payload_used(ring) == 0);
    ss_segment_drop(segment);
}

static void what_is_kept_costs_only_itself(void)
{
    ss_segment *segment = segment_with_ring(RING);
    ss_payload_ring *ring = &segment->outputs;
    uint64_t state = 1, kept = 0;
    payload leases[PAGES];
    int count = 0;
    for (int i = 0; i < 10000; i++) {
        payload p = reserve(ring, 1 + next_random(&state) % (RING / 4));
        CHECK(commit(ring, p) == SS_TRUE && lease(ring, p) == SS_TRUE);
        if (ss_payload_has_gap(ring)) {
            kept += p.nbytes;
            leases[count++] = p;
        } else {
            unlease(ring, p);
        }
        p = reserve(ring, RING / 4); /* whatever is kept, the largest has room */
        CHECK(release(ring, p) == SS_TRUE);
    }
    CHECK(kept > 0 && ss_payload_held(ring) == kept);
    ss_segment_drop(segment); /* the leases keep it, and the last one ends it */
    while (count > 0) unlease(ring, leases[--count]);
}

/* What has arrived, for whichever thread takes it. Producers never touch this lock: it would order
 * the threads where the ring itself must. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    payload payloads[WINDOW];
    uint64_t count, left;
} arrived = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

typedef struct {
    ss_segment *segment;
    uint64_t seed;
} side;

/* Mostly small payloads, some of no bytes, some of the largest size; one in eight is given up. */
static void *produce(void *argument)
{
    side *self = argument;
    ss_payload_ring *ring = &self->segment->outputs;
    uint64_t state = self->seed;
    for (uint64_t i = 0; i < PAYLOADS;) {
        uint64_t nbytes = next_random(&state) % (state % 8 ? 3 * PAGE_BYTES : RING / 4 + 1);
        ss_reservation reservation = {.status = SS_FALSE};
        while (reservation.status == SS_FALSE) {
            reservation = ss_payload_reserve_wait(ring, nbytes, HOUR);
        }
        CHECK(reservation.status == SS_TRUE);
        payload p = {reservation.offset, reservation.generation, nbytes, state};
        fill(ss_payload_data(ring) + p.offset, nbytes < 64 ? nbytes : 64, p.seed);
        if (next_random(&state) % 8 == 0) {
            CHECK(release(ring, p) == SS_TRUE);
            continue;
        }
        CHECK(commit(ring, p) == SS_TRUE);
        int status = SS_FALSE;
        while (status == SS_FALSE) {
            ss_envelope_ring *handles = &self->segment->submissions;
            status = ss_envelope_push_wait(handles, (char *)&p, sizeof p, HOUR);
        }
        CHECK(status == SS_TRUE);
        i++;
    }
    return NULL;
}

/* Takes any of what has arrived; returns 0 when there will be no more. */
static int take(payload *p, uint64_t *state)
{
    pthread_mutex_lock(&arrived.lock);
    while (arrived.count == 0 && arrived.left) {
        pthread_cond_wait(&arrived.changed, &arrived.lock);
    }
    int taken = arrived.count > 0;
    if (taken) {
        uint64_t i = next_random(state) % arrived.count;
        *p = arrived.payloads[i];
        arrived.payloads[i] = arrived.payloads[--arrived.count];
        arrived.left--;
        pthread_cond_broadcast(&arrived.changed);
    }
    pthread_mutex_unlock(&arrived.lock);
    return taken;
}

static void put(const char *frame)
{
    pthread_mutex_lock(&arrived.lock);
    while (arrived.count == WINDOW) pthread_cond_wait(&arrived.changed, &arrived.lock);
    memcpy(&arrived.payloads[arrived.count++], frame, sizeof(payload));
    pthread_cond_broadcast(&arrived.changed);
    pthread_mutex_unlock(&arrived.lock);
}

static void *release_some(void *argument)
{
    side *self = argument;
    ss_payload_ring *ring = &self->segment->outputs;
    uint64_t state = self->seed;
    payload p;
    while (take(&p, &state)) {
        const char *bytes = ss_payload_data(ring) + p.offset;
        int leased = next_random(&state) % 2;
        if (leased) CHECK(lease(ring, p) == SS_TRUE);
        CHECK(is_filled(bytes, p.nbytes < 64 ? p.nbytes : 64, p.seed));
        if (leased) {
            unlease(ring, p);
        } else {
            CHECK(release(ring, p) == SS_TRUE);
        }
    }
    return NULL;
}

static void hand_over(ss_envelope_ring *handles)
{
    static char out[HANDLE_RING];
    uint32_t ends[WINDOW + 1];
    for (uint64_t left = PRODUCERS * PAYLOADS; left;) {
        int count = ss_envelope_drain(handles, out, ends, WINDOW);
        CHECK(count >= 0);
        if (count == 0) CHECK(ss_envelope_wait(handles, 0, HOUR) >= 0);
        for (int i = 0; i < count; i++) put(out + ends[i]);
        left -= (uint64_t)count;
    }
}

static void releases_from_many_threads(void)
{
    ss_segment *segment = segment_with_ring(RING);
    side sides[PRODUCERS + RELEASERS];
    pthread_t threads[PRODUCERS + RELEASERS];
    arrived.left = PRODUCERS * PAYLOADS;
    for (uint64_t i = 0; i < PRODUCERS + RELEASERS; i++) {
        sides[i] = (side){segment, i + 1};
        threads[i] = start(i < PRODUCERS ? produce : release_some, &sides[i]);
    }
    hand_over(&segment->submissions);
    for (int i = 0; i < PRODUCERS + RELEASERS; i++) join(threads[i]);
    CHECK(ss_payload_used(&segment->outputs) == 0 && ss_payload_held(&segment->outputs) == 0);
    ss_segment_drop(segment);
}

int main(void)
{
    sizes();
    full_and_oversized();
    handles();
    grows();
    what_is_kept_costs_only_itself();
    releases_from_many_threads();
    return 0;
}

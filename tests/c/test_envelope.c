/* Envelope ring: every length at every place, the limits, and a long stream between threads. */
#include "harness.h"

enum { SMALL = 128, RING = 1 << 12, BATCH = 64, PRODUCERS = 3 };
static const uint64_t FRAMES = 1000000 / ROUNDS_DIVISOR;

static ss_segment *segment_with_ring(uint64_t bytes)
{
    return make_segment((ss_layout){bytes, 64, 1, 1, 1});
}

/* Moves the ring's cursors on by `steps` times 8 bytes, without frames in it. */
static void advance(ss_envelope_ring *ring, uint64_t steps)
{
    char out[SMALL];
    uint32_t ends[2];
    for (uint64_t i = 0; i < steps; i++) {
        CHECK(ss_envelope_push(ring, "", 0) == SS_TRUE);
        CHECK(ss_envelope_drain(ring, out, ends, 1) == 1 && ends[1] == 0);
    }
}

static void every_length_at_every_place(void)
{
    char frame[SMALL], out[SMALL];
    uint32_t ends[BATCH + 1];
    for (uint64_t place = 0; place < SMALL / 8; place++) {
        for (uint64_t length = 0; length <= SMALL - 8; length++) {
            ss_segment *segment = segment_with_ring(SMALL);
            ss_envelope_ring *ring = &segment->submissions;
            advance(ring, place);
            fill(frame, length, length + 1);
            CHECK(ss_envelope_push(ring, frame, length) == SS_TRUE);
            CHECK(ss_envelope_used(ring) == 8 + (length + 7) / 8 * 8);
            CHECK(ss_envelope_drain(ring, out, ends, BATCH) == 1);
            CHECK(ends[0] == 0 && ends[1] == length && is_filled(out, length, length + 1));
            CHECK(ss_envelope_drain(ring, out, ends, BATCH) == 0);
            CHECK(ss_envelope_used(ring) == 0);
            ss_segment_drop(segment);
        }
    }
}

static void full_and_oversized(void)
{
    ss_segment *segment = segment_with_ring(SMALL);
    ss_envelope_ring *ring = &segment->submissions;
    char frame[SMALL] = {0}, out[SMALL];
    uint32_t ends[BATCH + 1];
    CHECK(ss_envelope_push(ring, frame, SMALL - 7) == SS_TOO_LARGE);
    CHECK(ss_envelope_push(ring, frame, SIZE_MAX) == SS_TOO_LARGE);
    CHECK(ss_envelope_push(ring, frame, SMALL - 8) == SS_TRUE);
    CHECK(ss_envelope_push(ring, frame, 0) == SS_FALSE);
    CHECK(ss_envelope_push_wait(ring, frame, 0, 0) == SS_FALSE);
    CHECK(ss_envelope_drain(ring, out, ends, BATCH) == 1);
    for (int i = 0; i < SMALL / 8; i++) CHECK(ss_envelope_push(ring, frame, 0) == SS_TRUE);
    CHECK(ss_envelope_push(ring, frame, 0) == SS_FALSE);
    CHECK(ss_envelope_drain(ring, out, ends, 3) == 3);
    CHECK(ss_envelope_drain(ring, out, ends, BATCH) == SMALL / 8 - 3);
    CHECK(ss_envelope_wait(ring, 10, 0) == SS_FALSE);
    ss_segment_drop(segment);
}

static void lies_of_the_peer(void)
{
    const uint64_t lengths[] = {SMALL - 7, SMALL, UINT32_MAX, UINT64_MAX, UINT64_MAX - 7, 40};
    char out[SMALL];
    uint32_t ends[BATCH + 1];
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        ss_segment *segment = segment_with_ring(SMALL);
        ss_envelope_ring *ring = &segment->submissions;
        CHECK(ss_envelope_push(ring, "12345678", 8) == SS_TRUE);
        memcpy(ring->shared->data, &lengths[i], sizeof lengths[i]);
        CHECK(ss_envelope_drain(ring, out, ends, BATCH) == SS_CORRUPT);
        ring->shared->head = ring->tail + SMALL + 1;
        CHECK(ss_envelope_drain(ring, out, ends, BATCH) == SS_CORRUPT);
        while (ss_envelope_push(ring, "", 0) == SS_TRUE) {
        }
        ring->shared->tail = ring->head + 8;
        CHECK(ss_envelope_push(ring, "", 0) == SS_CORRUPT);
        CHECK(ss_envelope_used(ring) <= SMALL);
        ss_segment_drop(segment);
    }
}

typedef struct {
    ss_envelope_ring *ring;
    uint64_t number;
} producer;

/* A frame is the producer's number, a count, and up to 60 bytes that follow from both. */
static void *produce(void *argument)
{
    producer *self = argument;
    uint64_t state = self->number + 1, frame[2 + 8];
    for (uint64_t i = 0; i < FRAMES; i++) {
        uint64_t extra = next_random(&state) % 61;
        frame[0] = self->number;
        frame[1] = i;
        fill((char *)(frame + 2), extra, i + self->number);
        int status;
        while ((status = ss_envelope_push_wait(self->ring, (char *)frame, 16 + extra, HOUR)) == 0) {
        }
        CHECK(status == SS_TRUE);
    }
    return NULL;
}

static void consume(ss_envelope_ring *ring, uint64_t *counts)
{
    char out[RING];
    uint32_t ends[BATCH + 1];
    for (uint64_t left = PRODUCERS * FRAMES; left;) {
        int count = ss_envelope_drain(ring, out, ends, BATCH);
        CHECK(count >= 0);
        if (count == 0) CHECK(ss_envelope_wait(ring, 100, HOUR) >= 0);
        for (int i = 0; i < count; i++) {
            uint64_t head[2];
            memcpy(head, out + ends[i], sizeof head);
            CHECK(head[0] < PRODUCERS && head[1] == counts[head[0]]++);
            CHECK(is_filled(out + ends[i] + 16, ends[i + 1] - ends[i] - 16, head[1] + head[0]));
        }
        left -= (uint64_t)count;
    }
}

static void stream(void)
{
    ss_segment *segment = segment_with_ring(RING);
    producer producers[PRODUCERS];
    pthread_t threads[PRODUCERS];
    uint64_t counts[PRODUCERS] = {0};
    for (uint64_t i = 0; i < PRODUCERS; i++) {
        producers[i] = (producer){&segment->submissions, i};
        threads[i] = start(produce, &producers[i]);
    }
    consume(&segment->submissions, counts);
    for (int i = 0; i < PRODUCERS; i++) join(threads[i]);
    CHECK(ss_envelope_used(&segment->submissions) == 0);
    ss_segment_drop(segment);
}

int main(void)
{
    every_length_at_every_place();
    full_and_oversized();
    lies_of_the_peer();
    stream();
    return 0;
}

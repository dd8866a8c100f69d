/* Segment: what is refused, references, shutdown, and the control block. */
#include "harness.h"

#include <sys/eventfd.h>

enum { SLOTS = 496 }; /* the control block fills its page: one slot more is another layout */
static const ss_layout LAYOUT = {64, 128, 1, 1 << 20, SLOTS};

/* A segment in a file, as the two processes see it. */
static int make_file(uint64_t *bytes)
{
    ss_layout layout = LAYOUT;
    CHECK(ss_layout_settle(&layout, bytes) == NULL);
    int fd = memfd_create("test", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)*bytes) == 0);
    ss_segment *segment;
    CHECK(ss_segment_create(ss_map(fd, *bytes), *bytes, &layout, &segment) == NULL);
    ss_segment_drop(segment);
    return fd;
}

static void every_header_byte_counts(void)
{
    uint64_t bytes;
    int fd = make_file(&bytes), doorbell = eventfd(0, EFD_NONBLOCK);
    unsigned char *memory = ss_map(fd, bytes);
    ss_segment *segment;
    for (size_t i = 0; i < sizeof(ss_header); i++) {
        memory[i] += 1;
        CHECK(ss_segment_attach(ss_map(fd, bytes), bytes, doorbell, &segment) != NULL);
        memory[i] -= 1;
    }
    CHECK(ss_segment_attach(ss_map(fd, bytes), bytes - 4096, doorbell, &segment) != NULL);
    CHECK(ss_segment_attach(ss_map(fd, 64), 64, doorbell, &segment) != NULL);
    CHECK(ss_segment_attach(ss_map(fd, bytes), bytes, -1, &segment) != NULL);
    CHECK(ss_segment_attach(ss_map(fd, bytes), bytes, doorbell, &segment) == NULL);
    ss_segment *second;
    CHECK(ss_segment_attach(ss_map(fd, bytes), bytes, doorbell, &second) != NULL);
    ss_segment_drop(segment);
    munmap(memory, bytes);
    close(doorbell);
    close(fd);
}

static void impossible_layouts(void)
{
    const ss_layout layouts[] = {
        {63, 64, 1, 1, 1},
        {64, 96, 1, 1, 1},
        {64, UINT64_C(1) << 31, 1, 1, 1},
        {UINT64_C(1) << 63, 64, 1, 1, 1},
        {64, 64, 0, 1, 1},
        {64, 64, 1, (UINT64_C(1) << 44) + 1, 1},
        {64, 64, UINT64_MAX, 1, 1},
        {64, 64, 1, 1, 0},
        {64, 64, 1, 1, UINT64_MAX},
    };
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        ss_layout layout = layouts[i];
        uint64_t bytes;
        CHECK(ss_layout_settle(&layout, &bytes) != NULL);
    }
}

/* The worker rings the engine's doorbell through its own duplicate, and only if armed. */
static void doorbell(void)
{
    uint64_t bytes, count;
    ss_layout layout = LAYOUT;
    CHECK(ss_layout_settle(&layout, &bytes) == NULL);
    int fd = memfd_create("test", MFD_CLOEXEC), bell = eventfd(0, EFD_NONBLOCK);
    CHECK(ftruncate(fd, (off_t)bytes) == 0);
    ss_segment *engine, *worker;
    CHECK(ss_segment_create(ss_map(fd, bytes), bytes, &layout, &engine) == NULL);
    CHECK(ss_segment_attach(ss_map(fd, bytes), bytes, bell, &worker) == NULL);
    CHECK(ss_envelope_push(&worker->results, "x", 1) == SS_TRUE);
    CHECK(read(bell, &count, sizeof count) == -1);
    CHECK(ss_envelope_arm(&engine->results) == SS_FALSE);
    char out[128];
    uint32_t ends[3];
    CHECK(ss_envelope_drain(&engine->results, out, ends, 2) == 1 && out[0] == 'x');
    CHECK(ss_envelope_arm(&engine->results) == SS_TRUE);
    CHECK(ss_envelope_push(&worker->results, "", 0) == SS_TRUE);
    CHECK(ss_envelope_push(&worker->results, "", 0) == SS_TRUE);
    CHECK(read(bell, &count, sizeof count) == sizeof count && count == 1);
    CHECK(ss_envelope_arm_space(&engine->submissions) == SS_TRUE);
    CHECK(ss_envelope_push(&engine->submissions, "", 0) == SS_TRUE);
    CHECK(ss_envelope_drain(&worker->submissions, out, ends, 2) == 1);
    CHECK(read(bell, &count, sizeof count) == sizeof count && count == 1);
    CHECK(ss_payload_arm_space(&engine->inputs) == SS_TRUE);
    ss_reservation input = ss_payload_reserve(&engine->inputs, 5);
    CHECK(ss_payload_release(&worker->inputs, input.offset, input.generation, 5) == SS_TRUE);
    CHECK(read(bell, &count, sizeof count) == sizeof count && count == 1);
    ss_segment_drop(engine);
    ss_segment_drop(worker);
    close(bell);
    close(fd);
}

/* What was handed out stays usable after the segment itself was dropped. */
static void references(void)
{
    ss_segment *segment = make_segment(LAYOUT);
    ss_payload_ring *outputs = ss_outputs_of(segment);
    ss_envelope_ring *results = ss_results_of(segment);
    ss_segment_drop(segment);
    ss_reservation reservation = ss_payload_reserve(outputs, 10);
    CHECK(reservation.status == SS_TRUE);
    ss_payload_data(outputs)[reservation.offset] = 1;
    ss_payload_drop(outputs);
    CHECK(ss_envelope_push(results, "x", 1) == SS_TRUE);
    ss_envelope_drop(results);
}

static void closed_means_shut(void)
{
    uint32_t ends[2];
    CHECK(ss_envelope_push(NULL, "", 0) == SS_SHUT && ss_envelope_arm(NULL) == SS_SHUT);
    CHECK(ss_envelope_push_wait(NULL, "", 0, 0) == SS_SHUT);
    CHECK(ss_envelope_drain(NULL, NULL, ends, 1) == SS_SHUT);
    CHECK(ss_envelope_wait(NULL, 0, 0) == SS_SHUT && ss_envelope_arm_space(NULL) == SS_SHUT);
    CHECK(ss_payload_reserve(NULL, 0).status == SS_SHUT);
    CHECK(ss_payload_reserve_wait(NULL, 0, 0).status == SS_SHUT);
    CHECK(ss_payload_release(NULL, 0, 1, 0) == SS_SHUT && ss_payload_used(NULL) == 0);
    CHECK(ss_payload_has_gap(NULL) == SS_SHUT);
    CHECK(ss_control_is_cancelled(NULL, 0, 1) == SS_SHUT && ss_control_state(NULL) == SS_SHUT);
}

static void *wait_for_frames(void *argument)
{
    ss_segment *segment = argument;
    while (ss_envelope_wait(&segment->submissions, 0, HOUR) != SS_SHUT) {
    }
    return NULL;
}

static void *wait_to_push(void *argument)
{
    ss_segment *segment = argument;
    while (ss_envelope_push_wait(&segment->results, "", 0, HOUR) != SS_SHUT) {
    }
    return NULL;
}

static void *wait_to_reserve(void *argument)
{
    ss_segment *segment = argument;
    while (ss_payload_reserve_wait(&segment->outputs, 1, HOUR).status != SS_SHUT) {
    }
    return NULL;
}

/* Whether the threads sleep already or are just about to, each must end. */
static void shutdown_ends_every_wait(void)
{
    for (int round = 0; round < 300 / ROUNDS_DIVISOR; round++) {
        ss_segment *segment = make_segment(LAYOUT);
        pthread_t threads[] = {start(wait_for_frames, segment), start(wait_to_push, segment),
                               start(wait_to_push, segment), start(wait_to_reserve, segment),
                               start(wait_to_reserve, segment)};
        if (round % 2) usleep(100);
        ss_segment_shut_down(segment);
        for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) join(threads[i]);
        CHECK(ss_envelope_arm(&segment->results) == SS_SHUT);
        CHECK(ss_envelope_arm_space(&segment->submissions) == SS_SHUT);
        CHECK(ss_payload_arm_space(&segment->inputs) == SS_SHUT);
        ss_segment_drop(segment);
    }
}

static void control(void)
{
    ss_segment *segment = make_segment(LAYOUT);
    ss_control *block = &segment->control;
    CHECK(ss_control_is_cancelled(block, SLOTS - 1, 1) == SS_FALSE);
    CHECK(ss_control_cancel(block, SLOTS - 1, UINT64_MAX) == SS_TRUE);
    CHECK(ss_control_is_cancelled(block, SLOTS - 1, UINT64_MAX) == SS_TRUE);
    CHECK(ss_control_is_cancelled(block, SLOTS - 1, 1) == SS_FALSE);
    CHECK(ss_control_cancel(block, SLOTS, 1) == SS_RANGE);
    CHECK(ss_control_cancel(block, SLOTS - 1, 0) == SS_RANGE);
    CHECK(ss_control_is_cancelled(block, UINT64_MAX, 1) == SS_RANGE);
    CHECK(ss_control_age(block) >= 0 && ss_control_age(block) < HOUR);
    block->shared->beat = INT64_MAX;
    CHECK(ss_control_age(block) == 0);
    block->shared->beat = INT64_MIN;
    CHECK(ss_control_age(block) == 0);
    CHECK(ss_control_beat(block) == SS_TRUE && ss_control_age(block) < HOUR);
    CHECK(ss_control_set_state(block, 3) == SS_TRUE && ss_control_state(block) == 3);
    ss_segment_drop(segment);
}

int main(void)
{
    every_header_byte_counts();
    impossible_layouts();
    doorbell();
    references();
    closed_means_shut();
    shutdown_ends_every_wait();
    control();
    return 0;
}

/* The whole interface between the C core and its caller.
 *
 * build.py feeds this file to cffi (less the lines that start with '#'), so it holds plain
 * declarations only. Functions that take a ring or a control block accept NULL, the mark of a
 * closed segment, and answer SS_SHUT (void functions: nothing happens, counters: zero).
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum ss_status {
    SS_TRUE = 1,
    SS_FALSE = 0,      /* no room, nothing there, or the time is over */
    SS_SHUT = -1,      /* shut down or closed */
    SS_CORRUPT = -2,   /* shared memory holds what no honest peer writes */
    SS_STALE = -3,     /* a handle of the past, or a forged one */
    SS_TOO_LARGE = -4, /* can never fit */
    SS_RANGE = -5      /* no such slot */
};

typedef struct ss_segment ss_segment;
typedef struct ss_envelope_ring ss_envelope_ring;
typedef struct ss_payload_ring ss_payload_ring;
typedef struct ss_control ss_control;

typedef struct {
    uint64_t submission_bytes; /* envelope rings: powers of two */
    uint64_t result_bytes;
    uint64_t input_bytes; /* payload rings: see ss_payload_capacity */
    uint64_t output_bytes;
    uint64_t cancel_slots;
} ss_layout;

typedef struct {
    int status;
    uint64_t offset;
    uint64_t generation;
} ss_reservation;

/* Segment. A function that returns text returns NULL when all is well, else what is wrong. Every
 * pointer that a function named ..._of returns holds a reference on the mapping; ..._drop gives it
 * back, and the last one unmaps. */
const char *ss_layout_settle(ss_layout *layout, uint64_t *bytes);
void *ss_map(int fd, uint64_t bytes); /* NULL and errno */
void ss_segment_populate_outputs(ss_segment *segment); /* up to the ring's capacity */
const char *ss_segment_create(void *base, uint64_t bytes, const ss_layout *layout,
                              ss_segment **out);
const char *ss_segment_attach(void *base, uint64_t bytes, int doorbell, ss_segment **out);
void ss_segment_shut_down(ss_segment *segment);
void ss_segment_drop(ss_segment *segment);
ss_envelope_ring *ss_submissions_of(ss_segment *segment);
ss_envelope_ring *ss_results_of(ss_segment *segment);
ss_payload_ring *ss_inputs_of(ss_segment *segment);
ss_payload_ring *ss_outputs_of(ss_segment *segment);
ss_control *ss_control_of(ss_segment *segment);
void ss_envelope_drop(ss_envelope_ring *ring);
void ss_payload_drop(ss_payload_ring *ring);
void ss_control_drop(ss_control *control);

/* Envelope ring. Timeouts are nanoseconds of one bounded wait, which a signal may cut short. */
int ss_envelope_push(ss_envelope_ring *ring, const char *frame, size_t length);
int ss_envelope_push_wait(ss_envelope_ring *ring, const char *frame, size_t length,
                          int64_t timeout);
int ss_envelope_drain(ss_envelope_ring *ring, char *out, uint32_t *ends, int limit);
int ss_envelope_arm(ss_envelope_ring *ring);
int ss_envelope_arm_space(ss_envelope_ring *ring);
int ss_envelope_wait(ss_envelope_ring *ring, uint32_t spin, int64_t timeout);
uint64_t ss_envelope_capacity(const ss_envelope_ring *ring);
uint64_t ss_envelope_used(const ss_envelope_ring *ring);

/* Payload ring. */
uint64_t ss_payload_capacity(uint64_t bytes); /* rounds up; 0: out of bounds */
int ss_payload_resize(ss_payload_ring *ring, uint64_t bytes);
ss_reservation ss_payload_reserve(ss_payload_ring *ring, uint64_t nbytes);
ss_reservation ss_payload_reserve_wait(ss_payload_ring *ring, uint64_t nbytes, int64_t timeout);
int ss_payload_check(const ss_payload_ring *ring, uint64_t offset, uint64_t generation,
                     uint64_t nbytes);
int ss_payload_commit(ss_payload_ring *ring, uint64_t offset, uint64_t generation,
                      uint64_t nbytes);
int ss_payload_release(ss_payload_ring *ring, uint64_t offset, uint64_t generation,
                       uint64_t nbytes);
int ss_payload_lease(ss_payload_ring *ring, uint64_t offset, uint64_t generation,
                     uint64_t nbytes);
void ss_payload_unlease(ss_payload_ring *ring, uint64_t offset, uint64_t generation,
                        uint64_t nbytes, char *data);
int ss_payload_has_gap(const ss_payload_ring *ring);
int ss_payload_arm_space(ss_payload_ring *ring);
char *ss_payload_data(const ss_payload_ring *ring);
uint64_t ss_payload_size(const ss_payload_ring *ring);
uint64_t ss_payload_chunk(const ss_payload_ring *ring);
uint64_t ss_payload_used(const ss_payload_ring *ring);
uint64_t ss_payload_held(const ss_payload_ring *ring);

/* Control block. Times are CLOCK_MONOTONIC nanoseconds, which all processes of a host share. */
int ss_control_cancel(ss_control *control, uint64_t slot, uint64_t ticket);
int ss_control_is_cancelled(const ss_control *control, uint64_t slot, uint64_t ticket);
int ss_control_beat(ss_control *control);
int64_t ss_control_age(const ss_control *control); /* nanoseconds, or SS_SHUT */
int ss_control_set_state(ss_control *control, uint32_t state);
int64_t ss_control_state(const ss_control *control);

/* -- stacks */

/* Calls a function; whoever walks the stack stops here. */
void ss_stack_end(void (*call)(void *), void *argument);

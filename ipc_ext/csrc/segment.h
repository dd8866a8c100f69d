/* Segment: one piece of shared memory between the engine and one worker. See segment.c. */
#pragma once
#include "control.h"
#include "envelope_ring.h"
#include "payload_ring.h"

enum ss_part {
    SS_PART_CONTROL,
    SS_PART_SUBMISSIONS,
    SS_PART_RESULTS,
    SS_PART_INPUTS,
    SS_PART_INPUT_DATA,
    SS_PART_OUTPUTS,
    SS_PART_OUTPUT_DATA,
    SS_PARTS
};

/* The first page. Written once, before the peer exists, and copied out once when it attaches. */
typedef struct {
    uint64_t magic;
    uint64_t version;
    uint64_t bytes;
    ss_layout layout;
    uint64_t offsets[SS_PARTS];
} ss_header;

struct ss_segment {
    _Atomic uint32_t references;
    int doorbell; /* this process's own duplicate, or -1 */
    unsigned char *base;
    uint64_t bytes;
    ss_layout layout;
    ss_control control;
    ss_envelope_ring submissions, results;
    ss_payload_ring inputs, outputs;
};

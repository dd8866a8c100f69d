/* Control block: what must be seen at once, without a message. See control.c. */
#pragma once
#include "api.h"

#include <stdalign.h>
#include <stdatomic.h>

/* A line for each writer: both sides' shutdown, the worker's own words, the engine's flags. */
typedef struct {
    alignas(64) _Atomic uint32_t shut;
    _Atomic uint32_t attached; /* a segment has one worker in its life */
    alignas(64) _Atomic uint32_t state;
    _Atomic int64_t beat;
    alignas(64) _Atomic uint64_t cancelled[];
} ss_control_shared;

struct ss_control {
    ss_segment *segment;
    ss_control_shared *shared;
    uint64_t slots;
};

uint64_t ss_control_bytes(uint64_t slots);
void ss_control_open(ss_control *control, void *memory, uint64_t slots);

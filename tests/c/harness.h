/* What the drivers share: a check that names its place, numbers that look random, a segment. */
#pragma once
#define _GNU_SOURCE
#include "segment.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef ROUNDS_DIVISOR
#define ROUNDS_DIVISOR 1
#endif

#define CHECK(condition)                                                                    \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);         \
            abort();                                                                        \
        }                                                                                   \
    } while (0)

static const int64_t HOUR = INT64_C(3600000000000); /* so a lost wake-up hangs, and shows */

/* xorshift64: the same numbers in every run. */
static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static inline void fill(char *bytes, uint64_t nbytes, uint64_t seed)
{
    for (uint64_t i = 0; i < nbytes; i++) bytes[i] = (char)(seed * 31 + i * 7);
}

static inline int is_filled(const char *bytes, uint64_t nbytes, uint64_t seed)
{
    for (uint64_t i = 0; i < nbytes; i++) {
        if (bytes[i] != (char)(seed * 31 + i * 7)) return 0;
    }
    return 1;
}

/* One mapping for both sides: the producer's and the consumer's private halves are different, and
 * ThreadSanitizer knows memory by its address. Without a doorbell, every bell is a futex. */
static inline ss_segment *make_segment(ss_layout layout)
{
    uint64_t bytes;
    CHECK(ss_layout_settle(&layout, &bytes) == NULL);
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(base != MAP_FAILED);
    ss_segment *segment;
    CHECK(ss_segment_create(base, bytes, &layout, &segment) == NULL);
    return segment;
}

static inline pthread_t start(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, body, argument) == 0);
    return thread;
}

static inline void join(pthread_t thread) { CHECK(pthread_join(thread, NULL) == 0); }

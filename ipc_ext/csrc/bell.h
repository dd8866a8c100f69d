/* Bell: how one side sleeps until the other has done something. See bell.c. */
#pragma once
#include <stdatomic.h>
#include <stdint.h>

typedef struct {
    _Atomic uint32_t armed; /* 1: somebody sleeps, or is about to, and wants a ring */
    _Atomic uint32_t rings; /* futex word: changes with every ring */
} ss_bell_word;

typedef struct {
    ss_bell_word *word; /* in shared memory */
    int eventfd;        /* >= 0: ring by writing here; -1: ring by waking the futex */
} ss_bell;

uint32_t ss_bell_arm(ss_bell *bell);
void ss_bell_disarm(ss_bell *bell);
void ss_bell_sleep(ss_bell *bell, uint32_t seen, int64_t timeout);
void ss_bell_notify(ss_bell *bell);
void ss_bell_ring(ss_bell *bell);
void ss_pause(void);

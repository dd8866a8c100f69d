/* Control block: what must be seen at once, without a message.
 *
 * Cancel flags: the engine gives a request a slot and a ticket, a number that is never used again,
 * and cancels by storing the ticket in the slot. The worker compares. A slot may thus be given to
 * the next request without being cleared: an old ticket matches nobody.
 *
 * Heartbeat and state are the worker's words about itself. Everything here is advice that stands
 * for itself: no other memory hangs on it, so relaxed atomics do, but for the shutdown flag, which
 * takes part in the bells' protocol and is seq_cst (see bell.c).
 */
#define _GNU_SOURCE
#include "control.h"

#include <time.h>

uint64_t ss_control_bytes(uint64_t slots)
{
    return sizeof(ss_control_shared) + slots * sizeof(_Atomic uint64_t);
}

void ss_control_open(ss_control *control, void *memory, uint64_t slots)
{
    control->shared = memory;
    control->slots = slots;
}

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

int ss_control_cancel(ss_control *control, uint64_t slot, uint64_t ticket)
{
    if (control == NULL) return SS_SHUT;
    if (slot >= control->slots || ticket == 0) return SS_RANGE;
    atomic_store_explicit(&control->shared->cancelled[slot], ticket, memory_order_relaxed);
    return SS_TRUE;
}

int ss_control_is_cancelled(const ss_control *control, uint64_t slot, uint64_t ticket)
{
    if (control == NULL) return SS_SHUT;
    if (slot >= control->slots || ticket == 0) return SS_RANGE;
    return atomic_load_explicit(&control->shared->cancelled[slot], memory_order_relaxed) == ticket;
}

int ss_control_beat(ss_control *control)
{
    if (control == NULL) return SS_SHUT;
    atomic_store_explicit(&control->shared->beat, now(), memory_order_relaxed);
    return SS_TRUE;
}

int64_t ss_control_age(const ss_control *control)
{
    if (control == NULL) return SS_SHUT;
    /* Beat before now: an age is then never negative, unless the peer lies, which costs nothing. */
    int64_t beat = atomic_load_explicit(&control->shared->beat, memory_order_relaxed);
    int64_t time = now();
    return beat >= 0 && beat <= time ? time - beat : 0;
}

int ss_control_set_state(ss_control *control, uint32_t state)
{
    if (control == NULL) return SS_SHUT;
    atomic_store_explicit(&control->shared->state, state, memory_order_relaxed);
    return SS_TRUE;
}

int64_t ss_control_state(const ss_control *control)
{
    if (control == NULL) return SS_SHUT;
    return atomic_load_explicit(&control->shared->state, memory_order_relaxed);
}

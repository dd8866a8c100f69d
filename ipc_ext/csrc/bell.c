/* Bell: how one side sleeps until the other has done something.
 *
 * A sleeper arms the bell, looks once more at what it waits for, and sleeps only if that is still
 * not there. The other side first does the thing, then looks at the armed flag, and rings only if
 * it is set: no system call while nobody sleeps. Four operations decide whether a wake-up can be
 * lost:
 *
 *     sleeper:  armed = 1;  load cursor          waker:  store cursor;  load armed
 *
 * If both loads could miss both stores, the sleeper would sleep on work that is there. Only a total
 * order over all four excludes that, so all four are seq_cst; acquire and release would not do. The
 * callers use seq_cst for their cursor accordingly.
 *
 * The engine sleeps in its event loop, on an eventfd; a worker sleeps in here, on a futex. The
 * futex word counts rings instead of being the flag itself, because several threads may wait for
 * space: with one word, a second thread that arms between the ring and the first thread's
 * FUTEX_WAIT would put the first one to sleep on space that is already free. The word lives in
 * memory that two processes map, hence no FUTEX_PRIVATE_FLAG.
 */
#define _GNU_SOURCE
#include "bell.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(_Atomic uint32_t) == 4 && ATOMIC_INT_LOCK_FREE == 2,
               "a futex word is four bytes, and atomics between processes must be lock-free");

/* Returns the count of rings to hand to ss_bell_sleep. It is read before the flag is set, so a ring
 * that answers this arming always changes it. */
uint32_t ss_bell_arm(ss_bell *bell)
{
    uint32_t seen = atomic_load_explicit(&bell->word->rings, memory_order_acquire);
    atomic_store_explicit(&bell->word->armed, 1, memory_order_seq_cst);
    return seen;
}

/* For a bell with one sleeper only: with several, it would take back the others' request too. A
 * flag that stays set costs one needless ring, so nothing depends on this store's order. */
void ss_bell_disarm(ss_bell *bell)
{
    atomic_store_explicit(&bell->word->armed, 0, memory_order_relaxed);
}

/* Returns after a ring, a signal, the timeout or for no reason: the caller looks again anyway. */
void ss_bell_sleep(ss_bell *bell, uint32_t seen, int64_t timeout)
{
    struct timespec limit = {.tv_sec = timeout / 1000000000, .tv_nsec = timeout % 1000000000};
    syscall(SYS_futex, &bell->word->rings, FUTEX_WAIT, seen, &limit, NULL, 0);
}

void ss_bell_notify(ss_bell *bell)
{
    /* A load first: the line stays shared between both sides while nobody sleeps. */
    if (atomic_load_explicit(&bell->word->armed, memory_order_seq_cst) &&
        atomic_exchange_explicit(&bell->word->armed, 0, memory_order_seq_cst)) {
        ss_bell_ring(bell);
    }
}

void ss_bell_ring(ss_bell *bell)
{
    atomic_fetch_add_explicit(&bell->word->rings, 1, memory_order_release);
    if (bell->eventfd >= 0) {
        /* Non-blocking. It fails only with a saturated counter, which is readable already. */
        uint64_t one = 1;
        ssize_t written = write(bell->eventfd, &one, sizeof one);
        (void)written;
    } else {
        syscall(SYS_futex, &bell->word->rings, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
}

/* Tells the processor that this is a spin loop. */
void ss_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

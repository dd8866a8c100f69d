/* Wake-ups, one interleaving after the other.
 *
 * The linker puts the functions below between the rings and their bells (--wrap), and at a chosen
 * point of the sleeper's way to sleep, or of the waker's way to ring, the other side acts. After
 * that, whoever would sleep on something that is there has lost a wake-up.
 */
#include "harness.h"

#include <semaphore.h>

enum point { NOWHERE, BEFORE_ARMING, AFTER_ARMING, BEFORE_SLEEP, BEFORE_NOTIFY };

static _Thread_local enum point acting_at;
static _Thread_local void (*act)(ss_segment *segment);
static _Thread_local ss_segment *acting_on;
static _Thread_local int sleeps;
static sem_t drained, go_on;
static pthread_t drainer;

uint32_t __real_ss_bell_arm(ss_bell *bell);
uint32_t __wrap_ss_bell_arm(ss_bell *bell);
void __real_ss_bell_sleep(ss_bell *bell, uint32_t seen, int64_t timeout);
void __wrap_ss_bell_sleep(ss_bell *bell, uint32_t seen, int64_t timeout);
void __real_ss_bell_notify(ss_bell *bell);
void __wrap_ss_bell_notify(ss_bell *bell);

static void reach(enum point point)
{
    if (point != acting_at) return;
    acting_at = NOWHERE;
    act(acting_on);
}

uint32_t __wrap_ss_bell_arm(ss_bell *bell)
{
    reach(BEFORE_ARMING);
    uint32_t seen = __real_ss_bell_arm(bell);
    reach(AFTER_ARMING);
    return seen;
}

void __wrap_ss_bell_sleep(ss_bell *bell, uint32_t seen, int64_t timeout)
{
    sleeps++;
    reach(BEFORE_SLEEP);
    CHECK(bell->word->rings != seen); /* the futex returns at once */
    __real_ss_bell_sleep(bell, seen, timeout);
}

void __wrap_ss_bell_notify(ss_bell *bell)
{
    reach(BEFORE_NOTIFY);
    __real_ss_bell_notify(bell);
}

static void push(ss_segment *segment)
{
    CHECK(ss_envelope_push(&segment->submissions, "x", 1) == SS_TRUE);
}

static void drain(ss_segment *segment)
{
    char out[64];
    uint32_t ends[2];
    CHECK(ss_envelope_drain(&segment->submissions, out, ends, 1) == 1);
}

static void release(ss_segment *segment)
{
    CHECK(ss_payload_release(&segment->outputs, 0, 1, 1) == SS_TRUE);
}

/* Sleeps after all if another waiter arms between our ring and our sleep: the count tells. */
static void release_and_arm(ss_segment *segment)
{
    release(segment);
    __real_ss_bell_arm(&segment->outputs.space);
}

static void shut_down(ss_segment *segment)
{
    ss_segment_shut_down(segment);
    ss_bell_ring(&segment->submissions.space); /* that one is the doorbell, rung by the caller */
}

static void prepare(enum point point, void (*action)(ss_segment *segment))
{
    acting_on = make_segment((ss_layout){64, 64, 1, 1, 1});
    acting_at = point;
    act = action;
    sleeps = 0;
}

static void finish(enum point point)
{
    CHECK(acting_at == NOWHERE && sleeps == (point == BEFORE_SLEEP));
    ss_segment_drop(acting_on);
}

static void waiting_for_frames(enum point point)
{
    prepare(point, push);
    CHECK(ss_envelope_wait(&acting_on->submissions, 0, HOUR) == SS_TRUE);
    finish(point);
    prepare(point, shut_down);
    CHECK(ss_envelope_wait(&acting_on->submissions, 0, HOUR) == SS_SHUT);
    finish(point);
}

static void waiting_to_push(enum point point, void (*action)(ss_segment *segment))
{
    prepare(NOWHERE, action);
    while (ss_envelope_push(&acting_on->submissions, "", 0) == SS_TRUE) {
    }
    acting_at = point;
    int status = ss_envelope_push_wait(&acting_on->submissions, "", 0, HOUR);
    CHECK(status == (action == shut_down ? SS_SHUT : SS_TRUE));
    finish(point);
}

static void waiting_to_reserve(enum point point, void (*action)(ss_segment *segment))
{
    prepare(NOWHERE, action);
    for (int i = 0; i < 4; i++) {
        CHECK(ss_payload_reserve(&acting_on->outputs, 1).status == SS_TRUE);
    }
    acting_at = point;
    int status = ss_payload_reserve_wait(&acting_on->outputs, 1, HOUR).status;
    CHECK(status == (action == shut_down ? SS_SHUT : SS_TRUE));
    finish(point);
}

/* The engine's way: it arms, looks again, and leaves the sleeping to its event loop. */
static void arming_for_the_event_loop(void)
{
    prepare(BEFORE_ARMING, push);
    CHECK(ss_envelope_arm(&acting_on->submissions) == SS_FALSE);
    CHECK(acting_on->submissions.shared->data_bell.armed == 0);
    finish(BEFORE_ARMING);
    prepare(AFTER_ARMING, push);
    CHECK(ss_envelope_arm(&acting_on->submissions) == SS_FALSE);
    CHECK(acting_on->submissions.shared->data_bell.rings == 1);
    finish(AFTER_ARMING);
}

/* The space is free, but the drain has not looked at the flag yet. */
static void pause_drain(ss_segment *segment)
{
    (void)segment;
    sem_post(&drained);
    sem_wait(&go_on);
}

static void *drain_with_a_pause(void *segment)
{
    acting_on = segment;
    acting_at = BEFORE_NOTIFY;
    act = pause_drain;
    drain(segment);
    return NULL;
}

static void start_drain(ss_segment *segment)
{
    drainer = start(drain_with_a_pause, segment);
    sem_wait(&drained);
}

/* One thread sleeps for space. A second one arms too, and gets some just before the drain looks at
 * the flag. Had it taken the flag back, the first would go on sleeping. */
static void two_wait_for_space(void)
{
    prepare(NOWHERE, start_drain);
    while (ss_envelope_push(&acting_on->submissions, "", 0) == SS_TRUE) {
    }
    uint32_t seen = __real_ss_bell_arm(&acting_on->submissions.space);
    acting_at = AFTER_ARMING;
    CHECK(ss_envelope_push_wait(&acting_on->submissions, "", 0, HOUR) == SS_TRUE);
    sem_post(&go_on);
    join(drainer);
    CHECK(acting_on->submissions.shared->space_bell.rings != seen);
    finish(NOWHERE);
}

int main(void)
{
    sem_init(&drained, 0, 0);
    sem_init(&go_on, 0, 0);
    alarm(60); /* a lost wake-up would sleep for an hour */
    for (enum point point = BEFORE_ARMING; point <= BEFORE_SLEEP; point++) {
        waiting_for_frames(point);
        waiting_to_push(point, drain);
        waiting_to_push(point, shut_down);
        waiting_to_reserve(point, release);
        waiting_to_reserve(point, shut_down);
    }
    waiting_to_reserve(BEFORE_SLEEP, release_and_arm);
    arming_for_the_event_loop();
    two_wait_for_space();
    return 0;
}

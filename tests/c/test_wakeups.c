/* Lost wake-ups: races for the four operations that decide, and three ways to hand over one thing
 * at a time, where each side sleeps for each step.
 *
 * The waits are of an hour, so a single lost wake-up shows as a driver that does not end.
 */
#include "harness.h"

#include <sched.h>

enum { ROUNDS = 20000 / ROUNDS_DIVISOR, RACES = 10 * ROUNDS };

static void *echo(void *argument)
{
    ss_segment *segment = argument;
    char out[64];
    uint32_t ends[2];
    for (int i = 0; i < ROUNDS;) {
        CHECK(ss_envelope_wait(&segment->submissions, 0, HOUR) >= 0);
        if (ss_envelope_drain(&segment->submissions, out, ends, 1) != 1) continue;
        CHECK(ss_envelope_push(&segment->results, out, ends[1]) == SS_TRUE);
        i++;
    }
    return NULL;
}

static void ping_pong(void)
{
    ss_segment *segment = make_segment((ss_layout){64, 64, 1, 1, 1});
    pthread_t thread = start(echo, segment);
    char out[64];
    uint32_t ends[2];
    for (int i = 0; i < ROUNDS; i++) {
        CHECK(ss_envelope_push(&segment->submissions, (char *)&i, sizeof i) == SS_TRUE);
        while (ss_envelope_drain(&segment->results, out, ends, 1) == 0) {
            CHECK(ss_envelope_wait(&segment->results, 0, HOUR) >= 0);
        }
        CHECK(memcmp(out, &i, sizeof i) == 0);
    }
    join(thread);
    ss_segment_drop(segment);
}

static void *push_all(void *argument)
{
    ss_segment *segment = argument;
    static const char frame[56]; /* alone fills the ring */
    for (int i = 0; i < ROUNDS;) {
        int status = ss_envelope_push_wait(&segment->submissions, frame, sizeof frame, HOUR);
        CHECK(status >= 0);
        i += status == SS_TRUE;
    }
    return NULL;
}

static void full_for_every_frame(void)
{
    ss_segment *segment = make_segment((ss_layout){64, 64, 1, 1, 1});
    pthread_t threads[] = {start(push_all, segment), start(push_all, segment)};
    char out[64];
    uint32_t ends[2];
    for (int i = 0; i < 2 * ROUNDS;) {
        CHECK(ss_envelope_wait(&segment->submissions, 0, HOUR) >= 0);
        i += ss_envelope_drain(&segment->submissions, out, ends, 1) == 1;
    }
    join(threads[0]);
    join(threads[1]);
    ss_segment_drop(segment);
}

static void *reserve_all(void *argument)
{
    ss_segment *segment = argument;
    for (int i = 0; i < ROUNDS; i++) {
        ss_reservation quarter = {.status = SS_FALSE};
        while (quarter.status == SS_FALSE) {
            quarter = ss_payload_reserve_wait(&segment->outputs, 1, HOUR);
        }
        CHECK(quarter.status == SS_TRUE);
        CHECK(ss_envelope_push(&segment->submissions, (char *)&quarter, sizeof quarter) == SS_TRUE);
    }
    return NULL;
}

static void no_room_for_every_payload(void)
{
    ss_segment *segment = make_segment((ss_layout){1 << 10, 64, 1, 1, 1});
    for (int i = 0; i < 3; i++) CHECK(ss_payload_reserve(&segment->outputs, 1).status == SS_TRUE);
    pthread_t threads[] = {start(reserve_all, segment), start(reserve_all, segment)};
    char out[1 << 10];
    uint32_t ends[2];
    for (int i = 0; i < 2 * ROUNDS;) {
        CHECK(ss_envelope_wait(&segment->submissions, 0, HOUR) >= 0);
        if (ss_envelope_drain(&segment->submissions, out, ends, 1) != 1) continue;
        ss_reservation page;
        memcpy(&page, out, sizeof page);
        CHECK(ss_payload_release(&segment->outputs, page.offset, page.generation, 1) == SS_TRUE);
        i++;
    }
    join(threads[0]);
    join(threads[1]);
    ss_segment_drop(segment);
}

/* The four operations that bell.c opens with, against each other, many times: one side arms and
 * looks, the other acts and looks at the flag. A side that found nothing must have been rung; if it
 * was not, each has missed the other's store. The rounds keep both in step, to within what a store
 * buffer holds back. */
static struct {
    ss_segment *segment;
    ss_reservation last;
    _Atomic int round, done;
} race;

static void spin_until(_Atomic int *count, int value)
{
    for (int spins = 1; *count < value; spins++) {
        if (spins % 1000) {
            ss_pause();
        } else {
            sched_yield(); /* both may share a core */
        }
    }
}

static void *act_in_rounds(void *argument)
{
    int (*action)(void) = *(int (**)(void))argument;
    for (int i = 1; i <= RACES; i++) {
        spin_until(&race.round, i);
        CHECK(action() == SS_TRUE);
        race.done = i;
    }
    return NULL;
}

static int push_one(void) { return ss_envelope_push(&race.segment->submissions, "", 0); }

static int drain_one(void)
{
    char out[64];
    uint32_t ends[2];
    return ss_envelope_drain(&race.segment->submissions, out, ends, 1);
}

static int reserve_one(void)
{
    ss_reservation reservation = ss_payload_reserve(&race.segment->outputs, 1);
    if (reservation.status == SS_TRUE) race.last = reservation;
    return reservation.status;
}

static int release_last(void)
{
    const ss_reservation *last = &race.last;
    return ss_payload_release(&race.segment->outputs, last->offset, last->generation, 1);
}

/* Each time: the sleeper arms and tries, the waker acts; a try that failed is made good afterwards.
 */
static void run_race(ss_bell *bell, int (*try)(void), int (*action)(void))
{
    race.round = race.done = 0;
    pthread_t thread = start(act_in_rounds, &action);
    for (int i = 1; i <= RACES; i++) {
        race.round = i;
        uint32_t seen = ss_bell_arm(bell);
        int found = try();
        spin_until(&race.done, i);
        CHECK(found == SS_TRUE || bell->word->rings != seen);
        if (!found) CHECK(try() == SS_TRUE);
        ss_bell_disarm(bell);
    }
    join(thread);
}

static void store_buffers(void)
{
    race.segment = make_segment((ss_layout){64, 64, 1, 1, 1});
    run_race(&race.segment->submissions.data, drain_one, push_one);
    while (push_one() == SS_TRUE) {
    }
    run_race(&race.segment->submissions.space, push_one, drain_one);
    while (reserve_one() == SS_TRUE) {
    }
    run_race(&race.segment->outputs.space, reserve_one, release_last);
    ss_segment_drop(race.segment);
}

int main(void)
{
    store_buffers();
    ping_pong();
    full_for_every_frame();
    no_room_for_every_payload();
    return 0;
}

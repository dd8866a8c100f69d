/* Fuzz target: hostile segments, hostile rings, hostile handles.
 *
 * The first byte of an input chooses what is attacked; the rest is a header, or a script of steps
 * in which the peer overwrites words of shared memory between our calls. The rings stand in exact
 * heap blocks, so that AddressSanitizer sees an access one byte out of bounds.
 *
 * With clang -DLIBFUZZER this is a libFuzzer target. With gcc, main() replays the files it is
 * given, and then inputs derived from them by a fixed sequence of random changes.
 */
#include "harness.h"

enum { ENVELOPES = 256, PAYLOADS = 16 * 4096, LIMIT = 8, MAX_INPUT = 3 * 4096, MUTANTS = 3000 };

typedef struct {
    const uint8_t *at, *end;
} input;

static uint64_t number(input *in, size_t width)
{
    uint64_t value = 0;
    if ((size_t)(in->end - in->at) < width) width = (size_t)(in->end - in->at);
    memcpy(&value, in->at, width);
    in->at += width;
    return value;
}

/* Overwrites an aligned word, as the peer could. */
static void poke(input *in, void *memory, uint64_t bytes)
{
    uint64_t index = number(in, 2) % (bytes / 8), value = number(in, 8);
    memcpy((char *)memory + index * 8, &value, 8);
}

/* Input: two bytes of size in pages, then what the memory begins with. */
static void attack_header(input in)
{
    uint64_t bytes = (1 + number(&in, 2) % 64) * 4096, given = (uint64_t)(in.end - in.at);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memcpy(memory, in.at, given < bytes ? given : bytes);
    ss_segment *segment = NULL;
    if (ss_segment_attach(memory, bytes, STDERR_FILENO, &segment)) return;
    char *out = malloc(ss_envelope_capacity(&segment->submissions));
    uint32_t ends[LIMIT + 1];
    ss_envelope_drain(&segment->submissions, out, ends, LIMIT);
    ss_envelope_push(&segment->results, "frame", 5);
    ss_reservation reservation = ss_payload_reserve(&segment->outputs, 1);
    if (reservation.status == SS_TRUE) ss_payload_data(&segment->outputs)[reservation.offset] = 1;
    free(out);
    ss_segment_drop(segment);
}

static void check_drained(const char *out, const uint32_t *ends, int count)
{
    uint64_t sum = 0;
    for (int i = 0; i < count; i++) {
        CHECK(ends[i] <= ends[i + 1] && ends[i + 1] <= ENVELOPES);
        for (uint32_t j = ends[i]; j < ends[i + 1]; j++) sum += (unsigned char)out[j];
    }
    CHECK(sum <= 255 * ENVELOPES);
}

static void attack_envelopes(input in)
{
    _Atomic uint32_t shut = 0;
    uint64_t bytes = ss_envelope_bytes(ENVELOPES);
    void *memory = memset(aligned_alloc(64, bytes), 0, bytes);
    char *out = malloc(ENVELOPES), frame[ENVELOPES] = {0};
    uint32_t *ends = malloc((LIMIT + 1) * sizeof *ends);
    ss_envelope_ring ring = {.shut = &shut, .data = {.eventfd = -1}, .space = {.eventfd = -1}};
    ss_envelope_open(&ring, memory, ENVELOPES);
    while (in.at < in.end) {
        switch (number(&in, 1) % 5) {
        case 0: poke(&in, memory, bytes); break;
        case 1: check_drained(out, ends, ss_envelope_drain(&ring, out, ends, LIMIT)); break;
        case 2: ss_envelope_push(&ring, frame, number(&in, 1)); break;
        case 3: ss_envelope_wait(&ring, 1, 0); break;
        default: CHECK(ss_envelope_used(&ring) <= ENVELOPES);
        }
    }
    pthread_mutex_destroy(&ring.lock);
    free(ends);
    free(out);
    free(memory);
}

typedef struct {
    uint64_t offset, generation, nbytes;
} handle;

/* A handle of ours, or one that the peer made up. */
static handle some_handle(input *in, const handle *ours)
{
    uint64_t choice = number(in, 1);
    if (choice < 128) return ours[choice % LIMIT];
    return (handle){number(in, 8), number(in, 8), number(in, 8)};
}

static void touch(ss_payload_ring *ring, handle h)
{
    if (ss_payload_check(ring, h.offset, h.generation, h.nbytes) != SS_TRUE) return;
    memset(ss_payload_data(ring) + h.offset, 1, h.nbytes);
    ss_payload_has_gap(ring);
}

static void payload_step(ss_payload_ring *ring, input *in, handle *ours, uint64_t step)
{
    handle h;
    switch (step) {
    case 1:
        h.nbytes = number(in, 2);
        ss_reservation reservation = ss_payload_reserve(ring, h.nbytes);
        if (reservation.status != SS_TRUE) break;
        CHECK(reservation.offset + h.nbytes <= PAYLOADS);
        h.offset = reservation.offset;
        h.generation = reservation.generation;
        ours[h.generation % LIMIT] = h;
        break;
    case 2: touch(ring, some_handle(in, ours)); break;
    case 3:
        h = some_handle(in, ours);
        ss_payload_commit(ring, h.offset, h.generation, h.nbytes);
        break;
    case 4:
        h = some_handle(in, ours);
        ss_payload_release(ring, h.offset, h.generation, h.nbytes);
        break;
    case 5:
        h = some_handle(in, ours);
        if (ss_payload_lease(ring, h.offset, h.generation, h.nbytes) != SS_TRUE) break;
        touch(ring, h);
        ss_payload_unlease(ring, h.offset, h.generation, h.nbytes, NULL);
        break;
    default: CHECK(ss_payload_used(ring) <= PAYLOADS);
    }
}

static void attack_payloads(input in)
{
    _Atomic uint32_t shut = 0;
    uint64_t bytes = ss_payload_table_bytes(PAYLOADS);
    void *table = memset(aligned_alloc(64, bytes), 0, bytes);
    void *data = malloc(PAYLOADS);
    ss_segment owner = {.references = 1};
    ss_payload_ring ring = {.segment = &owner, .shut = &shut, .space = {.eventfd = -1}};
    handle ours[LIMIT] = {{0, 0, 0}};
    CHECK(ss_payload_open(&ring, table, data, PAYLOADS));
    while (in.at < in.end) {
        uint64_t step = number(&in, 1) % 7;
        if (step == 0) {
            poke(&in, table, bytes);
        } else {
            payload_step(&ring, &in, ours, step);
        }
    }
    CHECK(ss_payload_held(&ring) == 0 && owner.references == 1);
    ss_payload_close(&ring);
    free(data);
    free(table);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = {data, data + size};
    switch (number(&in, 1) % 3) {
    case 0: attack_header(in); break;
    case 1: attack_envelopes(in); break;
    default: attack_payloads(in);
    }
    return 0;
}

#ifndef LIBFUZZER
/* Runs an input in a block of its exact size, so that reading past it shows too. */
static void run(const uint8_t *data, size_t size)
{
    uint8_t *exact = memcpy(malloc(size ? size : 1), data, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

static void run_mutants(uint8_t *data, size_t size, uint64_t *state)
{
    for (int i = 0; i < MUTANTS && size; i++) {
        uint8_t mutant[MAX_INPUT];
        memcpy(mutant, data, size);
        for (uint64_t changes = 1 + next_random(state) % 8; changes; changes--) {
            /* Not the first byte: the file's attack is the one that its words make sense for. */
            if (size > 1) mutant[1 + next_random(state) % (size - 1)] = (uint8_t)*state;
        }
        run(mutant, size - next_random(state) % size / 4);
    }
}

int main(int count, char **names)
{
    uint64_t state = 1;
    CHECK(count > 1);
    for (int i = 1; i < count; i++) {
        uint8_t data[MAX_INPUT];
        FILE *file = fopen(names[i], "rb");
        CHECK(file != NULL);
        size_t size = fread(data, 1, sizeof data, file);
        fclose(file);
        run(data, size);
        run_mutants(data, size, &state);
    }
    printf("%d inputs, and %d changes of each\n", count - 1, MUTANTS);
    return 0;
}
#endif

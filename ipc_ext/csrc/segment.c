/* Segment: one piece of shared memory between the engine and one worker.
 *
 *     header | control | submissions | results | inputs: table, data | outputs: table, data
 *
 * each part on a page of its own. The layout (five numbers) decides every offset; the header
 * records them nevertheless, so that a peer built with other structures is refused rather than
 * misread. Whoever attaches copies the header once, checks the copy, computes everything anew from
 * it and never looks at the shared one again.
 *
 * The outputs' data comes last, since a segment may have more addresses for it than memory: the file
 * is sealed at its full size, but only the part that the output ring uses has pages, which the
 * worker allocates.
 *
 * A mapping lives as long as somebody holds a reference: the caller's segment, each ring handed
 * out, and through them each lease. The last one to go unmaps, on whatever thread that is. A worker
 * keeps a duplicate of the doorbell for the same time, so that a lease that ends late never writes
 * to a descriptor number that has become another file.
 *
 * Who sleeps where: the engine on the doorbell, for results to drain and for room in submissions
 * and inputs; the worker on futexes, for submissions to drain and for room in results and outputs.
 */
#define _GNU_SOURCE
#include "segment.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const uint64_t MAGIC = UINT64_C(0x6d72747365646973); /* "sidestrm" */
static const uint64_t VERSION = 1;
static const uint64_t PAGE = 4096;
static const uint64_t MAX_CANCEL_SLOTS = 1 << 20;
static const char *const OUT_OF_MEMORY = "out of memory";

static uint64_t place(uint64_t *end, uint64_t bytes)
{
    uint64_t offset = *end;
    *end = (offset + bytes + PAGE - 1) / PAGE * PAGE;
    return offset;
}

/* No sum here can overflow: the parts are bounded by ss_layout_settle, the largest by 2^44. */
static uint64_t place_parts(const ss_layout *layout, uint64_t offsets[SS_PARTS])
{
    uint64_t end = PAGE;
    offsets[SS_PART_CONTROL] = place(&end, ss_control_bytes(layout->cancel_slots));
    offsets[SS_PART_SUBMISSIONS] = place(&end, ss_envelope_bytes(layout->submission_bytes));
    offsets[SS_PART_RESULTS] = place(&end, ss_envelope_bytes(layout->result_bytes));
    offsets[SS_PART_INPUTS] = place(&end, ss_payload_table_bytes(layout->input_bytes));
    offsets[SS_PART_INPUT_DATA] = place(&end, layout->input_bytes);
    offsets[SS_PART_OUTPUTS] = place(&end, ss_payload_table_bytes(layout->output_bytes));
    offsets[SS_PART_OUTPUT_DATA] = place(&end, layout->output_bytes);
    return end;
}

/* Rounds the payload rings up to what they can have, and computes the size of the segment. */
const char *ss_layout_settle(ss_layout *layout, uint64_t *bytes)
{
    if (!ss_envelope_capacity_ok(layout->submission_bytes) ||
        !ss_envelope_capacity_ok(layout->result_bytes)) {
        return "an envelope ring must be a power of two from 64 bytes to 1 GiB";
    }
    layout->input_bytes = ss_payload_capacity(layout->input_bytes);
    layout->output_bytes = ss_payload_capacity(layout->output_bytes);
    if (layout->input_bytes == 0 || layout->output_bytes == 0) {
        return "a payload ring must have from 1 byte to 16 TiB";
    }
    if (layout->cancel_slots == 0 || layout->cancel_slots > MAX_CANCEL_SLOTS) {
        return "there must be from 1 to 1048576 cancel slots";
    }
    uint64_t offsets[SS_PARTS];
    *bytes = place_parts(layout, offsets);
    return NULL;
}

void *ss_map(int fd, uint64_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return base == MAP_FAILED ? NULL : base;
}

/* The pages exist already, this fills in the page table, so that no request pays for it. */
static void populate(unsigned char *data, uint64_t bytes)
{
#ifdef MADV_POPULATE_WRITE
    if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return;
#endif
    /* Before Linux 5.14: a look at each page does it too. */
    for (uint64_t at = 0; at < bytes; at += PAGE) (void)*(volatile unsigned char *)(data + at);
}

void ss_segment_populate_outputs(ss_segment *segment)
{
    populate(segment->outputs.data, segment->outputs.capacity);
}

/* Describes fresh, zeroed memory. Zeros are empty rings, so the header and the first heartbeat are
 * all there is to write. */
static const char *write_header(void *base, uint64_t bytes, const ss_layout *layout)
{
    ss_header header = {.magic = MAGIC, .version = VERSION, .layout = *layout};
    const char *wrong = ss_layout_settle(&header.layout, &header.bytes);
    if (wrong == NULL && header.bytes != bytes) wrong = "the layout needs another size";
    if (wrong) return wrong;
    place_parts(&header.layout, header.offsets);
    memcpy(base, &header, sizeof header);
    ss_control control;
    ss_control_open(&control, (unsigned char *)base + header.offsets[SS_PART_CONTROL],
                    header.layout.cancel_slots);
    ss_control_beat(&control);
    return NULL;
}

static const char *check_header(const ss_header *header, uint64_t bytes)
{
    if (header->magic != MAGIC) return "not a sidestream segment";
    if (header->version != VERSION) return "a segment of another version";
    ss_layout layout = header->layout;
    uint64_t needed, offsets[SS_PARTS];
    if (ss_layout_settle(&layout, &needed)) return "the layout is impossible";
    if (memcmp(&layout, &header->layout, sizeof layout)) return "the layout is not settled";
    if (needed != header->bytes || needed != bytes) return "the size does not fit the layout";
    place_parts(&layout, offsets);
    int differ = memcmp(offsets, header->offsets, sizeof offsets);
    return differ ? "the offsets do not fit the layout" : NULL;
}

static int open_parts(ss_segment *segment, const uint64_t offsets[SS_PARTS])
{
    unsigned char *base = segment->base;
    const ss_layout *layout = &segment->layout;
    ss_control_open(&segment->control, base + offsets[SS_PART_CONTROL], layout->cancel_slots);
    ss_envelope_open(&segment->submissions, base + offsets[SS_PART_SUBMISSIONS],
                     layout->submission_bytes);
    ss_envelope_open(&segment->results, base + offsets[SS_PART_RESULTS], layout->result_bytes);
    int inputs = ss_payload_open(&segment->inputs, base + offsets[SS_PART_INPUTS],
                                 base + offsets[SS_PART_INPUT_DATA], layout->input_bytes);
    int outputs = ss_payload_open(&segment->outputs, base + offsets[SS_PART_OUTPUTS],
                                  base + offsets[SS_PART_OUTPUT_DATA], layout->output_bytes);
    return inputs && outputs;
}

/* Gives each part its way back here and its bells their way to ring. */
static void connect_parts(ss_segment *segment)
{
    const _Atomic uint32_t *shut = &segment->control.shared->shut;
    segment->control.segment = segment;
    segment->submissions.segment = segment->results.segment = segment;
    segment->inputs.segment = segment->outputs.segment = segment;
    segment->submissions.shut = segment->results.shut = shut;
    segment->inputs.shut = segment->outputs.shut = shut;
    segment->results.data.eventfd = segment->doorbell;
    segment->submissions.space.eventfd = segment->inputs.space.eventfd = segment->doorbell;
    segment->submissions.data.eventfd = -1;
    segment->results.space.eventfd = segment->outputs.space.eventfd = -1;
}

static void dispose(ss_segment *segment)
{
    if (segment->doorbell >= 0) close(segment->doorbell);
    munmap(segment->base, segment->bytes);
    pthread_mutex_destroy(&segment->submissions.lock);
    pthread_mutex_destroy(&segment->results.lock);
    ss_payload_close(&segment->inputs);
    ss_payload_close(&segment->outputs);
    free(segment);
}

static ss_segment *allocate(void *base, const ss_header *header, int doorbell)
{
    ss_segment *segment = aligned_alloc(64, sizeof *segment);
    if (segment == NULL) return NULL;
    memset(segment, 0, sizeof *segment);
    segment->references = 1;
    segment->doorbell = doorbell;
    segment->base = base;
    segment->bytes = header->bytes;
    segment->layout = header->layout;
    return segment;
}

static const char *open_segment(void *base, uint64_t bytes, int doorbell, ss_segment **out)
{
    ss_header header;
    memcpy(&header, base, sizeof header);
    const char *wrong = check_header(&header, bytes);
    ss_segment *segment = wrong ? NULL : allocate(base, &header, doorbell);
    if (segment == NULL) {
        munmap(base, bytes);
        if (doorbell >= 0) close(doorbell);
        return wrong ? wrong : OUT_OF_MEMORY;
    }
    if (!open_parts(segment, header.offsets)) {
        dispose(segment);
        return OUT_OF_MEMORY;
    }
    connect_parts(segment);
    populate(base, header.offsets[SS_PART_OUTPUT_DATA]);
    *out = segment;
    return NULL;
}

/* The engine's side. It never rings its own doorbell from here, and keeps no duplicate of it. Takes
 * over the mapping, also when it fails, as does the next. */
const char *ss_segment_create(void *base, uint64_t bytes, const ss_layout *layout,
                              ss_segment **out)
{
    const char *wrong = write_header(base, bytes, layout);
    if (wrong == NULL) return open_segment(base, bytes, -1, out);
    munmap(base, bytes);
    return wrong;
}

/* The worker's side. The private halves of the rings begin at zero, so a second worker would write
 * over what the first has sent. */
const char *ss_segment_attach(void *base, uint64_t bytes, int doorbell, ss_segment **out)
{
    int duplicate = fcntl(doorbell, F_DUPFD_CLOEXEC, 0);
    if (duplicate < 0 || bytes < PAGE) {
        munmap(base, bytes);
        if (duplicate < 0) return "the doorbell is not a descriptor";
        close(duplicate);
        return "smaller than a header";
    }
    const char *wrong = open_segment(base, bytes, duplicate, out);
    if (wrong) return wrong;
    _Atomic uint32_t *attached = &(*out)->control.shared->attached;
    if (atomic_exchange_explicit(attached, 1, memory_order_relaxed) == 0) return NULL;
    dispose(*out);
    return "a worker has attached to this segment before";
}

/* Sets the flag, then rings every futex bell, armed or not. The caller rings the doorbell. */
void ss_segment_shut_down(ss_segment *segment)
{
    atomic_store_explicit(&segment->control.shared->shut, 1, memory_order_seq_cst);
    ss_bell_ring(&segment->submissions.data);
    ss_bell_ring(&segment->results.space);
    ss_bell_ring(&segment->outputs.space);
}

/* acq_rel: what other holders did to the memory comes before it is unmapped. */
void ss_segment_drop(ss_segment *segment)
{
    if (atomic_fetch_sub_explicit(&segment->references, 1, memory_order_acq_rel) == 1) {
        dispose(segment);
    }
}

void ss_segment_hold(ss_segment *segment)
{
    /* Relaxed: the caller has a reference, so nothing can be torn down meanwhile. */
    atomic_fetch_add_explicit(&segment->references, 1, memory_order_relaxed);
}

ss_envelope_ring *ss_submissions_of(ss_segment *segment)
{
    ss_segment_hold(segment);
    return &segment->submissions;
}

ss_envelope_ring *ss_results_of(ss_segment *segment)
{
    ss_segment_hold(segment);
    return &segment->results;
}

ss_payload_ring *ss_inputs_of(ss_segment *segment)
{
    ss_segment_hold(segment);
    return &segment->inputs;
}

ss_payload_ring *ss_outputs_of(ss_segment *segment)
{
    ss_segment_hold(segment);
    return &segment->outputs;
}

ss_control *ss_control_of(ss_segment *segment)
{
    ss_segment_hold(segment);
    return &segment->control;
}

void ss_envelope_drop(ss_envelope_ring *ring) { ss_segment_drop(ring->segment); }
void ss_payload_drop(ss_payload_ring *ring) { ss_segment_drop(ring->segment); }
void ss_control_drop(ss_control *control) { ss_segment_drop(control->segment); }

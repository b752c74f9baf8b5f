/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding and appending as a server does them: caches of many lengths, pages, 8-bit numbers, a shared prefix, new
 * tokens. The cases alternate. A cache's numbers are codes / 32 with codes of 8 bits, in every type. */
#include "bench.h"

#include "reference/reference.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MIN_ROUNDS   5
#define MAX_ROUNDS   1000
#define LEAST_KEYS   100 /* of the shortest sequence, unless all are shorter */
#define PAGE         16
#define PREFIX       2048 /* keys that sequences share, and how many do; keys of their own */
#define SHARING      16
#define OWN          37
#define OWN_PAGES    ((OWN + PAGE - 1) / PAGE)
#define TOKENS       4096 /* that are appended */
#define CODES        256
#define CODE_0       128 /* place of code 0 */
#define MOST_BUFFERS 64

enum { EQUAL, RAGGED, IN_ORDER, PAGED, INT8, EACH, ONCE, COPY, APPEND, CASES };

typedef struct serving_case {
    const char *name, *dtype;
    int beside; /* number of the case whose time is divided by this one's */
    clmgk_plan *plan;
    clmgk_attention_args args;
    double bytes; /* of K and V that a call has to read; append and copy: to read and to write */
    double samples[MAX_ROUNDS];
    tool_spread ms;
    double error, bound;
    bool ok, refused;
    char reason[CLMGK_ERROR_MESSAGE_SIZE];
} serving_case;

typedef struct serving_run {
    bench_device *device;
    const bench_options *options;
    tool_outputs *outputs;
    int64_t batch, heads, kv_heads, most, size;
    int64_t room; /* rows of a sequence's cache: whole pages */
    int8_t *codes[2];
    uint16_t halves[CODES]; /* f16 of each code / 32, from -128 on */
    cl_int *lengths;
    int64_t keys; /* in all */
    cl_mem buffers[MOST_BUFFERS];
    size_t buffer_count;
    serving_case cases[CASES];
    int rounds; /* 0: not measured yet */
} serving_run;

/* ---- arrays ---------------------------------------------------------------------------------------------------- */

static uint32_t draw(uint32_t *state)
{
    *state = *state * 1664525U + 1013904223U;
    return *state >> 8;
}

static tool_exit make_codes(serving_run *run, tool_error *error)
{
    double numbers[CODES];
    const size_t count = (size_t)(run->kv_heads * run->room * run->size);
    uint32_t state = 1;
    for (int i = 0; i < CODES; i++)
        numbers[i] = (double)(i - CODE_0) / 32.0;
    clmgk_ref_store(CLMGK_DTYPE_F16, numbers, CODES, run->halves);
    run->lengths = calloc((size_t)run->batch, sizeof(*run->lengths));
    for (int n = 0; n < 2; n++) {
        run->codes[n] = calloc(1, count);
        TOOL_TRY(tool_check_memory(run->lengths ? run->codes[n] : NULL, "keys and values", error));
        for (size_t i = 0; i < count; i++)
            run->codes[n][i] = (int8_t)(draw(&state) % 255U - 127U);
    }
    const int64_t least = run->most < LEAST_KEYS ? run->most : LEAST_KEYS, steps = run->batch > 1 ? run->batch - 1 : 1;
    for (int64_t b = 0; b < run->batch; b++) {
        run->lengths[b] = (cl_int)(least + (run->most - least) * b / steps);
        run->keys += run->lengths[b];
    }
    return TOOL_DONE;
}

/* A buffer that the run releases. */
static tool_exit make(serving_run *run, size_t bytes, const void *values, clmgk_buffer *buffer, tool_error *error)
{
    TOOL_TRY(tool_make_buffer(&run->device->tool, bytes, values, &buffer->memory, error));
    run->buffers[run->buffer_count++] = buffer->memory;
    return TOOL_DONE;
}

/* Row j of the cache of a head of keys (n = 0) or values, in f16 or as it is. */
static void put_row(const serving_run *run, int n, int64_t g, int64_t j, bool is_int8, void *to)
{
    const int8_t *const codes = run->codes[n] + (g * run->room + j % run->room) * run->size;
    uint16_t *const halves = to;
    if (is_int8)
        memcpy(to, codes, (size_t)run->size);
    for (int64_t d = 0; !is_int8 && d < run->size; d++)
        halves[d] = run->halves[codes[d] + CODE_0];
}

/* Keys (n = 0) or values of `count` caches [G,room,D]; `pages` not NULL: of pages [G,16,D], of which pages[p] has
 * number p, whose rows are those from p * 16 on of a sequence's, of `each` pages, over and over. */
static void put_caches(const serving_run *run, int n, bool is_int8, const cl_int *pages, int64_t count, int64_t each,
                       unsigned char *to)
{
    const int64_t row = run->size * (is_int8 ? 1 : 2), rows = pages ? PAGE : run->room;
    for (int64_t p = 0; p < count; p++) {
        const int64_t at = pages ? pages[p] : p, first = pages ? p % each * PAGE : 0;
        for (int64_t i = 0; i < run->kv_heads * rows; i++)
            put_row(run, n, i / rows, first + i % rows, is_int8, to + (at * run->kv_heads * rows + i) * row);
    }
}

static tool_exit make_caches(serving_run *run, bool is_int8, const cl_int *pages, int64_t count, int64_t each,
                             clmgk_attention_args *args, tool_error *error)
{
    const int64_t row = run->size * (is_int8 ? 1 : 2), rows = pages ? PAGE : run->room;
    const size_t bytes = (size_t)(count * run->kv_heads * rows * row);
    unsigned char *const host = calloc(1, bytes);
    tool_exit status = tool_check_memory(host, "keys and values", error);
    for (int n = 0; n < 2 && status == TOOL_DONE; n++) {
        put_caches(run, n, is_int8, pages, count, each, host);
        status = make(run, bytes, host, n == 0 ? &args->k : &args->v, error);
    }
    free(host);
    return status;
}

/* ---- cases ----------------------------------------------------------------------------------------------------- */

static clmgk_attention_desc common_desc(const serving_run *run)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.dtype = CLMGK_DTYPE_F16;
    desc.batch = 1;
    desc.heads = run->heads;
    desc.kv_heads = run->kv_heads;
    desc.head_size = run->size;
    return desc;
}

/* The plan, its workspace, and what all passes of attention have: queries, of which row i is the head's number i, and
 * room for results. */
static tool_exit make_plan(serving_run *run, serving_case *one, const clmgk_attention_desc *desc, tool_error *error)
{
    const size_t rows = (size_t)(desc->batch * desc->heads * desc->length), count = rows * (size_t)desc->head_size;
    TOOL_TRY(tool_check_library(clmgk_plan_create(run->device->tool.library, desc, NULL, &one->plan, &error->library),
                                error));
    const size_t workspace = clmgk_plan_workspace_size(one->plan);
    if (workspace > 0)
        TOOL_TRY(make(run, workspace, NULL, &one->args.workspace, error));
    if (desc->append > 0)
        return TOOL_DONE;
    uint16_t *const q = calloc(count, sizeof(*q));
    TOOL_TRY(tool_check_memory(q, "queries", error));
    for (size_t i = 0; i < rows; i++)
        put_row(run, 0, 0, (int64_t)i, false, q + i * (size_t)desc->head_size);
    tool_exit status = make(run, count * sizeof(*q), q, &one->args.q, error);
    if (status == TOOL_DONE)
        status = make(run, count * sizeof(*q), NULL, &one->args.o, error);
    free(q);
    return status;
}

/* A query of each sequence, whose lengths are equal, or differ. */
static tool_exit make_dense(serving_run *run, int number, tool_error *error)
{
    serving_case *const one = &run->cases[number];
    const bool is_int8 = number == INT8;
    clmgk_attention_desc desc = common_desc(run);
    desc.batch = run->batch;
    desc.length = 1;
    desc.length_k = run->room;
    desc.use_lengths = 1;
    cl_int *const equal = calloc((size_t)run->batch, sizeof(*equal));
    TOOL_TRY(tool_check_memory(equal, "lengths", error));
    for (int64_t b = 0; b < run->batch; b++)
        equal[b] = (cl_int)(run->keys / run->batch);
    tool_exit status = make(run, (size_t)run->batch * sizeof(cl_int), number == EQUAL ? equal : run->lengths,
                            &one->args.lengths, error);
    free(equal);
    TOOL_TRY(status);
    if (is_int8) {
        static const float scale = 1.0F / 32.0F;
        desc.dtype_k = desc.dtype_v = CLMGK_STORAGE_INT8;
        desc.use_scale_k = desc.use_scale_v = 1;
        desc.scale_k = desc.scale_v = (clmgk_layout){.strided = 1};
        TOOL_TRY(make(run, sizeof(scale), &scale, &one->args.scale_k, error));
        one->args.scale_v = one->args.scale_k;
    }
    if (number == RAGGED) {
        one->args.k = run->cases[EQUAL].args.k;
        one->args.v = run->cases[EQUAL].args.v;
    } else {
        TOOL_TRY(make_caches(run, is_int8, NULL, run->batch, 1, &one->args, error));
    }
    one->bytes = 2.0 * (double)(run->keys * run->kv_heads * run->size) * (is_int8 ? 1 : 2);
    return make_plan(run, one, &desc, error);
}

/* The same in pages, in order or in any order. */
static tool_exit make_paged(serving_run *run, int number, tool_error *error)
{
    serving_case *const one = &run->cases[number];
    const int64_t each = run->room / PAGE, pages = run->batch * each;
    clmgk_attention_desc desc = common_desc(run);
    uint32_t state = 2;
    desc.batch = run->batch;
    desc.length = 1;
    desc.page_size = PAGE;
    desc.pages = pages;
    desc.table_pages = each;
    desc.use_lengths = 1;
    cl_int *const table = calloc((size_t)pages, sizeof(*table));
    TOOL_TRY(tool_check_memory(table, "pages", error));
    for (int64_t p = 0; p < pages; p++) {
        const int64_t other = number == IN_ORDER ? p : (int64_t)(draw(&state) % (uint32_t)(p + 1));
        table[p] = table[other];
        table[other] = (cl_int)p;
    }
    tool_exit status = make_caches(run, false, table, pages, each, &one->args, error);
    if (status == TOOL_DONE)
        status = make(run, (size_t)pages * sizeof(*table), table, &one->args.page_table, error);
    free(table);
    TOOL_TRY(status);
    one->args.lengths = run->cases[RAGGED].args.lengths;
    one->bytes = run->cases[RAGGED].bytes;
    return make_plan(run, one, &desc, error);
}

/* Sequences with a shared prefix, which each reads by its own table, or all read once. */
static tool_exit make_prefix(serving_run *run, int number, tool_error *error)
{
    enum { SHARED = PREFIX / PAGE, MOST = SHARED + OWN_PAGES, POOL = SHARED + SHARING * OWN_PAGES };
    serving_case *const one = &run->cases[number];
    const bool once = number == ONCE;
    const int columns = once ? OWN_PAGES : MOST;
    static const cl_int prefix_length = PREFIX;
    cl_int table[SHARING * MOST], order[POOL], offsets[SHARING + 1], lengths[SHARING];
    clmgk_attention_desc desc = common_desc(run);
    desc.length = desc.sequences = SHARING;
    desc.causal = 1;
    desc.use_lengths = 1;
    desc.page_size = PAGE;
    desc.pages = POOL;
    desc.table_pages = columns;
    desc.prefix_pages = once ? SHARED : 0;
    for (int p = 0; p < POOL; p++)
        order[p] = p;
    for (int t = 0; t <= SHARING; t++)
        offsets[t] = t;
    for (int t = 0; t < SHARING; t++) {
        lengths[t] = once ? OWN : PREFIX + OWN;
        for (int n = 0; n < columns; n++)
            table[t * columns + n] = !once && n < SHARED ? n : SHARED + t * OWN_PAGES + n - (once ? 0 : SHARED);
    }
    TOOL_TRY(make(run, sizeof(offsets), offsets, &one->args.offsets, error));
    TOOL_TRY(make(run, sizeof(lengths), lengths, &one->args.lengths, error));
    TOOL_TRY(make(run, (size_t)(SHARING * columns) * sizeof(cl_int), table, &one->args.page_table, error));
    if (once) {
        TOOL_TRY(make(run, SHARED * sizeof(cl_int), order, &one->args.prefix_table, error));
        TOOL_TRY(make(run, sizeof(prefix_length), &prefix_length, &one->args.prefix_length, error));
    }
    TOOL_TRY(make_caches(run, false, order, POOL, POOL, &one->args, error));
    one->bytes = 4.0 * (double)(run->kv_heads * run->size) * ((once ? 1 : SHARING) * PREFIX + SHARING * OWN);
    return make_plan(run, one, &desc, error);
}

/* New tokens to slots of pages in any order. */
static tool_exit make_append(serving_run *run, int number, tool_error *error)
{
    enum { PAGES = 4 * TOKENS / PAGE };
    serving_case *const one = &run->cases[number];
    const size_t token = (size_t)(run->kv_heads * run->size) * sizeof(uint16_t);
    cl_int *const slots = calloc(TOKENS, sizeof(*slots));
    clmgk_attention_desc desc = common_desc(run);
    uint32_t state = 3;
    TOOL_TRY(tool_check_memory(slots, "slots", error));
    desc.page_size = PAGE;
    desc.pages = PAGES;
    desc.table_pages = 1;
    desc.length = 1;
    desc.append = TOKENS;
    for (int i = 0; i < TOKENS; i++) /* one in each four slots, shuffled */
        slots[i] = 4 * i + (cl_int)(draw(&state) % 4U);
    for (int i = TOKENS - 1; i > 0; i--) {
        const int other = (int)(draw(&state) % (uint32_t)(i + 1));
        const cl_int slot = slots[i];
        slots[i] = slots[other];
        slots[other] = slot;
    }
    tool_exit status = make(run, TOKENS * sizeof(*slots), slots, &one->args.append_slots, error);
    free(slots);
    TOOL_TRY(status);
    TOOL_TRY(make(run, (size_t)PAGES * PAGE * token, NULL, &one->args.k, error));
    TOOL_TRY(make(run, (size_t)PAGES * PAGE * token, NULL, &one->args.v, error));
    one->args.append_k = run->cases[COPY].args.k;
    one->args.append_v = run->cases[COPY].args.v;
    one->bytes = run->cases[COPY].bytes;
    return make_plan(run, one, &desc, error);
}

/* A copy of as many bytes by the driver. */
static tool_exit make_copy(serving_run *run, int number, tool_error *error)
{
    serving_case *const one = &run->cases[number];
    const size_t row = (size_t)(run->kv_heads * run->size), bytes = TOKENS * row * sizeof(uint16_t);
    uint16_t *const new = calloc(1, bytes);
    TOOL_TRY(tool_check_memory(new, "new tokens", error));
    for (size_t i = 0; i < TOKENS * row; i++)
        new[i] = run->halves[i % CODES];
    tool_exit status = make(run, bytes, new, &one->args.k, error);
    if (status == TOOL_DONE)
        status = make(run, bytes, new, &one->args.v, error);
    free(new);
    TOOL_TRY(status);
    TOOL_TRY(make(run, bytes, NULL, &one->args.append_k, error));
    TOOL_TRY(make(run, bytes, NULL, &one->args.append_v, error));
    one->bytes = 4.0 * (double)bytes;
    return TOOL_DONE;
}

/* ---- results by the formula ------------------------------------------------------------------------------------ */

/* O of a row of queries of head h over keys first, first + 1, ... of the cache, jumping to `own` after `shared`. */
static void expect_row(const serving_run *run, int64_t row, int64_t h, int64_t keys, int64_t shared, int64_t own,
                       double *out)
{
    const int64_t g = h * run->kv_heads / run->heads;
    const int8_t *const q = run->codes[0] + row % run->room * run->size;
    double top = -INFINITY, sum = 0.0;
    for (int64_t d = 0; d < run->size; d++)
        out[d] = 0.0;
    for (int64_t j = 0; j < keys; j++) {
        const int64_t at = (g * run->room + (j < shared ? j : own + j - shared) % run->room) * run->size;
        double score = 0.0;
        for (int64_t d = 0; d < run->size; d++)
            score += (double)(q[d] * run->codes[0][at + d]);
        score /= 1024.0 * sqrt((double)run->size);
        const double change = score > top ? exp(top - score) : 1.0;
        top = score > top ? score : top;
        const double weight = exp(score - top);
        sum = sum * change + weight;
        for (int64_t d = 0; d < run->size; d++)
            out[d] = out[d] * change + weight * run->codes[1][at + d] / 32.0;
    }
    for (int64_t d = 0; d < run->size; d++)
        out[d] /= sum;
}

/* Compares heads of the first, the middle and the last sequence. */
static tool_exit check_attention(serving_run *run, int number, tool_error *error)
{
    serving_case *const one = &run->cases[number];
    const bool prefix = number == EACH || number == ONCE;
    const int64_t sequences = prefix ? SHARING : run->batch, rows = sequences * run->heads;
    const size_t count = (size_t)(rows * run->size);
    uint16_t *const bits = calloc(count, sizeof(*bits));
    double *const found = calloc(count + (size_t)run->size, sizeof(*found)), *const exact = found + count;
    tool_exit status = tool_check_memory(bits && found ? bits : NULL, "results", error);
    if (status == TOOL_DONE)
        status = tool_check_cl(clEnqueueReadBuffer(run->device->tool.queue, one->args.o.memory, CL_TRUE, 0,
                                                   count * sizeof(*bits), bits, 0, NULL, NULL),
                               "clEnqueueReadBuffer", error);
    double largest = 0.0;
    if (status == TOOL_DONE)
        clmgk_ref_load(CLMGK_DTYPE_F16, bits, count, found);
    for (int64_t n = 0; status == TOOL_DONE && n < 3 * run->heads; n++) {
        const int64_t t = n / run->heads * (sequences - 1) / 2, h = n % run->heads;
        const int64_t row = prefix ? h * SHARING + t : t * run->heads + h;
        const int64_t keys = prefix ? PREFIX + OWN : number == EQUAL ? run->keys / run->batch : run->lengths[t];
        expect_row(run, row, h, keys, prefix ? PREFIX : keys, PREFIX + t * OWN_PAGES * PAGE, exact);
        for (int64_t d = 0; d < run->size; d++) {
            const double difference = fabs(found[row * run->size + d] - exact[d]);
            one->error = difference > one->error || isnan(difference) ? difference : one->error;
            largest = fmax(largest, fabs(exact[d]));
        }
    }
    one->bound = 2e-3 * largest;
    free(bits);
    free(found);
    return status;
}

/* The first new token is in its slot. */
static tool_exit check_append(serving_run *run, int number, tool_error *error)
{
    serving_case *const one = &run->cases[number];
    const cl_command_queue queue = run->device->tool.queue;
    const size_t row = (size_t)run->size * sizeof(uint16_t);
    uint16_t found[2] = {0};
    cl_int slot = 0;
    TOOL_TRY(tool_check_cl(
        clEnqueueReadBuffer(queue, one->args.append_slots.memory, CL_TRUE, 0, sizeof(slot), &slot, 0, NULL, NULL),
        "clEnqueueReadBuffer", error));
    const size_t at = ((size_t)slot / PAGE * (size_t)run->kv_heads * PAGE + (size_t)slot % PAGE) * row;
    TOOL_TRY(
        tool_check_cl(clEnqueueReadBuffer(queue, one->args.v.memory, CL_TRUE, at, sizeof(found), found, 0, NULL, NULL),
                      "clEnqueueReadBuffer", error));
    one->error = run->size > 1 && (found[0] != run->halves[0] || found[1] != run->halves[1]) ? 1.0 : 0.0;
    return TOOL_DONE;
}

/* ---- times ----------------------------------------------------------------------------------------------------- */

static tool_exit time_case(serving_run *run, int number, double *ms, tool_error *error)
{
    serving_case *const one = &run->cases[number];
    const tool_device *const tool = &run->device->tool;
    if (number != COPY)
        return tool_time_pass(tool, one->plan, number == APPEND ? CLMGK_PASS_APPEND : CLMGK_PASS_FORWARD, &one->args,
                              ms, error);
    const double start = tool_now_ms();
    const size_t bytes = (size_t)(one->bytes / 4);
    TOOL_TRY(tool_check_cl(
        clEnqueueCopyBuffer(tool->queue, one->args.k.memory, one->args.append_k.memory, 0, 0, bytes, 0, NULL, NULL),
        "clEnqueueCopyBuffer", error));
    TOOL_TRY(tool_check_cl(
        clEnqueueCopyBuffer(tool->queue, one->args.v.memory, one->args.append_v.memory, 0, 0, bytes, 0, NULL, NULL),
        "clEnqueueCopyBuffer", error));
    TOOL_TRY(tool_check_cl(clFinish(tool->queue), "clFinish", error));
    *ms = tool_now_ms() - start;
    return TOOL_DONE;
}

static bool is_measured(const serving_case *one)
{
    return !one->refused && one->ok;
}

/* Plans, first calls, and their results. What the device cannot do is the case's to say. */
static tool_exit prepare(serving_run *run, tool_error *error)
{
    static tool_exit (*const makers[CASES])(serving_run *, int, tool_error *) = {
        make_dense, make_dense, make_paged, make_paged, make_dense, make_prefix, make_prefix, make_copy, make_append};
    for (int i = 0; i < CASES; i++) {
        serving_case *const one = &run->cases[i];
        double ms = 0.0;
        tool_exit status = makers[i](run, i, error);
        if (status == TOOL_DONE)
            status = time_case(run, i, &ms, error);
        if (status == TOOL_DONE && i != COPY)
            status = i == APPEND ? check_append(run, i, error) : check_attention(run, i, error);
        one->ok = one->error <= one->bound;
        if (status != TOOL_DONE && error->library.status != CLMGK_ERROR_UNSUPPORTED)
            return status;
        if (status != TOOL_DONE) {
            one->refused = true;
            snprintf(one->reason, sizeof(one->reason), "%s", error->library.message);
            error->message[0] = '\0';
            error->library.status = CLMGK_OK;
        }
    }
    return TOOL_DONE;
}

static tool_exit time_rounds(serving_run *run, tool_error *error)
{
    const double stop = tool_now_ms() + 1e3 * run->options->seconds;
    int rounds = 0;
    for (; rounds < MIN_ROUNDS || (rounds < MAX_ROUNDS && tool_now_ms() < stop); rounds++)
        for (int i = 0; i < CASES; i++)
            if (is_measured(&run->cases[i]))
                TOOL_TRY(time_case(run, i, &run->cases[i].samples[rounds], error));
    for (int i = 0; i < CASES; i++)
        run->cases[i].ms = tool_spread_of(run->cases[i].samples, (size_t)rounds);
    run->rounds = rounds;
    return TOOL_DONE;
}

/* ---- what is printed ------------------------------------------------------------------------------------------- */

static double ratio_of(const serving_run *run, const serving_case *one)
{
    const serving_case *const other = &run->cases[one->beside];
    return is_measured(other) ? other->ms.median / one->ms.median : NAN;
}

/* Bytes over the time, as a part of the measured rate of reading; of append and copy that of copying. */
static double rate_of(const serving_run *run, const serving_case *one)
{
    const bool copies = one >= &run->cases[COPY];
    const bench_peaks *const peaks = &run->device->peaks;
    return one->bytes / (1e6 * one->ms.median) / (copies ? peaks->copy_gbps : peaks->read_gbps);
}

static void print_table(const void *of, FILE *stream)
{
    const serving_run *const run = of;
    fprintf(stream,
            "serving: %" PRId64 " sequences of %d to %" PRId64 " keys, %" PRId64 " in all; %" PRId64
            " heads over %" PRId64 ", D %" PRId64 "; read %.1f GB/s\n",
            run->batch, run->lengths[0], run->most, run->keys, run->heads, run->kv_heads, run->size,
            run->device->peaks.read_gbps);
    fprintf(stream, "  %-16s %-5s %10s %10s %10s %10s   %s\n", "", "", "median ms", "min ms", "of rate", "error",
            "times the speed of");
    for (int i = 0; i < CASES && run->rounds > 0; i++) {
        const serving_case *const one = &run->cases[i];
        if (one->refused)
            fprintf(stream, "  %-16s %-5s not measured: %s\n", one->name, one->dtype, one->reason);
        else if (!one->ok)
            fprintf(stream, "  %-16s %-5s WRONG, not timed: off by %.1e, bound %.1e\n", one->name, one->dtype,
                    one->error, one->bound);
        else
            fprintf(stream, "  %-16s %-5s %10.3f %10.3f %10.2f %10.1e   %.2f %s\n", one->name, one->dtype,
                    one->ms.median, one->ms.min, rate_of(run, one), one->error, ratio_of(run, one),
                    run->cases[one->beside].name);
    }
}

static json_t *case_json(const serving_run *run, const serving_case *one)
{
    json_t *const key = json_pack(
        "{s:i, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:s}", "device", 0, "case", one->name, "dtype", one->dtype,
        "sequences", (json_int_t)run->batch, "keys", (json_int_t)run->keys, "heads", (json_int_t)run->heads, "kv_heads",
        (json_int_t)run->kv_heads, "head_size", (json_int_t)run->size, "beside", run->cases[one->beside].name);
    if (one->refused)
        return tool_json_merge(key, json_pack("{s:s}", "refused", one->reason));
    if (!one->ok)
        return tool_json_merge(key, json_pack("{s:f, s:f}", "wrong", one->error, "bound", one->bound));
    return tool_json_merge(
        key, json_pack("{s:{s:f, s:f, s:f, s:i}, s:f, s:o, s:o, s:{s:f, s:f}}", "time_ms", "median", one->ms.median,
                       "min", one->ms.min, "max", one->ms.max, "repetitions", run->rounds, "bytes", one->bytes,
                       "fraction_of_rate", tool_json_positive(rate_of(run, one)), "speed",
                       tool_json_positive(ratio_of(run, one)), "error", "max", one->error, "bound", one->bound));
}

static json_t *make_object(const void *of)
{
    const serving_run *const run = of;
    json_t *rows = json_array();
    for (int i = 0; i < CASES && run->rounds > 0; i++)
        tool_json_append(&rows, case_json(run, &run->cases[i]));
    return bench_rows_json(run->device, "serving", rows);
}

/* ---- all of it ------------------------------------------------------------------------------------------------- */

static tool_exit measure(serving_run *run, tool_error *error)
{
    const bench_results results = {run->outputs, run->options->json, make_object, print_table, run};
    int wrong = 0;
    TOOL_TRY(make_codes(run, error));
    TOOL_TRY(bench_probe_open(run->device, run->options->seconds, error));
    TOOL_TRY(bench_probe_memory(run->device, error));
    TOOL_TRY(bench_give_results(&results, true, error));
    TOOL_TRY(prepare(run, error));
    TOOL_TRY(time_rounds(run, error));
    TOOL_TRY(bench_give_results(&results, false, error));
    for (int i = 0; i < CASES; i++)
        wrong += !run->cases[i].refused && !run->cases[i].ok;
    return wrong ? tool_fail(error, TOOL_CHECK_FAILED, "%d %s wrong by the formula", wrong,
                             tool_plural((uint64_t)wrong, "case is", "cases are"))
                 : TOOL_DONE;
}

tool_exit bench_serving(bench_device *device, const bench_options *options, tool_outputs *outputs, tool_error *error)
{
    static const struct {
        const char *name, *dtype;
        int beside;
    } cases[CASES] = {{"equal lengths", "f16", EQUAL}, {"lengths", "f16", EQUAL},   {"pages in order", "f16", RAGGED},
                      {"pages of 16", "f16", RAGGED},  {"lengths", "int8", RAGGED}, {"prefix by each", "f16", EACH},
                      {"prefix once", "f16", EACH},    {"copy", "f16", COPY},       {"append", "f16", COPY}};
    const bench_shape *const shape = &options->request.shapes[0];
    serving_run *const run = calloc(1, sizeof(*run));
    TOOL_TRY(tool_check_memory(run, "the cases", error));
    run->device = device;
    run->options = options;
    run->outputs = outputs;
    run->batch = shape->batch;
    run->heads = shape->heads;
    run->kv_heads = shape->kv_heads;
    run->most = shape->length;
    run->size = shape->head_size;
    run->room = (shape->length + PAGE - 1) / PAGE * PAGE;
    for (int i = 0; i < CASES; i++) {
        run->cases[i].name = cases[i].name;
        run->cases[i].dtype = cases[i].dtype;
        run->cases[i].beside = cases[i].beside;
        run->cases[i].args = (clmgk_attention_args)CLMGK_ATTENTION_ARGS_INIT;
    }
    const tool_exit status = measure(run, error);
    bench_probe_close(device);
    for (int i = 0; i < CASES; i++)
        clmgk_plan_release(run->cases[i].plan);
    for (size_t i = 0; i < run->buffer_count; i++)
        tool_release_buffer(run->buffers[i]);
    for (int n = 0; n < 2; n++)
        free(run->codes[n]);
    free(run->lengths);
    free(run);
    return status;
}

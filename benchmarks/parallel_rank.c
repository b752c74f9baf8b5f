/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of attention over several: its arrays, its rounds, and a transport that counts and delays. */
#include "parallel.h"

#include "reference/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TIMEOUT_S    600
#define LEAST_ROUNDS 3
#define MOST_ROUNDS  50

/* ---- a transport that counts and delays ---------------------------------------------------------------------------
 */

/* Messages come over a line of a rate, one after the other, as if a device of its own carried them. */
typedef struct meter {
    clmgk_dist_transport inner;
    double bytes_per_ms; /* 0: no delay */
    double free_ms;      /* when the line is free */
    bench_traffic traffic;
} meter;

typedef struct metered {
    void *request;
    double due_ms;
} metered;

static clmgk_status meter_begin(void *state, const clmgk_dist_exchange *exchange, void **request, clmgk_error *error)
{
    meter *const m = state;
    metered *const r = calloc(1, sizeof(*r));
    *request = r;
    if (!r) {
        error->status = CLMGK_ERROR_OUT_OF_HOST_MEMORY;
        return CLMGK_ERROR_OUT_OF_HOST_MEMORY;
    }
    const double now = tool_now_ms();
    const double takes = m->bytes_per_ms > 0 ? (double)exchange->receive_bytes / m->bytes_per_ms : 0;
    m->free_ms = TOOL_MAX(now, m->free_ms) + takes;
    r->due_ms = takes > 0 ? m->free_ms : 0;
    m->traffic.bytes += exchange->send_bytes;
    m->traffic.line_ms += takes;
    const clmgk_status status = m->inner.begin(m->inner.state, exchange, &r->request, error);
    if (status != CLMGK_OK)
        free(r);
    return status;
}

static void sleep_until(double ms)
{
    const double left = ms - tool_now_ms();
    if (left <= 0)
        return;
    const struct timespec pause = {(time_t)(left / 1e3), (long)(fmod(left, 1e3) * 1e6)};
    (void)nanosleep(&pause, NULL);
}

static clmgk_status meter_wait(void *state, void *request, double seconds, clmgk_error *error)
{
    const meter *const m = state;
    metered *const r = request;
    const clmgk_status status = m->inner.wait(m->inner.state, r->request, seconds, error);
    sleep_until(r->due_ms);
    free(r);
    return status;
}

static void meter_cancel(void *state)
{
    meter *const m = state;
    m->inner.cancel(m->inner.state);
}

static clmgk_dist_transport metered_transport(meter *m)
{
    clmgk_dist_transport t = m->inner;
    t.state = m;
    t.begin = meter_begin;
    t.wait = meter_wait;
    t.cancel = meter_cancel;
    return t;
}

/* Bytes to a rank, and bytes from one, outside of what is counted. */
static tool_exit pass(const clmgk_dist_transport *t, const void *send, int32_t to, void *receive, int32_t from,
                      int64_t bytes, tool_error *error)
{
    const clmgk_dist_exchange x = {send, send ? bytes : 0, to, receive, receive ? bytes : 0, from, 0};
    void *request = NULL;
    TOOL_TRY(tool_check_library(t->begin(t->state, &x, &request, &error->library), error));
    return tool_check_library(t->wait(t->state, request, TIMEOUT_S, &error->library), error);
}

/* Rank 0's bytes come to all; it has waited for all of them before. */
static tool_exit broadcast(const clmgk_dist_transport *t, void *bytes, int64_t count, tool_error *error)
{
    char here = 0;
    for (int32_t r = 1; r < t->ranks && t->rank == 0; r++)
        TOOL_TRY(pass(t, NULL, r, &here, r, 1, error));
    for (int32_t r = 1; r < t->ranks && t->rank == 0; r++)
        TOOL_TRY(pass(t, bytes, r, NULL, r, count, error));
    if (t->rank == 0)
        return TOOL_DONE;
    TOOL_TRY(pass(t, &here, 0, NULL, 0, 1, error));
    return pass(t, NULL, 0, bytes, 0, count, error);
}

/* ---- arrays -------------------------------------------------------------------------------------------------------
 */

/* A number of an array's element, the same in every cut of the tokens. */
static double number_of(uint64_t array, uint64_t element)
{
    uint64_t x = (array + 1) * UINT64_C(0x9e3779b97f4a7c15) + element * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 31)) * UINT64_C(0x94d049bb133111eb);
    return (double)((x ^ (x >> 29)) >> 11) / 9007199254740992.0 * 2 - 1;
}

/* Element `flat` of a rank's array, as it is in the array of all tokens. */
static uint64_t place_of(const bench_part *part, const clmgk_shape *shape, int64_t flat)
{
    uint64_t place = 0, inner = 1;
    for (int axis = shape->rank - 1; axis >= 0; axis--) {
        const bool tokens = axis > 0 && (shape->axes[axis] == 'N' || shape->axes[axis] == 'S');
        const int64_t index = flat % shape->size[axis];
        flat /= shape->size[axis];
        place += inner * (uint64_t)(tokens ? part->tokens[index] : index);
        inner *= (uint64_t)(tokens ? part->total : shape->size[axis]);
    }
    return place;
}

static bool is_positions(clmgk_array array)
{
    return array == CLMGK_ARRAY_POSITIONS || array == CLMGK_ARRAY_POSITIONS_K;
}

static tool_exit make_array(const tool_device *device, const bench_part *part, const clmgk_attention_desc *desc,
                            clmgk_array array, clmgk_attention_args *args, tool_error *error)
{
    const clmgk_shape shape = clmgk_array_shape(desc, array);
    const size_t count = (size_t)clmgk_array_count(desc, array), size = clmgk_array_element_size(desc, array);
    char *const elements = calloc(count + 1, size);
    TOOL_TRY(tool_check_memory(elements, "an array", error));
    for (size_t n = 0; n < count; n++) {
        const double value = number_of((uint64_t)array, place_of(part, &shape, (int64_t)n));
        if (is_positions(array))
            ((int32_t *)(void *)elements)[n] = part->tokens[n % (size_t)part->count];
        else
            clmgk_ref_store(clmgk_array_dtype(desc, array), &value, 1, elements + n * size);
    }
    cl_mem memory = NULL;
    const tool_exit status = tool_make_buffer(device, count * size, elements, &memory, error);
    clmgk_array_buffer(args, array)->memory = memory;
    free(elements);
    return status;
}

static tool_exit make_arrays(const tool_device *device, const bench_part *part, const clmgk_attention_desc *desc,
                             clmgk_attention_args *args, tool_error *error)
{
    for (clmgk_array a = 0; a < CLMGK_ARRAYS; a++)
        if (a == CLMGK_ARRAY_LSE || clmgk_array_presence(desc, CLMGK_PASS_FORWARD, a) == CLMGK_REQUIRED ||
            clmgk_array_presence(desc, CLMGK_PASS_BACKWARD, a) == CLMGK_REQUIRED)
            TOOL_TRY(make_array(device, part, desc, a, args, error));
    return TOOL_DONE;
}

static void free_arrays(clmgk_attention_args *args)
{
    for (clmgk_array a = 0; a < CLMGK_ARRAYS; a++)
        tool_release_buffer(clmgk_array_buffer(args, a)->memory);
}

/* ---- rounds -------------------------------------------------------------------------------------------------------
 */

static tool_exit time_round(clmgk_dist_plan *plan, const clmgk_attention_args *args, const clmgk_dist_transport *inner,
                            bool backward, double *ms, tool_error *error)
{
    char start = 0;
    TOOL_TRY(broadcast(inner, &start, 1, error));
    const double before = tool_now_ms();
    TOOL_TRY(tool_check_library(backward ? clmgk_dist_backward(plan, args, &error->library)
                                         : clmgk_dist_forward(plan, args, &error->library),
                                error));
    *ms = tool_now_ms() - before;
    return TOOL_DONE;
}

/* A first round, whose time says how many follow; then these. */
static tool_exit time_rounds(const bench_rank *rank, clmgk_dist_plan *plan, const clmgk_attention_args *args, meter *m,
                             bool backward, bench_rank_times *times, tool_error *error)
{
    double samples[MOST_ROUNDS], first = 0;
    int32_t rounds = 0;
    TOOL_TRY(time_round(plan, args, &m->inner, backward, &first, error));
    rounds = (int32_t)TOOL_MAX(LEAST_ROUNDS, TOOL_MIN(MOST_ROUNDS, 1e3 * rank->seconds / TOOL_MAX(first, 1e-3)));
    TOOL_TRY(broadcast(&m->inner, &rounds, sizeof(rounds), error));
    m->traffic = (bench_traffic){0};
    m->free_ms = 0;
    for (int32_t n = 0; n < rounds; n++)
        TOOL_TRY(time_round(plan, args, &m->inner, backward, &samples[n], error));
    times->ms = tool_spread_of(samples, (size_t)rounds).median;
    times->rounds = rounds;
    times->traffic = m->traffic;
    return TOOL_DONE;
}

/* O of this rank's tokens against that of one rank. */
static tool_exit compare(const bench_rank *rank, const tool_device *device, const clmgk_attention_desc *desc,
                         const clmgk_attention_args *args, double *error_found, tool_error *error)
{
    const clmgk_shape shape = clmgk_array_shape(desc, CLMGK_ARRAY_O);
    const size_t count = (size_t)clmgk_array_count(desc, CLMGK_ARRAY_O);
    float *const own = calloc(count + 1, sizeof(*own));
    TOOL_TRY(tool_check_memory(own, "O", error));
    const tool_exit status = tool_check_cl(
        clEnqueueReadBuffer(device->queue, args->o.memory, CL_TRUE, 0, count * sizeof(*own), own, 0, NULL, NULL),
        "clEnqueueReadBuffer", error);
    for (size_t n = 0; n < count && status == TOOL_DONE; n++) {
        float *const whole = &rank->whole_o[place_of(rank->part, &shape, (int64_t)n)];
        if (rank->part->count == rank->part->total)
            *whole = own[n];
        else
            *error_found = fmax(*error_found, fabs((double)own[n] - (double)*whole));
    }
    free(own);
    return status;
}

tool_exit bench_run_rank(const bench_rank *rank, const clmgk_dist_transport *transport, bench_rank_result *result,
                         tool_error *error)
{
    clmgk_attention_desc desc = rank->desc, resolved = CLMGK_ATTENTION_DESC_INIT;
    clmgk_attention_args args = CLMGK_ATTENTION_ARGS_INIT;
    clmgk_dist_plan *plan = NULL;
    tool_device device = {0};
    meter m = {.inner = *transport};
    const clmgk_dist_transport counted = metered_transport(&m);
    tool_exit status = TOOL_DONE;
    desc.length = desc.length_k = rank->part->count;
    const clmgk_dist_desc d = {.struct_size = sizeof(d),
                               .attention = &desc,
                               .lengths_k = rank->lengths,
                               .schedule = rank->schedule,
                               .timeout = TIMEOUT_S};
    TOOL_TRY_GOTO(status, tool_check_library(clmgk_attention_validate(&desc, &resolved, &error->library), error), done);
    TOOL_TRY_GOTO(status, tool_device_open(rank->device, &device, error), done);
    TOOL_TRY_GOTO(status, make_arrays(&device, rank->part, &resolved, &args, error), done);
    TOOL_TRY_GOTO(
        status,
        tool_check_library(
            clmgk_dist_plan_create(device.library, device.queue, &d, &counted, NULL, &plan, &error->library), error),
        done);
    for (int p = 0; p < 2; p++) {
        m.bytes_per_ms = rank->bytes_per_ms[p];
        TOOL_TRY_GOTO(status, time_rounds(rank, plan, &args, &m, p == 1, &result->times[p], error), done);
    }
    if (rank->whole_o)
        status = compare(rank, &device, &resolved, &args, &result->error, error);
    for (int64_t n = 0; n < rank->part->count; n++)
        result->pairs += rank->part->tokens[n] + 1;
done:
    if (status != TOOL_DONE)
        transport->cancel(transport->state);
    clmgk_dist_plan_release(plan);
    free_arrays(&args);
    tool_device_close(&device);
    return status;
}

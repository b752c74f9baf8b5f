/* SPDX-License-Identifier: Apache-2.0 */
#include "dist/ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A rank's OpenCL and plan. */
typedef struct place {
    cl_device_id device; /* a part of one; NULL: a whole one */
    cl_context cl;
    cl_command_queue queue;
    clmgk_context *context;
    clmgk_dist_plan *plan;
    cl_mem memory[TH_ARRAYS];
} place;

static clmgk_status failed(tr_rank *w, const char *what)
{
    w->error.status = CLMGK_ERROR_OPENCL;
    (void)snprintf(w->error.message, sizeof(w->error.message), "%s", what);
    return CLMGK_ERROR_OPENCL;
}

/* Which tokens an array has; TR_KINDS: none, all ranks have it alike. */
static tr_kind kind_of(th_name name)
{
    static const th_name queries[] = {TH_Q,      TH_O,        TH_LSE,    TH_LSE_LOW,    TH_POSITIONS,
                                      TH_GRAD_O, TH_GRAD_LSE, TH_GRAD_Q, TH_DENOMINATOR};
    static const th_name keys[] = {TH_K, TH_V, TH_POSITIONS_K, TH_GRAD_K, TH_GRAD_V};
    for (size_t n = 0; n < TH_COUNT(queries); n++)
        if (queries[n] == name)
            return TR_QUERIES;
    for (size_t n = 0; n < TH_COUNT(keys); n++)
        if (keys[n] == name)
            return TR_KEYS;
    return TR_KINDS;
}

static bool is_result(th_name name)
{
    return name == TH_O || name == TH_LSE || name == TH_DENOMINATOR || th_is_gradient(name);
}

/* Rows before an axis of tokens: [lists, tokens, size]; positions are [batch, tokens]. */
static int64_t lists_of(const th_array *array, th_name name)
{
    return name == TH_POSITIONS || name == TH_POSITIONS_K ? array->shape[0]
                                                          : array->shape[0] * array->shape[1] * array->shape[2];
}

static int64_t tokens_of(const th_array *array, th_name name)
{
    return name == TH_POSITIONS || name == TH_POSITIONS_K ? array->shape[1] : array->shape[3];
}

/* Copies a rank's tokens out of the whole's values, or back. */
static void move(const tr_cut *c, int32_t rank, const th_array *whole, th_name name, double *own, bool back)
{
    const tr_kind kind = kind_of(name);
    const int64_t lists = lists_of(whole, name), size = whole->shape[4], count = c->lengths[kind][rank];
    const int32_t *tokens = c->tokens[kind];
    for (int32_t r = 0; r < rank; r++)
        tokens += c->lengths[kind][r];
    for (int64_t list = 0; list < lists; list++)
        for (int64_t n = 0; n < count; n++) {
            double *const there = whole->values + (list * tokens_of(whole, name) + tokens[n]) * size;
            double *const here = own + (list * count + n) * size;
            memcpy(back ? there : here, back ? here : there, (size_t)size * sizeof(double));
        }
}

static size_t count_of(const tr_rank *w, th_name name)
{
    const th_array *const array = &w->whole->array[name];
    const tr_kind kind = kind_of(name);
    return kind == TR_KINDS ? array->count
                            : (size_t)(lists_of(array, name) * array->shape[4] * w->cut->lengths[kind][w->rank]);
}

/* How many of a rank's queries, which are in order, are before each batch's end. */
static void count_rows(const tr_rank *w, const double *ends, double *own)
{
    int64_t first = 0;
    for (int32_t r = 0; r < w->rank; r++)
        first += w->cut->lengths[TR_QUERIES][r];
    for (int64_t b = 0; b < w->whole->desc.batch; b++)
        own[b] = fmin(fmax(ends[b] - (double)first, 0.0), (double)w->cut->lengths[TR_QUERIES][w->rank]);
}

/* How many of a rank's tokens are before each sequence of the whole, whose tokens are side by side there. */
static void count_sequences(const tr_rank *w, tr_kind kind, const th_array *offsets, double *own)
{
    const int32_t *tokens = w->cut->tokens[kind];
    for (int32_t r = 0; r < w->rank; r++)
        tokens += w->cut->lengths[kind][r];
    for (size_t t = 0; t < offsets->count; t++)
        for (int64_t n = 0; n < w->cut->lengths[kind][w->rank]; n++)
            own[t] += tokens[n] < offsets->values[t];
}

static clmgk_status make_memory(tr_rank *w, place *p, th_name name)
{
    const th_array *const array = &w->whole->array[name];
    const size_t count = count_of(w, name), bytes = count * array->element;
    void *const elements = calloc(count + 1, array->element);
    double *const values = calloc(count + 1, sizeof(double));
    cl_int code = CL_SUCCESS;
    if (elements && values && count > 0) {
        if (name == TH_LENGTHS_Q)
            count_rows(w, array->values, values);
        else if (name == TH_OFFSETS || name == TH_OFFSETS_K)
            count_sequences(w, name == TH_OFFSETS ? TR_QUERIES : TR_KEYS, array, values);
        else if (kind_of(name) == TR_KINDS)
            memcpy(values, array->values, count * sizeof(double));
        else
            move(w->cut, w->rank, array, name, values, false);
        if (array->integer)
            for (size_t n = 0; n < count; n++)
                ((int32_t *)elements)[n] = (int32_t)values[n];
        else
            clmgk_ref_store(array->dtype, values, count, elements);
        p->memory[name] = clCreateBuffer(p->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, bytes, elements, &code);
    }
    free(elements);
    free(values);
    return elements && values && code == CL_SUCCESS ? CLMGK_OK : failed(w, "clCreateBuffer");
}

static clmgk_status take_result(tr_rank *w, const place *p, th_name name)
{
    const th_array *const array = &w->whole->array[name];
    const size_t count = count_of(w, name);
    void *const elements = calloc(count + 1, array->element);
    w->result[name] = calloc(count + 1, sizeof(double));
    cl_int code = CL_SUCCESS;
    if (elements && count > 0)
        code =
            clEnqueueReadBuffer(p->queue, p->memory[name], CL_TRUE, 0, count * array->element, elements, 0, NULL, NULL);
    if (elements && w->result[name])
        clmgk_ref_load(array->dtype, elements, count, w->result[name]);
    free(elements);
    return code == CL_SUCCESS ? CLMGK_OK : failed(w, "clEnqueueReadBuffer");
}

/* The rank's part of the device's compute units. */
static cl_int split_device(const tr_rank *w, const clmgk_device_info *whole, place *p)
{
    const int32_t ranks = w->cut->ranks;
    const cl_uint units = w->cut->sub_devices ? whole->compute_units / (cl_uint)ranks : 0;
    cl_device_partition_property counts[TR_RANKS + 3] = {CL_DEVICE_PARTITION_BY_COUNTS};
    cl_device_id devices[TR_RANKS];
    for (int32_t r = 0; r < ranks; r++)
        counts[1 + r] = (cl_device_partition_property)units;
    const cl_int code = units > 0 ? clCreateSubDevices(whole->device_id, counts, (cl_uint)ranks, devices, NULL) : 0;
    for (int32_t r = 0; r < ranks && units > 0 && code == CL_SUCCESS; r++)
        if (r == w->rank)
            p->device = devices[r];
        else
            clReleaseDevice(devices[r]);
    return code;
}

static clmgk_status open_place(tr_rank *w, place *p)
{
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    cl_int code = CL_SUCCESS;
    if (clmgk_select_device(getenv("CLMGK_DEVICE"), &info, &w->error) != CLMGK_OK)
        return w->error.status;
    if (split_device(w, &info, p) != CL_SUCCESS)
        return failed(w, "clCreateSubDevices");
    const cl_device_id device = p->device ? p->device : info.device_id;
    p->cl = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    p->queue = p->cl ? clCreateCommandQueue(p->cl, device, 0, &code) : NULL;
    if (!p->queue)
        return failed(w, "clCreateContext");
    return clmgk_context_create(p->cl, device, NULL, &p->context, &w->error);
}

static void close_place(place *p)
{
    clmgk_dist_plan_release(p->plan);
    for (size_t n = 0; n < TH_ARRAYS; n++)
        if (p->memory[n])
            clReleaseMemObject(p->memory[n]);
    clmgk_context_release(p->context);
    if (p->queue)
        clReleaseCommandQueue(p->queue);
    if (p->cl)
        clReleaseContext(p->cl);
    if (p->device)
        clReleaseDevice(p->device);
}

/* ---- faults ----------------------------------------------------------------------------------------------------- */

static clmgk_status faulty_begin(void *state, const clmgk_dist_exchange *exchange, void **request, clmgk_error *error)
{
    tr_rank *const w = state;
    clmgk_dist_exchange x = *exchange;
    const bool failing = w->exchanges-- <= 0;
    if (failing && w->fault == TR_DIES)
        return failed(w, "it is gone");
    if (failing && w->fault == TR_SHORTENS && x.send_bytes > 4)
        x.send_bytes -= 4;
    return w->inner.begin(w->inner.state, &x, request, error);
}

static clmgk_status faulty_wait(void *state, void *request, double seconds, clmgk_error *error)
{
    const tr_rank *const w = state;
    return w->inner.wait(w->inner.state, request, seconds, error);
}

static void faulty_cancel(void *state)
{
    const tr_rank *const w = state;
    if (w->fault != TR_DIES)
        w->inner.cancel(w->inner.state);
}

static clmgk_status make_plan(tr_rank *w, place *p)
{
    clmgk_attention_desc desc = w->whole->desc;
    clmgk_dist_transport transport;
    desc.resolved = 0;
    desc.length = w->cut->lengths[TR_QUERIES][w->rank];
    desc.length_k = th_keys(w->cut->lengths[TR_KEYS][w->rank]);
    if (w->heads > 0)
        desc.heads = w->heads;
    desc.all_heads = 0;
    desc.q = desc.k = desc.v = desc.o = desc.lse = (clmgk_layout){0};
    desc.grad_o = desc.grad_q = desc.grad_k = desc.grad_v = (clmgk_layout){0};
    const clmgk_dist_desc d = {.struct_size = sizeof(d),
                               .attention = &desc,
                               .lengths_k = w->cut->lengths[TR_KEYS],
                               .schedule = w->schedule,
                               .timeout = w->timeout};
    const clmgk_status status = clmgk_dist_local_transport(w->local, w->rank, &w->inner, &w->error);
    transport = w->inner;
    if (w->fault != TR_SOUND) {
        transport.state = w;
        transport.begin = faulty_begin;
        transport.wait = faulty_wait;
        transport.cancel = faulty_cancel;
    }
    return status != CLMGK_OK
               ? status
               : clmgk_dist_plan_create(p->context, p->queue, &d, &transport, w->options, &p->plan, &w->error);
}

static clmgk_status run_passes(tr_rank *w, place *p)
{
    clmgk_attention_args args = CLMGK_ATTENTION_ARGS_INIT;
    clmgk_status status = CLMGK_OK;
    args.seed = w->whole->seed;
    args.accumulate = w->whole->accumulate;
    for (th_name name = 0; name < TH_ARRAYS && status == CLMGK_OK; name++)
        if (w->whole->array[name].used && (kind_of(name) != TR_KINDS || th_is_input(name) || th_is_gradient(name))) {
            status = make_memory(w, p, name);
            clmgk_array_buffer(&args, (clmgk_array)name)->memory = p->memory[name];
        }
    if (status == CLMGK_OK)
        status = clmgk_dist_forward(p->plan, &args, &w->error);
    if (status == CLMGK_OK && w->fault == TR_LEAVES)
        return status;
    if (status == CLMGK_OK)
        status = clmgk_dist_backward(p->plan, &args, &w->error);
    for (th_name name = 0; name < TH_ARRAYS && status == CLMGK_OK; name++)
        if (is_result(name) && w->whole->array[name].used)
            status = take_result(w, p, name);
    return status;
}

static void *run_rank(void *argument)
{
    tr_rank *const w = argument;
    place p = {0};
    if (w->fault == TR_ABSENT)
        return NULL;
    w->status = open_place(w, &p);
    if (w->status == CLMGK_OK)
        w->status = make_plan(w, &p);
    if (w->status == CLMGK_OK)
        w->status = run_passes(w, &p);
    close_place(&p);
    return NULL;
}

void tr_run(const th_problem *whole, const tr_cut *cut, const clmgk_plan_options *options, clmgk_dist_schedule schedule,
            tr_rank *ranks)
{
    clmgk_dist_local *local = NULL;
    th_expect_ok(clmgk_dist_local_create(cut->ranks, &local, &th_error));
    for (int32_t r = 0; r < cut->ranks; r++) {
        ranks[r].whole = whole;
        ranks[r].cut = cut;
        ranks[r].options = options;
        ranks[r].local = local;
        ranks[r].schedule = schedule;
        ranks[r].rank = r;
        ranks[r].timeout = ranks[r].timeout > 0 ? ranks[r].timeout : 600;
    }
    th_run_threads(run_rank, ranks, sizeof(ranks[0]), (size_t)cut->ranks);
    clmgk_dist_local_release(local);
}

void tr_free(tr_rank *ranks, int32_t count)
{
    for (int32_t r = 0; r < count; r++)
        for (size_t name = 0; name < TH_ARRAYS; name++)
            free(ranks[r].result[name]);
}

/* Gives the gradients that are added up a value before, or takes it away. */
static void add_before(th_problem *whole, double before)
{
    for (th_name name = 0; name < TH_ARRAYS; name++)
        for (size_t n = 0; (whole->accumulate & clmgk_array_get_info((clmgk_array)name)->gradient) != 0 &&
                           n < whole->array[name].count;
             n++)
            whole->array[name].values[n] = before + (before > 0 ? 0 : whole->array[name].values[n]);
}

/* Of arrays that all ranks have alike all have the same bits. */
static void put_result(const tr_rank *w, th_array *whole, th_name name)
{
    const size_t bytes = whole->count * sizeof(double);
    if (kind_of(name) != TR_KINDS)
        move(w->cut, w->rank, whole, name, w->result[name], true);
    else if (w->rank == 0)
        memcpy(whole->values, w->result[name], bytes);
    else if (memcmp(whole->values, w->result[name], bytes) != 0)
        fail_msg("array %d: rank %d has another one", (int)name, (int)w->rank);
}

void tr_run_whole(th_problem *whole, const tr_cut *cut, const clmgk_plan_options *options, clmgk_dist_schedule schedule)
{
    tr_rank ranks[TR_RANKS] = {{0}};
    add_before(whole, 0.0625);
    tr_run(whole, cut, options, schedule, ranks);
    for (int32_t r = 0; r < cut->ranks; r++) /* the first cause */
        if (ranks[r].status != CLMGK_OK && ranks[r].status != CLMGK_ERROR_COMMUNICATION)
            fail_msg("rank %d of %d, schedule %d: %s", (int)r, (int)cut->ranks, (int)schedule, ranks[r].error.message);
    for (int32_t r = 0; r < cut->ranks; r++) {
        if (ranks[r].status != CLMGK_OK)
            fail_msg("rank %d of %d, schedule %d: %s", (int)r, (int)cut->ranks, (int)schedule, ranks[r].error.message);
        for (th_name name = 0; name < TH_ARRAYS; name++)
            if (ranks[r].result[name])
                put_result(&ranks[r], &whole->array[name], name);
    }
    add_before(whole, -0.0625);
    tr_free(ranks, cut->ranks);
}

void tr_round(th_problem *problem)
{
    for (th_name name = 0; name < TH_ARRAYS; name++) {
        const th_array *const array = &problem->array[name];
        for (size_t n = 0; array->used && !array->integer && n < array->count; n++) {
            unsigned char element[sizeof(float)];
            clmgk_ref_store(array->dtype, &array->values[n], 1, element);
            clmgk_ref_load(array->dtype, element, 1, &array->values[n]);
        }
    }
}

/* ---- checks ----------------------------------------------------------------------------------------------------- */

const th_name tr_results[TR_RESULTS] = {TH_O, TH_GRAD_Q, TH_GRAD_K, TH_GRAD_V};

/* Results of all ranks, one array after the other. */
static double *copy_results(const th_problem *problem, size_t *count)
{
    double *values = NULL;
    *count = 0;
    for (size_t n = 0; n < TR_RESULTS; n++) {
        const th_array *const array = &problem->array[tr_results[n]];
        values = realloc(values, (*count + array->count + 1) * sizeof(*values));
        assert_non_null(values);
        memcpy(values + *count, array->values, array->count * sizeof(*values));
        *count += array->count;
    }
    return values;
}

void tr_expect_equal_bits(th_problem *whole, const tr_cut *cut, const clmgk_plan_options *options,
                          clmgk_dist_schedule schedule)
{
    size_t count = 0, again = 0;
    double *const first = copy_results(whole, &count);
    tr_run_whole(whole, cut, options, schedule);
    double *const second = copy_results(whole, &again);
    if (count != again || memcmp(first, second, count * sizeof(*first)) != 0)
        fail_msg("%d ranks, schedule %d: other bits in a second run", (int)cut->ranks, (int)schedule);
    free(first);
    free(second);
}

static void add_error(const double *values, const double *exact, size_t count, double *error, double *scale)
{
    for (size_t i = 0; i < count; i++) {
        *error += (values[i] - exact[i]) * (values[i] - exact[i]);
        *scale += exact[i] * exact[i];
    }
}

void tr_add_errors(const th_problem *problem, const clmgk_ref_answer *answer, const clmgk_ref_arrays *exact,
                   double sums[TR_RESULTS])
{
    for (size_t n = 0; n < TR_RESULTS; n++) {
        const th_array *const array = &problem->array[tr_results[n]];
        const size_t size = (size_t)answer->value_size;
        double error = 0, scale = 0;
        if (n > 0)
            add_error(array->values, exact->exact[tr_results[n] - TH_GRAD_Q], array->count, &error, &scale);
        for (int64_t row = 0; n == 0 && row < answer->rows; row++)
            add_error(array->values + (size_t)answer->row[row] * size, answer->o + (size_t)row * size, size, &error,
                      &scale);
        sums[n] += scale > 0 ? error / scale : 0;
    }
}

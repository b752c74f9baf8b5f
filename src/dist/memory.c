/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the device, and gradients of arrays that all ranks have alike. */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

clmgk_status mgk_dist_make_memory(const clmgk_dist_plan *p, cl_mem_flags flags, int64_t bytes, cl_mem *memory,
                                  clmgk_error *error)
{
    cl_context context = NULL;
    cl_int code = clGetCommandQueueInfo(p->queue, CL_QUEUE_CONTEXT, sizeof(cl_context), (void *)&context, NULL);
    DIST_TRY(mgk_dist_check_cl(error, code, "clGetCommandQueueInfo"));
    *memory = clCreateBuffer(context, flags, (size_t)bytes, NULL, &code);
    return mgk_dist_check_cl(error, code, "clCreateBuffer");
}

clmgk_status mgk_dist_read(const clmgk_dist_plan *p, const clmgk_buffer *from, int64_t element, int64_t bytes, void *to,
                           clmgk_error *error)
{
    if (bytes == 0)
        return CLMGK_OK;
    if (from->memory == NULL)
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_BUFFER, "args: NULL: expected this rank's arrays");
    return mgk_dist_check_cl(error,
                             clEnqueueReadBuffer(p->queue, from->memory, CL_TRUE,
                                                 (size_t)from->offset * (size_t)element, (size_t)bytes, to, 0, NULL,
                                                 NULL),
                             "clEnqueueReadBuffer");
}

clmgk_status mgk_dist_write(const clmgk_dist_plan *p, const clmgk_buffer *to, int64_t element, int64_t bytes,
                            const void *from, clmgk_error *error)
{
    if (bytes == 0)
        return CLMGK_OK;
    if (to->memory == NULL)
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_BUFFER, "args: NULL: expected this rank's arrays");
    return mgk_dist_check_cl(error,
                             clEnqueueWriteBuffer(p->queue, to->memory, CL_TRUE, (size_t)to->offset * (size_t)element,
                                                  (size_t)bytes, from, 0, NULL, NULL),
                             "clEnqueueWriteBuffer");
}

int64_t mgk_dist_groups_before(const clmgk_dist_plan *p, int32_t rank)
{
    return p->desc.kv_heads * rank / p->transport.ranks;
}

int64_t mgk_dist_head_offset(const clmgk_dist_plan *p, clmgk_array array)
{
    const clmgk_attention_desc *const d = &p->desc;
    const clmgk_shape shape = clmgk_array_shape(d, array);
    if (p->schedule != CLMGK_DIST_ALL_TO_ALL || shape.rank == 0 || shape.axes[0] != 'H')
        return 0;
    return clmgk_array_count(d, array) / d->kv_heads * mgk_dist_groups_before(p, p->transport.rank);
}

clmgk_status mgk_dist_start(const clmgk_dist_plan *p, clmgk_status status, clmgk_error *error)
{
    return status != CLMGK_OK ? status : mgk_dist_check_cl(error, clFlush(p->queue), "clFlush");
}

clmgk_status mgk_dist_finish(const clmgk_dist_plan *p, clmgk_status status, clmgk_error *error)
{
    const cl_int code = clFinish(p->queue);
    return status != CLMGK_OK ? status : mgk_dist_check_cl(error, code, "clFinish");
}

void mgk_dist_add_floats(float *to, const float *from, int64_t count)
{
    for (int64_t i = 0; i < count; ++i)
        to[i] += from[i];
}

clmgk_status mgk_dist_write_sum(const clmgk_dist_plan *p, const clmgk_buffer *to, bool added, void *values,
                                int64_t bytes, clmgk_error *error)
{
    void *before = NULL;
    if (bytes > 0 && added) {
        DIST_TRY(mgk_dist_alloc(bytes, &before, error));
        const clmgk_status status = mgk_dist_read(p, to, (int64_t)sizeof(float), bytes, before, error);
        if (status == CLMGK_OK)
            mgk_dist_add_floats(values, before, bytes / (int64_t)sizeof(float));
        free(before);
        DIST_TRY(status);
    }
    return mgk_dist_write(p, to, (int64_t)sizeof(float), bytes, values, error);
}

/* ---- gradients of arrays that all ranks have alike ----------------------------------------------------------------
 */

static bool is_shared(const clmgk_dist_plan *p, clmgk_array array)
{
    const uint32_t own = (uint32_t)(CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V);
    return (clmgk_array_get_info(array)->gradient & p->desc.gradients & ~own) != 0;
}

int64_t mgk_dist_sums_count(const clmgk_dist_plan *p)
{
    int64_t count = 0;
    for (clmgk_array a = 0; a < CLMGK_ARRAYS; ++a)
        count += is_shared(p, a) ? clmgk_array_count(&p->desc, a) : 0;
    return count;
}

/* Sinks have no keys, so every pass over a part of the keys gives all of their gradient: only the first one counts, and
 * the others write it behind the sums. */
clmgk_status mgk_dist_begin_sums(const clmgk_dist_plan *p, bool first, clmgk_attention_args *args, clmgk_error *error)
{
    static const cl_uint zero = 0;
    const size_t bytes = (size_t)mgk_dist_sums_count(p) * sizeof(float);
    int64_t place = 0;
    if (bytes == 0)
        return CLMGK_OK;
    for (clmgk_array a = 0; a < CLMGK_ARRAYS; ++a)
        if (is_shared(p, a)) {
            const bool behind = a == CLMGK_ARRAY_GRAD_SINKS && !first;
            const int64_t begin = behind ? mgk_dist_sums_count(p) : place + mgk_dist_head_offset(p, a);
            *clmgk_array_buffer(args, a) = (clmgk_buffer){p->sums, (uint64_t)begin};
            args->accumulate |= clmgk_array_get_info(a)->gradient;
            place += clmgk_array_count(&p->desc, a);
        }
    return first ? mgk_dist_check_cl(
                       error, clEnqueueFillBuffer(p->queue, p->sums, &zero, sizeof(zero), 0, 2 * bytes, 0, NULL, NULL),
                       "clEnqueueFillBuffer")
                 : CLMGK_OK;
}

clmgk_status mgk_dist_share(const clmgk_dist_plan *p, void *all, int64_t bytes, clmgk_error *error)
{
    char *const parts = all;
    mgk_dist_flight flight;
    DIST_TRY(mgk_dist_flight_begin(p, p->transport.ranks, &flight, error));
    clmgk_status status = CLMGK_OK;
    for (int32_t n = 1; n < p->transport.ranks && status == CLMGK_OK; ++n) {
        const int32_t to = mgk_dist_neighbour(p, n), from = mgk_dist_neighbour(p, -n);
        const clmgk_dist_exchange x = {.send = parts + p->transport.rank * bytes,
                                       .send_bytes = bytes,
                                       .to = to,
                                       .receive = parts + from * bytes,
                                       .receive_bytes = bytes,
                                       .from = from};
        status = mgk_dist_flight_add(&flight, &x, error);
    }
    return mgk_dist_flight_end(&flight, status, error);
}

static clmgk_status write_sums(const clmgk_dist_plan *p, const clmgk_attention_args *args, float *sums,
                               clmgk_error *error)
{
    clmgk_attention_args a = *args;
    for (clmgk_array array = 0; array < CLMGK_ARRAYS; ++array)
        if (is_shared(p, array)) {
            const int64_t count = clmgk_array_count(&p->desc, array);
            DIST_TRY(mgk_dist_write_sum(p, clmgk_array_buffer(&a, array),
                                        (args->accumulate & clmgk_array_get_info(array)->gradient) != 0, sums,
                                        count * (int64_t)sizeof(float), error));
            sums += count;
        }
    return CLMGK_OK;
}

clmgk_status mgk_dist_end_sums(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_error *error)
{
    const int64_t count = mgk_dist_sums_count(p), bytes = count * (int64_t)sizeof(float);
    const clmgk_buffer own = {p->sums, 0};
    float *all = NULL;
    if (count == 0)
        return CLMGK_OK;
    DIST_TRY(mgk_dist_alloc(bytes * p->transport.ranks, (void **)&all, error));
    clmgk_status status = mgk_dist_read(p, &own, 1, bytes, all + p->transport.rank * count, error);
    if (status == CLMGK_OK)
        status = mgk_dist_share(p, all, bytes, error);
    for (int32_t r = 1; r < p->transport.ranks && status == CLMGK_OK; ++r)
        mgk_dist_add_floats(all, all + r * count, count);
    if (status == CLMGK_OK)
        status = write_sums(p, args, all, error);
    free(all);
    return status;
}

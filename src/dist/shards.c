/* SPDX-License-Identifier: Apache-2.0 */
/* Shards between host memory and the device, and backward passes over the keys that are there. */
#include "plan.h"

static int64_t track_bytes(const mgk_dist_cargo *cargo, int track, int64_t tokens)
{
    return cargo->track[track].lists * cargo->track[track].bytes * tokens;
}

int64_t mgk_dist_own_keys(const clmgk_dist_plan *p)
{
    return p->lengths_k[p->transport.rank];
}

clmgk_status mgk_dist_read_shard(const clmgk_dist_plan *p, const clmgk_attention_args *args, char *shard,
                                 clmgk_error *error)
{
    const clmgk_buffer *const from[DIST_TRACKS] = {&args->k, &args->v, &args->positions_k};
    static const clmgk_array array[DIST_TRACKS] = {CLMGK_ARRAY_K, CLMGK_ARRAY_V, CLMGK_ARRAY_POSITIONS_K};
    for (int t = 0; t < DIST_TRACKS; ++t)
        DIST_TRY(mgk_dist_read(p, from[t], (int64_t)clmgk_array_element_size(&p->desc, array[t]),
                               track_bytes(&p->keys, t, mgk_dist_own_keys(p)),
                               shard + mgk_dist_track_begin(&p->keys, t, mgk_dist_own_keys(p)), error));
    return CLMGK_OK;
}

clmgk_status mgk_dist_write_shard(const clmgk_dist_plan *p, const char *shard, int64_t tokens, const int32_t *begins,
                                  clmgk_error *error)
{
    for (int t = 0; t < DIST_TRACKS; ++t) {
        const clmgk_buffer to = {p->memory[t], 0};
        DIST_TRY(mgk_dist_write(p, &to, 1, track_bytes(&p->keys, t, tokens),
                                shard + mgk_dist_track_begin(&p->keys, t, tokens), error));
    }
    return mgk_dist_write_begins(p, DIST_KEYS, begins, error);
}

/* dK and dV that a backward pass wrote. */
static clmgk_status read_gradients(const clmgk_dist_plan *p, int64_t tokens, char *shard, clmgk_error *error)
{
    for (int t = 0; t < 2; ++t) {
        const clmgk_buffer from = {p->grad[t], 0};
        DIST_TRY(mgk_dist_read(p, &from, 1, track_bytes(&p->gradients, t, tokens),
                               shard + mgk_dist_track_begin(&p->gradients, t, tokens), error));
    }
    return CLMGK_OK;
}

void mgk_dist_add_shard(const clmgk_dist_plan *p, char *to, const char *from, int64_t tokens)
{
    mgk_dist_add_floats((float *)(void *)to, (const float *)(const void *)from,
                        mgk_dist_cargo_bytes(&p->gradients, tokens) / (int64_t)sizeof(float));
}

/* dK or dV goes to the call's array, or is added to what is there. */
static clmgk_status write_gradient(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_gradient gradient,
                                   int track, char *shard, clmgk_error *error)
{
    return mgk_dist_write_sum(p, track == DIST_K ? &args->grad_k : &args->grad_v,
                              (args->accumulate & (uint32_t)gradient) != 0,
                              shard + mgk_dist_track_begin(&p->gradients, track, mgk_dist_own_keys(p)),
                              track_bytes(&p->gradients, track, mgk_dist_own_keys(p)), error);
}

clmgk_status mgk_dist_write_gradients(const clmgk_dist_plan *p, const clmgk_attention_args *args, char *shard,
                                      clmgk_error *error)
{
    DIST_TRY(write_gradient(p, args, CLMGK_GRADIENT_K, DIST_K, shard, error));
    return write_gradient(p, args, CLMGK_GRADIENT_V, DIST_V, shard, error);
}

void mgk_dist_set_keys(const clmgk_dist_plan *p, clmgk_attention_args *a)
{
    a->k = (clmgk_buffer){p->memory[DIST_K], 0};
    a->v = (clmgk_buffer){p->memory[DIST_V], 0};
    a->positions_k = (clmgk_buffer){p->memory[DIST_POSITIONS], 0};
    mgk_dist_set_begins(p, DIST_KEYS, &a->offsets_k);
    a->workspace = (clmgk_buffer){p->workspace, 0};
}

clmgk_status mgk_dist_begin_backward(const clmgk_dist_plan *p, clmgk_plan *plan, const clmgk_attention_args *args,
                                     bool first, int64_t tokens, clmgk_error *error)
{
    static const cl_uint zero = 0;
    clmgk_attention_args a = *args;
    mgk_dist_set_keys(p, &a);
    a.grad_k = (clmgk_buffer){p->grad[DIST_K], 0};
    a.grad_v = (clmgk_buffer){p->grad[DIST_V], 0};
    a.accumulate &= (uint32_t)CLMGK_GRADIENT_Q;
    if (!first)
        a.accumulate |= (uint32_t)CLMGK_GRADIENT_Q;
    DIST_TRY(mgk_dist_begin_sums(p, first, &a, error));
    for (int t = 0; t < 2; ++t) /* without queries nothing may be written */
        if (track_bytes(&p->gradients, t, tokens) > 0)
            DIST_TRY(
                mgk_dist_check_cl(error,
                                  clEnqueueFillBuffer(p->queue, p->grad[t], &zero, sizeof(zero), 0,
                                                      (size_t)track_bytes(&p->gradients, t, tokens), 0, NULL, NULL),
                                  "clEnqueueFillBuffer"));
    return mgk_dist_start(p, clmgk_enqueue_backward(plan, p->queue, &a, 0, NULL, NULL, error), error);
}

clmgk_status mgk_dist_end_backward(const clmgk_dist_plan *p, clmgk_status status, int64_t tokens, char *shard,
                                   clmgk_error *error)
{
    DIST_TRY(mgk_dist_finish(p, status, error));
    return read_gradients(p, tokens, shard, error);
}

/* ---- host memory ---------------------------------------------------------------------------------------------------
 */

static clmgk_status map(const clmgk_dist_plan *p, int64_t bytes, mgk_dist_host *h, clmgk_error *error)
{
    cl_int code = CL_SUCCESS;
    DIST_TRY(mgk_dist_make_memory(p, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, bytes, &h->memory, error));
    h->mapped = clEnqueueMapBuffer(p->queue, h->memory, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, (size_t)bytes, 0, NULL,
                                   NULL, &code);
    return mgk_dist_check_cl(error, code, "clEnqueueMapBuffer");
}

static int64_t room_of(int64_t bytes, int64_t alignment)
{
    return (bytes + alignment - 1) / alignment * alignment;
}

clmgk_status mgk_dist_make_host(clmgk_dist_plan *p, clmgk_error *error)
{
    const bool ring = p->schedule == CLMGK_DIST_RING;
    const int64_t tokens = ring ? p->most : p->total;
    const int64_t keys = mgk_dist_cargo_bytes(&p->keys, tokens);
    const int64_t gradients = mgk_dist_cargo_bytes(&p->gradients, tokens);
    const int64_t own = mgk_dist_cargo_bytes(&p->gradients, mgk_dist_own_keys(p)) * p->transport.ranks;
    mgk_dist_host *const h = &p->host;
    const struct {
        char **place;
        int64_t bytes;
    } list[] = {{&h->keys[0], keys},
                {&h->keys[1], keys},
                {&h->half, ring && gradients > 0 ? keys : 0},
                {&h->sums[0], gradients},
                {&h->sums[1], gradients},
                {&h->part, ring ? gradients : own},
                {&h->own, ring ? gradients : 0}};
    enum { ALIGNMENT = 64 };
    int64_t bytes = ALIGNMENT; /* a buffer has some */
    if (!ring && p->schedule != CLMGK_DIST_ALL_GATHER)
        return CLMGK_OK;
    for (size_t n = 0; n < DIST_COUNT(list); ++n)
        bytes += room_of(list[n].bytes, ALIGNMENT);
    DIST_TRY(map(p, bytes, h, error));
    char *place = h->mapped;
    for (size_t n = 0; n < DIST_COUNT(list); place += room_of(list[n++].bytes, ALIGNMENT))
        *list[n].place = place;
    return CLMGK_OK;
}

void mgk_dist_free_host(clmgk_dist_plan *p)
{
    if (p->host.mapped != NULL)
        (void)clEnqueueUnmapMemObject(p->queue, p->host.memory, p->host.mapped, 0, NULL, NULL);
    if (p->host.memory != NULL)
        (void)clReleaseMemObject(p->host.memory);
}

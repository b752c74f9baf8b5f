/* SPDX-License-Identifier: Apache-2.0 */
/* The provider onednn: f32 and bf16 on the host's CPU (the interface of oneDNN 2). */
#include "gemm/gemm.h"

#if CLMGK_ONEDNN
#include <oneapi/dnnl/dnnl.h>

#include <stdlib.h>
#include <string.h>

enum { SCRATCH_ALIGNMENT = 64 };
enum { MEMORY_A, MEMORY_B, MEMORY_C, MEMORY_SCRATCH, MEMORIES };

/* The functions in use. */
#define FUNCTIONS(X)                                                                                                   \
    X(engine_create)                                                                                                   \
    X(engine_destroy)                                                                                                  \
    X(matmul_desc_init)                                                                                                \
    X(memory_create)                                                                                                   \
    X(memory_desc_get_size)                                                                                            \
    X(memory_desc_init_by_strides)                                                                                     \
    X(memory_destroy)                                                                                                  \
    X(memory_set_data_handle)                                                                                          \
    X(post_ops_append_sum)                                                                                             \
    X(post_ops_create)                                                                                                 \
    X(post_ops_destroy)                                                                                                \
    X(primitive_attr_create)                                                                                           \
    X(primitive_attr_destroy)                                                                                          \
    X(primitive_attr_set_output_scales)                                                                                \
    X(primitive_attr_set_post_ops)                                                                                     \
    X(primitive_attr_set_scratchpad_mode)                                                                              \
    X(primitive_create)                                                                                                \
    X(primitive_desc_create)                                                                                           \
    X(primitive_desc_destroy)                                                                                          \
    X(primitive_desc_query)                                                                                            \
    X(primitive_desc_query_md)                                                                                         \
    X(primitive_destroy)                                                                                               \
    X(primitive_execute)                                                                                               \
    X(stream_create)                                                                                                   \
    X(stream_destroy)                                                                                                  \
    X(stream_wait)                                                                                                     \
    X(version)

typedef struct onednn {
#define FUNCTION_POINTER(name) __typeof__(dnnl_##name) *(name);
    FUNCTIONS(FUNCTION_POINTER)
#undef FUNCTION_POINTER
} onednn;

static clmgk_status load(onednn *dnnl, clmgk_error *error)
{
#define FUNCTION_NAME(name) "dnnl_" #name,
    static const char *const names[] = {FUNCTIONS(FUNCTION_NAME)};
#undef FUNCTION_NAME
    return mgk_library_load(CLMGK_ONEDNN_SONAME, names, MGK_COUNT(names), dnnl, error);
}

/* A product prepared by oneDNN. The plan owns the memory objects, because making them can fail and a native kernel
 * can't report errors. So calls of one plan take turns; each call uses all cores anyway. */
typedef struct product {
    onednn library;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t primitive;
    dnnl_memory_t memory[MEMORIES];
    void *scratch;
    int64_t loops; /* calls for the batch; 1: oneDNN computes the whole batch in one */
    bool has_mutex;
    pthread_mutex_t mutex; /* guards the addresses in `memory` */
} product;

static clmgk_status fail(dnnl_status_t status, const char *call, clmgk_error *error)
{
    switch (status) {
    case dnnl_out_of_memory:
        return mgk_fail(error, CLMGK_ERROR_OUT_OF_HOST_MEMORY, "%s: out of memory", call);
    case dnnl_unimplemented:
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "oneDNN does not support this product on this CPU (%s)", call);
    default:
        return mgk_fail(error, CLMGK_ERROR_INTERNAL, "%s: oneDNN status %d", call, (int)status);
    }
}

#define TRY(call, name, error)                                                                                         \
    do {                                                                                                               \
        const dnnl_status_t try_dnnl_ = (call);                                                                        \
        if (try_dnnl_ != dnnl_success)                                                                                 \
            return fail(try_dnnl_, name, error);                                                                       \
    } while (0)

/* ---- descriptors ---------------------------------------------------------------------------------------------- */

/* op() of a matrix; with `batched`, of the whole batch. */
static dnnl_status_t describe(const onednn *dnnl, const clmgk_gemm_desc *desc, const mgk_gemm_matrix *stored,
                              bool transposed, bool broadcast, bool batched, dnnl_memory_desc_t *memory)
{
    const dnnl_data_type_t type = desc->dtype == CLMGK_DTYPE_F32   ? dnnl_f32
                                  : desc->dtype == CLMGK_DTYPE_F16 ? dnnl_f16
                                                                   : dnnl_bf16;
    const dnnl_dim_t rows = transposed ? stored->columns : stored->rows;
    const dnnl_dim_t columns = transposed ? stored->rows : stored->columns;
    const dnnl_dims_t axes = {broadcast ? 1 : desc->batch, rows, columns};
    const dnnl_dims_t strides = {broadcast ? rows * columns : stored->stride, transposed ? 1 : stored->ld,
                                 transposed ? stored->ld : 1};
    const int skip = batched ? 0 : 1;
    return dnnl->memory_desc_init_by_strides(memory, 3 - skip, axes + skip, type, strides + skip);
}

static dnnl_status_t describe_product(const onednn *dnnl, const clmgk_gemm_desc *desc, bool batched,
                                      dnnl_matmul_desc_t *matmul)
{
    const mgk_gemm_matrix a = mgk_gemm_a(desc), b = mgk_gemm_b(desc), c = mgk_gemm_c(desc);
    dnnl_memory_desc_t memory[3];
    dnnl_status_t status =
        describe(dnnl, desc, &a, desc->transpose_a != 0, desc->broadcast_a != 0, batched, &memory[0]);
    if (status == dnnl_success)
        status = describe(dnnl, desc, &b, desc->transpose_b != 0, desc->broadcast_b != 0, batched, &memory[1]);
    if (status == dnnl_success)
        status = describe(dnnl, desc, &c, false, false, batched, &memory[2]);
    return status == dnnl_success ? dnnl->matmul_desc_init(matmul, &memory[0], &memory[1], NULL, &memory[2]) : status;
}

/* alpha times the sum, then beta C. */
static dnnl_status_t set_attributes(const onednn *dnnl, const clmgk_gemm_desc *desc, dnnl_primitive_attr_t attributes)
{
    const float alpha = (float)desc->alpha;
    dnnl_post_ops_t then = NULL;
    dnnl_status_t status = dnnl->primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
    if (status == dnnl_success && alpha != 1.0f)
        status = dnnl->primitive_attr_set_output_scales(attributes, 1, 0, &alpha);
    if (status != dnnl_success || desc->beta == 0.0)
        return status;
    status = dnnl->post_ops_create(&then);
    if (status != dnnl_success)
        return status;
    status = dnnl->post_ops_append_sum(then, (float)desc->beta);
    if (status == dnnl_success)
        status = dnnl->primitive_attr_set_post_ops(attributes, then);
    dnnl->post_ops_destroy(then);
    return status;
}

/* oneDNN 2.6 on a CPU with AMX ends the process by an illegal instruction in products of bf16 with k = 63, m above 64,
 * m mod 64 from 1 to 16, and n not a multiple of 16. No other k up to 1200 does. */
static bool is_fatal(const clmgk_gemm_desc *desc, const char *implementation)
{
    return desc->k == 63 && strstr(implementation, "amx") != NULL;
}

/* Finds oneDNN's implementation of the product; its reference implementation does not count. */
static dnnl_status_t find_way(const onednn *dnnl, const clmgk_gemm_desc *desc, bool batched, dnnl_engine_t engine,
                              dnnl_primitive_desc_t *way)
{
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_attr_t attributes = NULL;
    const char *name = "";
    dnnl_status_t status = describe_product(dnnl, desc, batched, &matmul);
    if (status == dnnl_success)
        status = dnnl->primitive_attr_create(&attributes);
    if (status == dnnl_success)
        status = set_attributes(dnnl, desc, attributes);
    if (status == dnnl_success)
        status = dnnl->primitive_desc_create(way, &matmul, attributes, engine, NULL);
    if (status == dnnl_success)
        status = dnnl->primitive_desc_query(*way, dnnl_query_impl_info_str, 0, &name);
    if (status == dnnl_success && (strncmp(name, "ref", 3) == 0 || is_fatal(desc, name)))
        status = dnnl_unimplemented;
    if (status != dnnl_success && *way != NULL) {
        dnnl->primitive_desc_destroy(*way);
        *way = NULL;
    }
    if (attributes != NULL)
        dnnl->primitive_attr_destroy(attributes);
    return status;
}

/* ---- plans ---------------------------------------------------------------------------------------------------- */

static void free_product(const clmgk_allocator *allocator, product *it)
{
    const onednn *const dnnl = &it->library;
    for (size_t i = 0; i < MEMORIES; ++i)
        if (it->memory[i] != NULL)
            dnnl->memory_destroy(it->memory[i]);
    if (it->primitive != NULL)
        dnnl->primitive_destroy(it->primitive);
    if (it->stream != NULL)
        dnnl->stream_destroy(it->stream);
    if (it->engine != NULL)
        dnnl->engine_destroy(it->engine);
    if (it->has_mutex)
        pthread_mutex_destroy(&it->mutex);
    mgk_free(allocator, it->scratch);
    mgk_free(allocator, it);
}

static void release_library(mgk_gemm_host *host)
{
    free_product(&host->allocator, host->library);
}

static clmgk_status make_memory(const clmgk_allocator *allocator, const_dnnl_primitive_desc_t way, product *it,
                                clmgk_error *error)
{
    const onednn *const dnnl = &it->library;
    static const dnnl_query_t queries[MEMORIES] = {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md,
                                                   dnnl_query_scratchpad_md};
    for (size_t i = 0; i < MEMORIES; ++i)
        TRY(dnnl->memory_create(&it->memory[i], dnnl->primitive_desc_query_md(way, queries[i], 0), it->engine,
                                DNNL_MEMORY_NONE),
            "dnnl_memory_create", error);
    const size_t bytes = dnnl->memory_desc_get_size(dnnl->primitive_desc_query_md(way, dnnl_query_scratchpad_md, 0));
    it->scratch = mgk_alloc(allocator, 1, bytes + SCRATCH_ALIGNMENT);
    if (it->scratch == NULL)
        return mgk_fail_memory(error, "oneDNN's scratch memory");
    char *const start = it->scratch;
    TRY(dnnl->memory_set_data_handle(it->memory[MEMORY_SCRATCH],
                                     start + (SCRATCH_ALIGNMENT - (uintptr_t)start % SCRATCH_ALIGNMENT)),
        "dnnl_memory_set_data_handle", error);
    return CLMGK_OK;
}

/* Prepares the batch in one call if oneDNN has code for it, else one call per matrix. */
static clmgk_status prepare(const clmgk_gemm_desc *desc, const clmgk_allocator *allocator, product *it,
                            clmgk_error *error)
{
    const onednn *const dnnl = &it->library;
    dnnl_primitive_desc_t way = NULL;
    MGK_TRY(load(&it->library, error));
    TRY(dnnl->engine_create(&it->engine, dnnl_cpu, 0), "dnnl_engine_create", error);
    TRY(dnnl->stream_create(&it->stream, it->engine, dnnl_stream_default_flags), "dnnl_stream_create", error);
    it->loops = 1;
    if (desc->batch == 1 || find_way(dnnl, desc, true, it->engine, &way) != dnnl_success) {
        it->loops = desc->batch;
        TRY(find_way(dnnl, desc, false, it->engine, &way), "dnnl_primitive_desc_create", error);
    }
    const dnnl_status_t made = dnnl->primitive_create(&it->primitive, way);
    const clmgk_status status =
        made == dnnl_success ? make_memory(allocator, way, it, error) : fail(made, "dnnl_primitive_create", error);
    dnnl->primitive_desc_destroy(way);
    return status;
}

/* Checks that oneDNN has code for products of this type. */
static clmgk_status probe(const onednn *dnnl, clmgk_dtype dtype, clmgk_error *error)
{
    const int64_t edge = 64; /* of a typical product */
    const clmgk_gemm_desc desc = {.dtype = dtype,
                                  .m = edge,
                                  .n = edge,
                                  .k = edge,
                                  .batch = 1,
                                  .lda = edge,
                                  .ldb = edge,
                                  .ldc = edge,
                                  .stride_a = edge * edge,
                                  .stride_b = edge * edge,
                                  .stride_c = edge * edge,
                                  .alpha = 1.0};
    dnnl_engine_t engine = NULL;
    dnnl_primitive_desc_t way = NULL;
    TRY(dnnl->engine_create(&engine, dnnl_cpu, 0), "dnnl_engine_create", error);
    const dnnl_status_t status = find_way(dnnl, &desc, false, engine, &way);
    if (way != NULL)
        dnnl->primitive_desc_destroy(way);
    dnnl->engine_destroy(engine);
    if (status == dnnl_unimplemented)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "oneDNN %d.%d has no fast %s product for this CPU",
                        dnnl->version()->major, dnnl->version()->minor, clmgk_dtype_name(dtype));
    return status == dnnl_success ? CLMGK_OK : fail(status, "dnnl_primitive_desc_create", error);
}

static clmgk_status applicable(const mgk_device_facts *facts, clmgk_dtype dtype, clmgk_error *error)
{
    onednn dnnl;
    MGK_TRY(mgk_gemm_host_device(facts, error));
    MGK_TRY(load(&dnnl, error));
    return probe(&dnnl, dtype, error);
}

static void multiply(const mgk_gemm_host *host, const clmgk_gemm_desc *desc, const void *a, const void *b, void *c)
{
    product *const it = host->library;
    const onednn *const dnnl = &it->library;
    const ptrdiff_t element = (ptrdiff_t)mgk_gemm_element(desc->dtype);
    const dnnl_exec_arg_t list[MEMORIES] = {{DNNL_ARG_SRC, it->memory[MEMORY_A]},
                                            {DNNL_ARG_WEIGHTS, it->memory[MEMORY_B]},
                                            {DNNL_ARG_DST, it->memory[MEMORY_C]},
                                            {DNNL_ARG_SCRATCHPAD, it->memory[MEMORY_SCRATCH]}};
    pthread_mutex_lock(&it->mutex);
    for (int64_t i = 0; i < it->loops; ++i) {
        /* oneDNN has the same handle for inputs and outputs, but only reads inputs */
        (void)dnnl->memory_set_data_handle(it->memory[MEMORY_A], (char *)(uintptr_t)a + i * desc->stride_a * element);
        (void)dnnl->memory_set_data_handle(it->memory[MEMORY_B], (char *)(uintptr_t)b + i * desc->stride_b * element);
        (void)dnnl->memory_set_data_handle(it->memory[MEMORY_C], (char *)c + i * desc->stride_c * element);
        (void)dnnl->primitive_execute(it->primitive, it->stream, MEMORIES, list);
    }
    (void)dnnl->stream_wait(it->stream);
    pthread_mutex_unlock(&it->mutex);
}

static clmgk_status plan_product(clmgk_gemm_plan *plan, const char *parameters, clmgk_error *error)
{
    (void)parameters;
    const clmgk_allocator *const allocator = &plan->context->allocator;
    product *const it = mgk_alloc(allocator, 1, sizeof(*it));
    if (it == NULL)
        return mgk_fail_memory(error, "a plan");
    clmgk_status status;
    it->has_mutex = pthread_mutex_init(&it->mutex, NULL) == 0;
    if (!it->has_mutex)
        MGK_TRY_GOTO(status, mgk_fail(error, CLMGK_ERROR_OUT_OF_HOST_MEMORY, "no mutex for a plan"), fail);
    MGK_TRY_GOTO(status, prepare(&plan->desc, allocator, it, error), fail);
    MGK_TRY_GOTO(status, mgk_gemm_host_create(plan, multiply, release_library, it, error), fail);
    return CLMGK_OK;
fail:
    free_product(allocator, it);
    return status;
}

const mgk_gemm_provider mgk_gemm_onednn = {.name = "onednn",
                                           .is_host = true,
                                           .applicable = applicable,
                                           .check_parameters = mgk_gemm_no_parameters,
                                           .plan = plan_product,
                                           .enqueue = mgk_gemm_host_enqueue,
                                           .release = mgk_gemm_host_release};

#else
MGK_GEMM_ABSENT(onednn, "oneDNN", true);
#endif

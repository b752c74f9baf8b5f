/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The provider clblast: any OpenCL device.
 *
 * Workarounds for CLBlast 1.5: it takes no wait list, so a barrier with the caller's list comes first; it compiles at
 * the first call, so a plan makes a call; its temporary memory comes from the caller's workspace. Its strided-batched
 * form is used only for small products, which take a single kernel (its "direct" path): the other path ignores offsets
 * and strides of a matrix that needs no copy, ignores KREG, and allocates. A batch of larger products is a sequence of
 * calls. CLBlast's kernels count elements in 32 bits.
 */
#include "gemm/gemm.h"

#if CLMGK_CLBLAST
#include "gemm/clblast_parameters.h"

#include <inttypes.h>
#include <string.h>

typedef struct clblast_state {
    mgk_clblast library;
    mgk_clblast_values values;
    bool direct;       /* one kernel, no temporary memory */
    size_t temp_bytes; /* enough for any offsets */
    size_t alignment;  /* of sub-buffers, in bytes */
} clblast_state;

/* A product's buffers and offsets. */
typedef struct operands {
    cl_mem a, b, c;
    size_t a_offset, b_offset, c_offset;
    cl_mem temp; /* NULL: CLBlast allocates its own */
} operands;

static CLBlastPrecision precision_of(const clmgk_gemm_desc *desc)
{
    return desc->dtype == CLMGK_DTYPE_F16 ? CLBlastPrecisionHalf : CLBlastPrecisionSingle;
}

static CLBlastTranspose transposition(int32_t transpose)
{
    return transpose != 0 ? CLBlastTransposeYes : CLBlastTransposeNo;
}

/* The nearest f16, ties to even. */
static cl_half half_of(double number)
{
    const float value = (float)number;
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    const uint32_t sign = (bits >> 16) & 0x8000U, size = bits & 0x7fffffffU;
    if (size >= 0x477ff000U) /* rounds to 2^16 and beyond */
        return (cl_half)(sign | 0x7c00U);
    if (size < 0x33000001U) /* rounds to 0 */
        return (cl_half)sign;
    const uint32_t exponent = size >> 23;
    const uint32_t shift = exponent < 113 ? 126 - exponent : 13; /* subnormal numbers lose more bits */
    const uint32_t mantissa = (size & 0x7fffffU) | 0x800000U, kept = mantissa >> shift;
    const uint32_t rest = mantissa & ((UINT32_C(1) << shift) - 1);
    const uint32_t tie = UINT32_C(1) << (shift - 1);
    const uint32_t up = rest > tie || (rest == tie && (kept & 1U) != 0) ? 1 : 0;
    const uint32_t base = exponent < 113 ? 0 : (exponent - 113) << 10;
    return (cl_half)(sign | (base + kept + up));
}

/* ---- CLBlast's calls ------------------------------------------------------------------------------------------ */

/* Arguments of a product; FACTOR converts alpha and beta. */
#define PRODUCT(FACTOR)                                                                                                \
    CLBlastLayoutRowMajor, transposition(d->transpose_a), transposition(d->transpose_b), (size_t)d->m, (size_t)d->n,   \
        (size_t)d->k, FACTOR(d->alpha), at->a, at->a_offset, (size_t)d->lda, at->b, at->b_offset, (size_t)d->ldb,      \
        FACTOR(d->beta), at->c, at->c_offset, (size_t)d->ldc, &queue, event

/* The same with the batch and its strides. */
#define BATCH(FACTOR)                                                                                                  \
    CLBlastLayoutRowMajor, transposition(d->transpose_a), transposition(d->transpose_b), (size_t)d->m, (size_t)d->n,   \
        (size_t)d->k, FACTOR(d->alpha), at->a, at->a_offset, (size_t)d->lda, (size_t)d->stride_a, at->b, at->b_offset, \
        (size_t)d->ldb, (size_t)d->stride_b, FACTOR(d->beta), at->c, at->c_offset, (size_t)d->ldc,                     \
        (size_t)d->stride_c, (size_t)d->batch, &queue, event

static CLBlastStatusCode one_product(const mgk_clblast *blas, const clmgk_gemm_desc *d, const operands *at,
                                     cl_command_queue queue, cl_event *event)
{
    if (d->dtype == CLMGK_DTYPE_F16)
        return at->temp != NULL ? blas->HgemmWithTempBuffer(PRODUCT(half_of), at->temp) : blas->Hgemm(PRODUCT(half_of));
    return at->temp != NULL ? blas->SgemmWithTempBuffer(PRODUCT((float)), at->temp) : blas->Sgemm(PRODUCT((float)));
}

static CLBlastStatusCode whole_batch(const mgk_clblast *blas, const clmgk_gemm_desc *d, const operands *at,
                                     cl_command_queue queue, cl_event *event)
{
    return d->dtype == CLMGK_DTYPE_F16 ? blas->HgemmStridedBatched(BATCH(half_of))
                                       : blas->SgemmStridedBatched(BATCH((float)));
}

/* Bytes of temporary memory of one product, whose matrices begin `offset` elements into their buffers. */
static CLBlastStatusCode temp_size(const mgk_clblast *blas, const clmgk_gemm_desc *desc, size_t offset,
                                   cl_command_queue queue, size_t *bytes)
{
    return (desc->dtype == CLMGK_DTYPE_F16 ? blas->HGemmTempBufferSize : blas->SGemmTempBufferSize)(
        CLBlastLayoutRowMajor, transposition(desc->transpose_a), transposition(desc->transpose_b), (size_t)desc->m,
        (size_t)desc->n, (size_t)desc->k, offset, (size_t)desc->lda, offset, (size_t)desc->ldb, offset,
        (size_t)desc->ldc, &queue, bytes);
}

/* The batch's products in sequence. They share the temporary memory: on an out-of-order queue barriers separate them,
 * which also makes the last product's event the event of all. */
static clmgk_status each_product(const mgk_clblast *blas, const clmgk_gemm_desc *desc, const operands *first,
                                 cl_command_queue queue, cl_event *event, clmgk_error *error)
{
    operands at = *first;
    for (int64_t i = 0; i < desc->batch; ++i) {
        if (i > 0) {
            const cl_int code = clEnqueueBarrierWithWaitList(queue, 0, NULL, NULL);
            MGK_TRY(mgk_check_cl(error, code, "clEnqueueBarrierWithWaitList"));
        }
        const CLBlastStatusCode code = one_product(blas, desc, &at, queue, i + 1 == desc->batch ? event : NULL);
        if (code != CLBlastSuccess)
            return mgk_clblast_fail(code, "CLBlast's GEMM", error);
        at.a_offset += (size_t)desc->stride_a;
        at.b_offset += (size_t)desc->stride_b;
        at.c_offset += (size_t)desc->stride_c;
    }
    return CLMGK_OK;
}

static clmgk_status run(const mgk_clblast *blas, const clmgk_gemm_desc *desc, bool direct, const operands *at,
                        cl_command_queue queue, cl_event *event, clmgk_error *error)
{
    if (desc->batch == 1 || !direct)
        return each_product(blas, desc, at, queue, event, error);
    const CLBlastStatusCode code = whole_batch(blas, desc, at, queue, event);
    return code == CLBlastSuccess ? CLMGK_OK : mgk_clblast_fail(code, "CLBlast's strided-batched GEMM", error);
}

/* ---- compiling ------------------------------------------------------------------------------------------------ */

/* Sizes that are equal modulo STEP use the same kernels; PoCL compiles grids of MANY and more separately. */
enum { STEP = 512, MANY = 65536 };

static int64_t smaller(int64_t size)
{
    const int64_t least = size > MANY ? MANY : STEP;
    return size > INT64_C(2) * STEP ? least + size % STEP : size;
}

static int64_t smaller_ld(int64_t ld, int64_t columns, int64_t new_columns)
{
    const int64_t spare = ld - columns;
    return new_columns + (spare > STEP ? STEP + spare % STEP : spare);
}

/* A smaller product that runs the same kernels. */
static clmgk_gemm_desc rehearsal(const clmgk_gemm_desc *desc, bool smaller_axes)
{
    clmgk_gemm_desc small = *desc;
    if (smaller_axes) {
        small.m = smaller(desc->m);
        small.n = smaller(desc->n);
        small.k = smaller(desc->k);
    }
    small.lda = smaller_ld(desc->lda, mgk_gemm_a(desc).columns, mgk_gemm_a(&small).columns);
    small.ldb = smaller_ld(desc->ldb, mgk_gemm_b(desc).columns, mgk_gemm_b(&small).columns);
    small.ldc = smaller_ld(desc->ldc, desc->n, small.n);
    small.batch = desc->batch > 1 ? 2 : 1;
    small.stride_a = 0;
    small.stride_b = 0;
    small.stride_c = small.m * small.ldc;
    small.alpha = 1.0;
    return small;
}

/* Multiplies matrices, `offset` elements into their buffers, and checks rows and columns all over C: CLBlast accepts
 * parameters that leave parts of C out. */
static clmgk_status rehearse_at(const clmgk_gemm_plan *plan, const clmgk_gemm_desc *small, bool direct, size_t offset,
                                size_t temp, clmgk_error *error)
{
    enum { PROBES = 24 };
    const mgk_clblast *const blas = &((const clblast_state *)plan->state)->library;
    mgk_gemm_trial t = {.context = plan->context, .desc = *small, .offset = offset, .scale = 1.0F};
    clmgk_status status;
    MGK_TRY_GOTO(status, mgk_gemm_trial_begin(&t, temp, error), done);
    const operands at = {t.a, t.b, t.c, offset, offset, offset, t.workspace};
    MGK_TRY_GOTO(status, run(blas, small, direct, &at, t.queue, NULL, error), done);
    status = mgk_gemm_trial_check(&t, PROBES, 0.0, error);
    if (t.wrong)
        status = mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                          "CLBlast's product is wrong on this device with these parameters (a probe of %" PRId64
                          " x %" PRId64 " x %" PRId64 ")",
                          small->m, small->n, small->k);
done:
    mgk_gemm_trial_end(&t);
    return status;
}

/* CLBlast chooses other kernels for matrices that begin at the start of their buffers. Runs both. */
static clmgk_status rehearse(const clmgk_gemm_plan *plan, bool direct, cl_command_queue queue, clmgk_error *error)
{
    const mgk_clblast *const blas = &((const clblast_state *)plan->state)->library;
    clmgk_gemm_desc small = rehearsal(&plan->desc, true);
    size_t temp = 0;
    CLBlastStatusCode code = temp_size(blas, &small, 1, queue, &temp);
    if (code == CLBlastSuccess && (temp == 0) != direct) { /* the smaller product takes the other path */
        small = rehearsal(&plan->desc, false);
        code = temp_size(blas, &small, 1, queue, &temp);
    }
    if (code != CLBlastSuccess)
        return mgk_clblast_fail(code, "CLBlast's GemmTempBufferSize", error);
    MGK_TRY(rehearse_at(plan, &small, direct, 0, temp, error));
    return rehearse_at(plan, &small, direct, 1, temp, error);
}

/* ---- plans ---------------------------------------------------------------------------------------------------- */

static clmgk_status load(mgk_clblast *blas, clmgk_error *error)
{
#define FUNCTION_NAME(name) "CLBlast" #name,
    static const char *const names[] = {MGK_CLBLAST_FUNCTIONS(FUNCTION_NAME)};
#undef FUNCTION_NAME
    return mgk_library_load(CLMGK_CLBLAST_SONAME, names, MGK_COUNT(names), blas, error);
}

static clmgk_status applicable(const mgk_device_facts *facts, clmgk_dtype dtype, clmgk_error *error)
{
    mgk_clblast blas;
    bool has_half = false;
    if (dtype == CLMGK_DTYPE_BF16)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "CLBlast has no bf16");
    MGK_TRY(load(&blas, error));
    if (dtype == CLMGK_DTYPE_F32)
        return CLMGK_OK;
    MGK_TRY(mgk_device_has_extension(facts->info.device_id, "cl_khr_fp16", &has_half, error));
    return has_half ? CLMGK_OK
                    : mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "CLBlast multiplies f16 only with cl_khr_fp16");
}

static clmgk_status check_parameters(const char *parameters, clmgk_error *error)
{
    mgk_clblast_values values;
    return mgk_clblast_read(parameters, &values, error);
}

static clmgk_status check_offsets(const clmgk_gemm_plan *plan, const mgk_call *call, clmgk_error *error)
{
    const clmgk_gemm_desc *const desc = &plan->desc;
    const struct {
        const char *name;
        mgk_gemm_matrix matrix;
        uint64_t offset;
    } list[] = {{"a", mgk_gemm_a(desc), call->buffers[MGK_GEMM_A]->offset},
                {"b", mgk_gemm_b(desc), call->buffers[MGK_GEMM_B]->offset},
                {"c", mgk_gemm_c(desc), call->buffers[MGK_GEMM_C]->offset}};
    for (size_t i = 0; i < MGK_COUNT(list); ++i) {
        int64_t extent = 0;
        if (!mgk_gemm_extent(&list[i].matrix, desc->batch, &extent) || extent > INT32_MAX ||
            list[i].offset > (uint64_t)(INT32_MAX - extent))
            return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                            "%s: %" PRId64 " elements from %" PRIu64 " on: CLBlast counts them in 32 bits",
                            list[i].name, extent, list[i].offset);
    }
    return CLMGK_OK;
}

/* Finds CLBlast's path for the plan's product and compiles its programs, with the values in force. */
static clmgk_status prepare(clmgk_gemm_plan *plan, clblast_state *state, cl_command_queue queue, clmgk_error *error)
{
    const CLBlastStatusCode code = temp_size(&state->library, &plan->desc, 1, queue, &state->temp_bytes);
    if (code != CLBlastSuccess)
        return mgk_clblast_fail(code, "CLBlast's GemmTempBufferSize", error);
    state->direct = state->temp_bytes == 0;
    if (state->temp_bytes / mgk_gemm_element(plan->desc.dtype) > INT32_MAX)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "%zu bytes of temporary memory: CLBlast counts its elements in 32 bits", state->temp_bytes);
    return rehearse(plan, state->direct, queue, error);
}

static clmgk_status compile(clmgk_gemm_plan *plan, clblast_state *state, clmgk_error *error)
{
    bool foreign = false;
    cl_int code = CL_SUCCESS;
    cl_command_queue queue = clCreateCommandQueue(plan->context->context, plan->context->device, 0, &code);
    if (queue == NULL)
        return mgk_fail_cl(error, code, "clCreateCommandQueue");
    mgk_clblast_begin_compile();
    clmgk_status status = mgk_clblast_enter(&state->library, plan->context->device, precision_of(&plan->desc),
                                            &state->values, &foreign, error);
    if (status == CLMGK_OK) {
        status = prepare(plan, state, queue, error);
        mgk_clblast_leave();
    }
    mgk_clblast_end_compile();
    clReleaseCommandQueue(queue);
    if (foreign)
        mgk_text_printf(&plan->note, "CLBlast's parameters have been set earlier in this process, its own are lost");
    return status;
}

static clmgk_status plan_product(clmgk_gemm_plan *plan, const char *parameters, clmgk_error *error)
{
    cl_uint bits = 0;
    const mgk_call nothing = mgk_empty_call();
    MGK_TRY(check_offsets(plan, &nothing, error));
    clblast_state *const state = mgk_alloc(&plan->context->allocator, 1, sizeof(*state));
    if (state == NULL)
        return mgk_fail_memory(error, "a plan");
    plan->state = state;
    MGK_TRY(load(&state->library, error));
    MGK_TRY(mgk_clblast_read(parameters, &state->values, error));
    const cl_int code =
        clGetDeviceInfo(plan->context->device, CL_DEVICE_MEM_BASE_ADDR_ALIGN, sizeof(bits), &bits, NULL);
    MGK_TRY(mgk_check_cl(error, code, "clGetDeviceInfo"));
    state->alignment = bits >= 8 ? bits / 8 : 1;
    MGK_TRY(mgk_driver_check_room(plan->context->facts.runtime, error));
    MGK_TRY(compile(plan, state, error));

    const mgk_device_facts *const facts = &plan->context->facts;
    plan->info.cached = mgk_driver_keeps_programs(facts) || facts->runtime == MGK_RUNTIME_NVIDIA ? 1 : 0;
    plan->info.workspace_bytes = state->temp_bytes > 0 ? state->temp_bytes + state->alignment : 0;
    plan->info.sums = plan->desc.dtype;
    return CLMGK_OK;
}

static void release(clmgk_gemm_plan *plan)
{
    mgk_free(&plan->context->allocator, plan->state);
}

/* ---- calls ---------------------------------------------------------------------------------------------------- */

/* The temporary memory as a separate object, which the caller releases: CLBlast takes no offset. */
static clmgk_status open_temp(const clblast_state *state, const clmgk_buffer *workspace, cl_mem *temp,
                              clmgk_error *error)
{
    cl_mem parent = NULL;
    size_t origin = 0;
    cl_int code = CL_SUCCESS;
    if (workspace->offset == 0) {
        code = clRetainMemObject(workspace->memory);
        MGK_TRY(mgk_check_cl(error, code, "clRetainMemObject"));
        *temp = workspace->memory;
        return CLMGK_OK;
    }
    code = clGetMemObjectInfo(workspace->memory, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof(cl_mem), &parent, NULL);
    if (code == CL_SUCCESS && parent != NULL)
        code = clGetMemObjectInfo(workspace->memory, CL_MEM_OFFSET, sizeof(origin), &origin, NULL);
    MGK_TRY(mgk_check_cl(error, code, "clGetMemObjectInfo"));
    const size_t start = origin + (size_t)workspace->offset;
    const cl_buffer_region region = {(start + state->alignment - 1) / state->alignment * state->alignment,
                                     state->temp_bytes};
    *temp = clCreateSubBuffer(parent != NULL ? parent : workspace->memory, CL_MEM_READ_WRITE,
                              CL_BUFFER_CREATE_TYPE_REGION, &region, &code);
    return *temp != NULL ? CLMGK_OK : mgk_fail_cl(error, code, "clCreateSubBuffer");
}

static clmgk_status enqueue(const void *given, const mgk_call *call, const mgk_queue_place *place, clmgk_error *error)
{
    const clmgk_gemm_plan *const plan = given;
    const clblast_state *const state = plan->state;
    const clmgk_buffer *const a = call->buffers[MGK_GEMM_A], *const b = call->buffers[MGK_GEMM_B];
    const clmgk_buffer *const c = call->buffers[MGK_GEMM_C];
    operands at = {a->memory, b->memory, c->memory, (size_t)a->offset, (size_t)b->offset, (size_t)c->offset, NULL};
    bool foreign = false;
    clmgk_status status;
    MGK_TRY(mgk_clblast_enter(&state->library, plan->context->device, precision_of(&plan->desc), &state->values,
                              &foreign, error));
    if (state->temp_bytes > 0 && !foreign) /* foreign values may need another size */
        MGK_TRY_GOTO(status, open_temp(state, call->buffers[MGK_GEMM_WORKSPACE], &at.temp, error), done);
    if (place->num_wait > 0) {
        const cl_int code = clEnqueueBarrierWithWaitList(place->queue, place->num_wait, place->wait_list, NULL);
        if (code != CL_SUCCESS)
            MGK_TRY_GOTO(status, mgk_fail_cl(error, code, "clEnqueueBarrierWithWaitList"), done);
    }
    status = run(&state->library, &plan->desc, state->direct && !foreign, &at, place->queue, place->event, error);
done:
    if (at.temp != NULL)
        clReleaseMemObject(at.temp);
    mgk_clblast_leave();
    return status;
}

const mgk_gemm_provider mgk_gemm_clblast = {.name = "clblast",
                                            .applicable = applicable,
                                            .check_parameters = check_parameters,
                                            .plan = plan_product,
                                            .check_offsets = check_offsets,
                                            .enqueue = enqueue,
                                            .release = release};

#else
MGK_GEMM_ABSENT(clblast, "CLBlast", false);
#endif

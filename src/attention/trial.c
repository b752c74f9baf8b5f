/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/trial.h"

#include <math.h>
#include <string.h>

/* Few numbers of an array may nearly cancel in one problem, and leave only the rounding of their terms. So limits are
 * relative to the largest number of the array in several problems. */
enum { ROUNDS = 3, PLANS = 2 };

typedef struct trial_run {
    clmgk_plan *plan[PLANS];
    cl_command_queue queue;
    mgk_cuda *cuda;                     /* where the first plan runs; NULL: in OpenCL, as the second */
    cl_mem memory[PLANS][CLMGK_ARRAYS]; /* inputs: of both plans in the first, unless it runs in CUDA */
    void *host[PLANS];                  /* room for the largest array */
    double largest[CLMGK_ARRAYS];       /* number of an output */
    double difference[CLMGK_ARRAYS];    /* of the two plans */
    bool undefined[CLMGK_ARRAYS];       /* some number of an output is NaN */
    uint64_t random;
} trial_run;

/* ---- numbers of storage types ----------------------------------------------------------------------------------- */

static clmgk_dtype_info type_of(const trial_run *run, clmgk_array array)
{
    return clmgk_dtype_get_info(mgk_array_dtype(&run->plan[0]->desc, array));
}

static double number(const trial_run *run, clmgk_array array, int plan, int64_t i)
{
    const clmgk_dtype_info type = type_of(run, array);
    return mgk_number(run->host[plan], (size_t)i, &type);
}

static void put_number(const trial_run *run, clmgk_array array, int64_t i, float x)
{
    const clmgk_dtype_info type = type_of(run, array);
    mgk_put_number(run->host[0], (size_t)i, x, &type);
}

/* ---- random arrays ---------------------------------------------------------------------------------------------- */

/* 0 .. below - 1 */
static int64_t pick(trial_run *run, int64_t below)
{
    run->random = run->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return below > 0 ? (int64_t)((run->random >> 33) % (uint64_t)below) : 0;
}

/* A sixteenth of a whole number, about as a standard normal distribution; all types hold it. */
static float normal(trial_run *run)
{
    return (float)(pick(run, 32) + pick(run, 32) + pick(run, 32) - 46) / 16.0F;
}

/* Later keys have larger features, so that the maxima of scores grow from tile to tile. */
static float key_feature(trial_run *run, int64_t i, int64_t row)
{
    const int64_t keys = run->plan[0]->desc.length_k, key = i / row % (keys > 0 ? keys : 1);
    return roundf(normal(run) * (1.0F + 2.0F * (float)key / (float)keys) * 16.0F) / 16.0F;
}

static float draw(trial_run *run, clmgk_array array, int64_t i)
{
    const clmgk_attention_desc *const desc = &run->plan[0]->desc;
    switch (clmgk_array_get_info(array)->values) {
    case CLMGK_VALUES_POSITIVE: /* variances */
        return sqrtf((float)desc->head_size) * (float)(12 + pick(run, 8)) / 16.0F;
    case CLMGK_VALUES_NOT_NEGATIVE:
        return (float)(1 + pick(run, 16)) / 16.0F;
    default:
        break;
    }
    if (array == CLMGK_ARRAY_NUMBERS) /* of a text, which may divide by them */
        return (float)(12 + pick(run, 8)) / 16.0F;
    if (array == CLMGK_ARRAY_SLOPES)
        return (float)pick(run, 16) / 256.0F;
    return array == CLMGK_ARRAY_K ? key_feature(run, i, desc->head_size) : normal(run);
}

static void draw_whole_numbers(trial_run *run, clmgk_array array, int64_t count)
{
    const clmgk_attention_desc *const desc = &run->plan[0]->desc;
    const bool of_keys =
        array == CLMGK_ARRAY_LENGTHS || array == CLMGK_ARRAY_OFFSETS_K || array == CLMGK_ARRAY_POSITIONS_K;
    const bool lengths = clmgk_array_get_info(array)->values == CLMGK_VALUES_LENGTHS;
    const bool positions = clmgk_array_get_info(array)->values == CLMGK_VALUES_POSITIONS;
    const int64_t axis = of_keys ? desc->length_k : desc->length;
    int32_t *const numbers = run->host[0];
    for (int64_t i = 0; i < count; ++i)
        numbers[i] =
            (int32_t)(positions ? pick(run, axis)
                      : lengths ? axis - pick(run, axis / 2 + 1)
                                : axis * i / (count - 1) - (i > 0 && i + 1 < count ? pick(run, axis / count) : 0));
}

/* Indices and classes of a text. */
static void draw_captured(trial_run *run, int64_t count)
{
    int32_t *const numbers = run->host[0];
    for (int64_t i = 0; i < count; ++i)
        numbers[i] = (int32_t)pick(run, 5);
}

/* ---- arrays on the device --------------------------------------------------------------------------------------- */

static bool is_used(const trial_run *run, clmgk_array array, bool *is_output)
{
    bool used = false;
    *is_output = false;
    for (int pass = 0; pass < CLMGK_PASS_COMBINE; ++pass)
        if (run->plan[0]->pass[pass] != NULL && run->plan[0]->array[array].presence[pass] != CLMGK_ABSENT) {
            used = true;
            *is_output = *is_output || mgk_array_is_output(&run->plan[0]->desc, (clmgk_pass)pass, array);
        }
    return used && array != CLMGK_ARRAY_WORKSPACE;
}

static bool runs_in_cuda(const trial_run *run, int plan)
{
    return run->cuda != NULL && plan == 0;
}

static clmgk_status make_buffer(const trial_run *run, int plan, size_t bytes, cl_mem *memory, clmgk_error *error)
{
    cl_int code = CL_SUCCESS;
    if (bytes > 0 && runs_in_cuda(run, plan))
        return mgk_cuda_make_memory(run->cuda, NULL, bytes, memory, error);
    if (bytes > 0)
        *memory = clCreateBuffer(run->plan[0]->context->context, CL_MEM_READ_WRITE, bytes, NULL, &code);
    return mgk_check_cl(error, code, "clCreateBuffer");
}

static void free_buffer(const trial_run *run, int plan, cl_mem memory)
{
    if (memory != NULL && runs_in_cuda(run, plan))
        mgk_cuda_free_memory(run->cuda, memory);
    else if (memory != NULL)
        clReleaseMemObject(memory);
}

/* Copies the host's numbers of the first plan to an array. */
static clmgk_status write_buffer(const trial_run *run, int plan, cl_mem memory, size_t bytes, clmgk_error *error)
{
    return runs_in_cuda(run, plan)
               ? mgk_cuda_write(run->cuda, memory, run->host[0], bytes, error)
               : mgk_check_cl(error,
                              clEnqueueWriteBuffer(run->queue, memory, CL_TRUE, 0, bytes, run->host[0], 0, NULL, NULL),
                              "clEnqueueWriteBuffer");
}

/* Copies an array to the plan's numbers on the host. */
static clmgk_status read_buffer(const trial_run *run, int plan, cl_mem memory, size_t bytes, clmgk_error *error)
{
    return runs_in_cuda(run, plan)
               ? mgk_cuda_read(run->cuda, memory, run->host[plan], bytes, error)
               : mgk_check_cl(
                     error, clEnqueueReadBuffer(run->queue, memory, CL_TRUE, 0, bytes, run->host[plan], 0, NULL, NULL),
                     "clEnqueueReadBuffer");
}

static size_t bytes_of(const trial_run *run, clmgk_array array)
{
    const clmgk_attention_desc *const desc = &run->plan[0]->desc;
    return (size_t)mgk_array_count(desc, array) * mgk_array_element_size(desc, array);
}

static clmgk_status make_buffers(trial_run *run, clmgk_error *error)
{
    size_t most = 1;
    for (int i = 0; i < CLMGK_ARRAYS; ++i) {
        bool is_output;
        const size_t bytes = is_used(run, (clmgk_array)i, &is_output) ? bytes_of(run, (clmgk_array)i) : 0;
        most = bytes > most ? bytes : most;
        for (int plan = 0; plan < (is_output || run->cuda != NULL ? PLANS : 1); ++plan)
            MGK_TRY(make_buffer(run, plan, bytes, &run->memory[plan][i], error));
    }
    for (int plan = 0; plan < PLANS; ++plan) {
        MGK_TRY(make_buffer(run, plan, clmgk_plan_workspace_size(run->plan[plan]),
                            &run->memory[plan][CLMGK_ARRAY_WORKSPACE], error));
        run->host[plan] = mgk_alloc(&run->plan[0]->context->allocator, most, 1);
        if (run->host[plan] == NULL)
            return mgk_fail_memory(error, "a trial's arrays");
    }
    return CLMGK_OK;
}

/* Draws the inputs. Outputs begin as zeros: no pass reads them before it writes them. */
static clmgk_status write_array(trial_run *run, clmgk_array array, bool is_output, clmgk_error *error)
{
    const int64_t count = mgk_array_count(&run->plan[0]->desc, array);
    const size_t bytes = bytes_of(run, array);
    memset(run->host[0], 0, bytes);
    const clmgk_capture *const capture = mgk_capture_of(&run->plan[0]->desc, array);
    if (!is_output && capture != NULL && capture->type == CLMGK_CAPTURE_I32)
        draw_captured(run, count);
    else if (!is_output && clmgk_array_get_info(array)->element == CLMGK_ELEMENT_I32)
        draw_whole_numbers(run, array, count);
    else
        for (int64_t i = 0; i < count && !is_output; ++i)
            put_number(run, array, i, draw(run, array, i));
    for (int plan = 0; plan < PLANS; ++plan)
        if (run->memory[plan][array] != NULL)
            MGK_TRY(write_buffer(run, plan, run->memory[plan][array], bytes, error));
    return CLMGK_OK;
}

static clmgk_status write_arrays(trial_run *run, clmgk_error *error)
{
    for (int i = 0; i < CLMGK_ARRAYS; ++i) {
        bool is_output;
        if (is_used(run, (clmgk_array)i, &is_output))
            MGK_TRY(write_array(run, (clmgk_array)i, is_output, error));
    }
    return CLMGK_OK;
}

/* Equal infinities, as of rows without keys, do not differ; nor do numbers that a text leaves undefined. */
static void compare(trial_run *run, clmgk_array array)
{
    const int64_t count = mgk_array_count(&run->plan[0]->desc, array);
    for (int64_t i = 0; i < count; ++i) {
        const double own = number(run, array, 0, i), other = number(run, array, 1, i);
        const bool alike = own == other || (isnan(own) && isnan(other));
        const double difference = alike ? 0.0 : fabs(own - other);
        run->undefined[array] = run->undefined[array] || isnan(other);
        if (isfinite(other))
            run->largest[array] = fmax(run->largest[array], fabs(other));
        if (!(difference <= run->difference[array])) /* also NaN */
            run->difference[array] = isnan(difference) ? (double)INFINITY : difference;
    }
}

static clmgk_status read_arrays(trial_run *run, clmgk_error *error)
{
    for (int i = 0; i < CLMGK_ARRAYS; ++i) {
        bool is_output;
        if (!is_used(run, (clmgk_array)i, &is_output) || !is_output || bytes_of(run, (clmgk_array)i) == 0)
            continue;
        for (int plan = 0; plan < PLANS; ++plan)
            MGK_TRY(read_buffer(run, plan, run->memory[plan][i], bytes_of(run, (clmgk_array)i), error));
        compare(run, (clmgk_array)i);
    }
    return CLMGK_OK;
}

/* ---- runs ------------------------------------------------------------------------------------------------------- */

static clmgk_status enqueue_pass(const trial_run *run, int plan, clmgk_pass pass, const clmgk_attention_args *args,
                                 clmgk_error *error)
{
    const mgk_queue_place at = {runs_in_cuda(run, plan) ? NULL : run->queue, 0, NULL, NULL};
    const mgk_cuda_place cuda = {run->cuda, mgk_cuda_own_stream()};
    clmgk_attention_args own = *args;
    MGK_TRY(mgk_plan_enqueue(run->plan[plan], pass, &own, &at, runs_in_cuda(run, plan) ? &cuda : NULL, error));
    return runs_in_cuda(run, plan) ? mgk_cuda_wait(&cuda, error) : CLMGK_OK;
}

static clmgk_status enqueue(const trial_run *run, int plan, clmgk_error *error)
{
    clmgk_attention_args args = CLMGK_ATTENTION_ARGS_INIT;
    args.seed = run->random;
    for (int i = 0; i < CLMGK_ARRAYS; ++i) {
        const cl_mem own = run->memory[plan][i];
        clmgk_array_buffer(&args, (clmgk_array)i)->memory = own != NULL ? own : run->memory[0][i];
    }
    for (int pass = 0; pass < CLMGK_PASS_COMBINE; ++pass)
        if (run->plan[plan]->pass[pass] != NULL)
            MGK_TRY(enqueue_pass(run, plan, (clmgk_pass)pass, &args, error));
    return CLMGK_OK;
}

static clmgk_status run_round(trial_run *run, clmgk_error *error)
{
    MGK_TRY(write_arrays(run, error));
    clmgk_status status = CLMGK_OK;
    for (int plan = 0; status == CLMGK_OK && plan < PLANS; ++plan)
        status = enqueue(run, plan, error);
    const cl_int code = clFinish(run->queue);
    MGK_TRY(status);
    MGK_TRY(mgk_check_cl(error, code, "clFinish"));
    return read_arrays(run, error);
}

/* ---- the result ------------------------------------------------------------------------------------------------- */

/* An output with no numbers but zeros, those of rows without keys, tells nothing of its program. */
static clmgk_status check_defined(const trial_run *run, clmgk_error *error)
{
    for (int i = 0; i < CLMGK_ARRAYS; ++i) {
        if (run->undefined[i] && run->largest[i] == 0.0)
            return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "the texts give only NaN in %s of a small problem",
                            clmgk_array_name((clmgk_array)i));
    }
    return CLMGK_OK;
}

/* Twice the library's bound, because the two results may be off to different sides. In the bound the plain formula is
 * as exact as the types: 2 (3 + 1) c of the largest number, for gradients 2 (5 + 2) 2 c. Gradients in f32 are sums of
 * terms in the arrays' type. */
static double limit_of(const trial_run *run, clmgk_array array)
{
    static const double accuracy[] = {[CLMGK_DTYPE_F32] = 3e-6, [CLMGK_DTYPE_F16] = 5e-4, [CLMGK_DTYPE_BF16] = 4e-3};
    const bool is_gradient = clmgk_array_get_info(array)->gradient != 0;
    const bool is_sum = clmgk_array_get_info(array)->element != CLMGK_ELEMENT_STORAGE;
    const clmgk_dtype type =
        is_gradient && is_sum ? run->plan[0]->desc.dtype : mgk_array_dtype(&run->plan[0]->desc, array);
    const bool is_logarithm = array == CLMGK_ARRAY_LSE || array == CLMGK_ARRAY_NLL;
    const double largest = is_logarithm ? fmax(run->largest[array], 1.0) : run->largest[array];
    return (is_gradient ? 28.0 : 8.0) * accuracy[type] * largest;
}

/* The low part of L is not compared: any two differ. */
static void find_wrong(const trial_run *run, mgk_trial *trial)
{
    for (int pass = 0; pass < CLMGK_PASSES; ++pass) {
        double worst = 1.0;
        trial->wrong[pass] = CLMGK_ARRAYS;
        for (int i = 0; i < CLMGK_ARRAYS; ++i) {
            const double limit = limit_of(run, (clmgk_array)i), difference = run->difference[i];
            if (!mgk_array_is_output(&run->plan[0]->desc, (clmgk_pass)pass, (clmgk_array)i) ||
                i == CLMGK_ARRAY_LSE_LOW || difference <= worst * limit)
                continue;
            worst = limit > 0.0 ? difference / limit : (double)INFINITY;
            trial->wrong[pass] = (clmgk_array)i;
            trial->difference[pass] = difference;
            trial->limit[pass] = limit;
        }
    }
}

static void release(trial_run *run)
{
    for (int plan = 0; plan < PLANS; ++plan) {
        for (int i = 0; i < CLMGK_ARRAYS; ++i)
            free_buffer(run, plan, run->memory[plan][i]);
        mgk_free(&run->plan[0]->context->allocator, run->host[plan]);
    }
    if (run->queue != NULL)
        clReleaseCommandQueue(run->queue);
}

clmgk_status mgk_trial_run(mgk_trial *trial, mgk_cuda *cuda, clmgk_error *error)
{
    const clmgk_context *const context = trial->own->context;
    trial_run run = {.plan = {trial->own, trial->other}, .cuda = cuda};
    cl_int code = CL_SUCCESS;
    clmgk_status status;
    run.queue = clCreateCommandQueue(context->context, context->device, 0, &code);
    MGK_TRY_GOTO(status, mgk_check_cl(error, code, "clCreateCommandQueue"), cleanup);
    MGK_TRY_GOTO(status, make_buffers(&run, error), cleanup);
    for (int round = 0; status == CLMGK_OK && round < ROUNDS; ++round)
        status = run_round(&run, error);
    if (status == CLMGK_OK)
        status = check_defined(&run, error);
    if (status == CLMGK_OK)
        find_wrong(&run, trial);
cleanup:
    release(&run);
    return status;
}

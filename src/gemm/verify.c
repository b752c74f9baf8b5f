/* SPDX-License-Identifier: Apache-2.0 */
/* Verdicts on programs of products that are edited, or use a unit that nobody has seen at work: assemblers may
 * miscompile one configuration of a kernel and not the next. A small product runs in the plan's own program. Its
 * numbers have so few digits that all sums are exact. */
#include "gemm/gemm.h"
#include "gemm/product_args.clh"

#include <math.h>
#include <string.h>

typedef struct trial {
    clmgk_gemm_plan plan; /* of the small product */
    int8_t *left, *right; /* rows of A, and columns of B, of k numbers -1, 0 and 1 */
    void *c;
    cl_mem a_memory, b_memory, c_memory, workspace;
} trial;

/* ---- numbers ---------------------------------------------------------------------------------------------------- */

static int8_t *make_numbers(const clmgk_gemm_plan *plan, int64_t count, uint32_t seed)
{
    const size_t numbers = (size_t)(count * plan->desc.k);
    int8_t *const made = mgk_alloc(&plan->context->allocator, numbers, 1);
    for (size_t i = 0; made != NULL && i < numbers; ++i)
        made[i] = (int8_t)((int)(((uint32_t)i + seed) * UINT32_C(2654435761) >> 9) % 3 - 1);
    return made;
}

/* Factor of these numbers: f32 gets a digit in each of three slices if few products are added; the sums stay exact. */
static float scale_of(const clmgk_gemm_desc *desc)
{
    enum { FEW = 128 };
    return desc->dtype == CLMGK_DTYPE_F32 && desc->k < FEW ? 1 + 0x1p-8F + 0x1p-16F : 1;
}

/* ---- the small product ------------------------------------------------------------------------------------------- */

/* The small products: a block whose sums are promoted, in two ranges if the program has ranges; a block and parts of
 * the next ones, with rows that are multiples of 16 bytes, and with others. */
enum { TRIALS = 3 };
static const struct {
    int more_rows, more_columns, depth, depth_of_ranges;
} trials[TRIALS] = {{0, 0, 4136, 2 * 4160}, {24, 40, 104, 104}, {13, 27, 103, 103}};

static clmgk_status make_small(const clmgk_gemm_plan *plan, int number, clmgk_gemm_desc *small, clmgk_error *error)
{
    mgk_gemm_product_args args;
    memcpy(&args, plan->steps->step[0].args, sizeof(args));
    *small = (clmgk_gemm_desc)CLMGK_GEMM_DESC_INIT;
    small->dtype = plan->desc.dtype;
    small->precision = plan->desc.precision;
    small->transpose_a = plan->desc.transpose_a;
    small->transpose_b = plan->desc.transpose_b;
    small->m = args.rows + trials[number].more_rows;
    small->n = args.columns + trials[number].more_columns;
    small->k = args.range > 0 ? trials[number].depth_of_ranges : trials[number].depth;
    return mgk_gemm_resolve(small, small, error);
}

/* Makes the buffer of `count` rows of A or columns of B, stored as rows or `transposed`. */
static clmgk_status make_side(const clmgk_gemm_plan *plan, const int8_t *numbers, int64_t count, bool transposed,
                              cl_mem *memory, clmgk_error *error)
{
    const clmgk_dtype_info type = clmgk_dtype_get_info(plan->desc.dtype);
    const size_t lines = (size_t)count, k = (size_t)plan->desc.k, bytes = mgk_gemm_element(plan->desc.dtype);
    const float scale = scale_of(&plan->desc);
    cl_int code = CL_SUCCESS;
    void *const image = mgk_alloc(&plan->context->allocator, lines * k, bytes);
    if (image == NULL)
        return mgk_fail_memory(error, "a trial of a product");
    for (size_t i = 0; i < lines; ++i)
        for (size_t l = 0; l < k; ++l)
            mgk_put_number(image, transposed ? l * lines + i : i * k + l, scale * (float)numbers[i * k + l], &type);
    *memory = clCreateBuffer(plan->context->context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, lines * k * bytes, image,
                             &code);
    mgk_free(&plan->context->allocator, image);
    return *memory != NULL ? CLMGK_OK : mgk_fail_cl(error, code, "clCreateBuffer");
}

static clmgk_status make_arrays(trial *t, clmgk_error *error)
{
    const clmgk_gemm_plan *const plan = &t->plan;
    const clmgk_gemm_desc *const desc = &plan->desc;
    const size_t elements = (size_t)(desc->m * desc->n), bytes = mgk_gemm_element(desc->dtype);
    cl_int code = CL_SUCCESS;
    t->left = make_numbers(plan, desc->m, 1);
    t->right = make_numbers(plan, desc->n, 5);
    t->c = mgk_alloc(&plan->context->allocator, elements, bytes);
    if (t->left == NULL || t->right == NULL || t->c == NULL)
        return mgk_fail_memory(error, "a trial of a product");
    memset(t->c, 0xff, elements * bytes); /* NaN */
    MGK_TRY(make_side(plan, t->left, desc->m, desc->transpose_a != 0, &t->a_memory, error));
    MGK_TRY(make_side(plan, t->right, desc->n, desc->transpose_b == 0, &t->b_memory, error));
    t->c_memory =
        clCreateBuffer(plan->context->context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, elements * bytes, t->c, &code);
    if (t->c_memory == NULL)
        return mgk_fail_cl(error, code, "clCreateBuffer");
    const size_t workspace = (size_t)mgk_steps_workspace_size(plan->steps);
    if (workspace > 0)
        t->workspace = clCreateBuffer(plan->context->context, CL_MEM_READ_WRITE, workspace, NULL, &code);
    return workspace == 0 || t->workspace != NULL ? CLMGK_OK : mgk_fail_cl(error, code, "clCreateBuffer");
}

static void release(trial *t)
{
    const clmgk_allocator *const allocator = &t->plan.context->allocator;
    const cl_mem memory[] = {t->a_memory, t->b_memory, t->c_memory, t->workspace};
    for (size_t i = 0; i < MGK_COUNT(memory); ++i)
        if (memory[i] != NULL)
            clReleaseMemObject(memory[i]);
    mgk_free(allocator, t->left);
    mgk_free(allocator, t->right);
    mgk_free(allocator, t->c);
    mgk_steps_clear(t->plan.steps, allocator);
    mgk_free(allocator, t->plan.steps);
}

/* ---- the verdict ------------------------------------------------------------------------------------------------- */

static clmgk_status multiply(const trial *t, clmgk_error *error)
{
    const clmgk_buffer a = {t->a_memory, 0}, b = {t->b_memory, 0}, c = {t->c_memory, 0}, workspace = {t->workspace, 0};
    const size_t bytes = (size_t)(t->plan.desc.m * t->plan.desc.n) * mgk_gemm_element(t->plan.desc.dtype);
    cl_int code = CL_SUCCESS;
    mgk_call call = mgk_empty_call();
    call.buffers[MGK_GEMM_A] = &a;
    call.buffers[MGK_GEMM_B] = &b;
    call.buffers[MGK_GEMM_C] = &c;
    call.buffers[MGK_GEMM_WORKSPACE] = &workspace;
    cl_command_queue queue = clCreateCommandQueue(t->plan.context->context, t->plan.context->device, 0, &code);
    if (queue == NULL)
        return mgk_fail_cl(error, code, "clCreateCommandQueue");
    const mgk_queue_place at = {queue, 0, NULL, NULL};
    clmgk_status status = mgk_steps_enqueue(t->plan.steps, &call, &at, error);
    if (status == CLMGK_OK)
        status = mgk_check_cl(error, clEnqueueReadBuffer(queue, t->c_memory, CL_TRUE, 0, bytes, t->c, 0, NULL, NULL),
                              "clEnqueueReadBuffer");
    (void)clFinish(queue);
    clReleaseCommandQueue(queue);
    return status;
}

static int exact(const trial *t, int64_t row, int64_t column)
{
    const int64_t k = t->plan.desc.k;
    const int8_t *const x = t->left + row * k, *const y = t->right + column * k;
    int sum = 0;
    for (int64_t l = 0; l < k; ++l)
        sum += x[l] * y[l];
    return sum;
}

/* Largest relative error of an element: the rounding of its type, and the omitted parts of f32 slices. */
static double error_of(const clmgk_gemm_desc *desc)
{
    if (desc->dtype == CLMGK_DTYPE_F32)
        return desc->precision == CLMGK_PRECISION_EXACT ? 0x1p-22 : 0x1p-13;
    return desc->dtype == CLMGK_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
}

/* Compares all elements of C, and judges a wrong program. */
static clmgk_status compare(const trial *t, mgk_program *program, clmgk_error *error)
{
    const clmgk_gemm_desc *const desc = &t->plan.desc;
    const clmgk_dtype_info type = clmgk_dtype_get_info(desc->dtype);
    const double scale = (double)scale_of(desc) * (double)scale_of(desc);
    for (int64_t i = 0; i < desc->m * desc->n; ++i) {
        const double value = mgk_number(t->c, (size_t)i, &type);
        const double expected = scale * exact(t, i / desc->n, i % desc->n);
        if (fabs(value - expected) <= error_of(desc) * fabs(expected))
            continue;
        clmgk_error wrong;
        const clmgk_status status =
            mgk_fail(&wrong, CLMGK_ERROR_UNSUPPORTED,
                     "it gives wrong numbers here: an element of a small product is %g, expected %g", value, expected);
        mgk_program_judge(program, wrong.message);
        return mgk_fail(error, status, "%s", wrong.message);
    }
    return CLMGK_OK;
}

static clmgk_status try_small(const clmgk_gemm_plan *plan, const mgk_device_facts *facts, const char *parameters,
                              int number, mgk_gemm_step_maker *make_step, clmgk_error *error)
{
    mgk_limits ignored = {0};
    clmgk_program_origin origin = CLMGK_PROGRAM_MEMORY;
    mgk_program *const program = plan->steps->step[0].program;
    trial t = {.plan = {.context = plan->context}};
    t.plan.steps = mgk_alloc(&plan->context->allocator, 1, sizeof(*t.plan.steps));
    if (t.plan.steps == NULL)
        return mgk_fail_memory(error, "a trial of a product");
    mgk_steps_clear(t.plan.steps, &plan->context->allocator);
    clmgk_status status;
    MGK_TRY_GOTO(status, make_small(plan, number, &t.plan.desc, error), done);
    MGK_TRY_GOTO(status, make_step(&t.plan, facts, parameters, error), done);
    MGK_TRY_GOTO(status, mgk_steps_make(plan->context, &t.plan.steps, 1, &ignored, &origin, error), done);
    if (t.plan.steps->step[0].program != program)
        MGK_TRY_GOTO(status, mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "a small product has another program"), done);
    MGK_TRY_GOTO(status, make_arrays(&t, error), done);
    MGK_TRY_GOTO(status, multiply(&t, error), done);
    status = compare(&t, program, error);
done:
    release(&t);
    return status;
}

clmgk_status mgk_gemm_verify(const clmgk_gemm_plan *plan, const mgk_device_facts *facts, const char *parameters,
                             mgk_gemm_step_maker *make_step, clmgk_error *error)
{
    mgk_program *const program = plan->steps->step[0].program;
    if (mgk_program_is_unverified(program)) {
        for (int number = 0; number < TRIALS; ++number)
            MGK_TRY(try_small(plan, facts, parameters, number, make_step, error));
        mgk_program_judge(program, NULL);
    }
    return mgk_program_check(program, error); /* the verdict may be another thread's */
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Verdicts on programs of products that are edited, or use a unit that nobody has seen at work: assemblers may
 * miscompile one configuration of a kernel and not the next. Small products run in the plan's own program. */
#include "gemm/gemm.h"
#include "gemm/product_args.clh"

#include <string.h>

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

/* Factor of the numbers: f32 gets a digit in each of three slices if few products are added; the sums stay exact. */
static float scale_of(const clmgk_gemm_desc *desc)
{
    enum { FEW = 128 };
    return desc->dtype == CLMGK_DTYPE_F32 && desc->k < FEW ? 1 + 0x1p-8F + 0x1p-16F : 1;
}

/* Largest relative error of an element: the rounding of its type, and the omitted parts of f32 slices. */
static double error_of(const clmgk_gemm_desc *desc)
{
    if (desc->dtype == CLMGK_DTYPE_F32)
        return desc->precision == CLMGK_PRECISION_EXACT ? 0x1p-22 : 0x1p-13;
    return desc->dtype == CLMGK_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
}

static clmgk_status multiply(const clmgk_gemm_plan *small, const mgk_gemm_trial *t, clmgk_error *error)
{
    const clmgk_buffer a = {t->a, 0}, b = {t->b, 0}, c = {t->c, 0}, workspace = {t->workspace, 0};
    const mgk_queue_place at = {t->queue, 0, NULL, NULL};
    mgk_call call = mgk_empty_call();
    call.buffers[MGK_GEMM_A] = &a;
    call.buffers[MGK_GEMM_B] = &b;
    call.buffers[MGK_GEMM_C] = &c;
    call.buffers[MGK_GEMM_WORKSPACE] = &workspace;
    return mgk_steps_enqueue(small->steps, &call, &at, error);
}

/* Multiplies, compares all elements, and judges a wrong program. */
static clmgk_status try_program(const clmgk_gemm_plan *small, mgk_gemm_trial *t, mgk_program *program,
                                clmgk_error *error)
{
    MGK_TRY(mgk_gemm_trial_begin(t, (size_t)mgk_steps_workspace_size(small->steps), error));
    MGK_TRY(multiply(small, t, error));
    MGK_TRY(mgk_gemm_trial_check(t, INT64_MAX, error_of(&t->desc), error));
    if (!t->wrong)
        return CLMGK_OK;
    clmgk_error wrong;
    const clmgk_status status = mgk_fail(
        &wrong, CLMGK_ERROR_UNSUPPORTED,
        "it gives wrong numbers here: an element of a small product is %g, expected %g", t->value, t->expected);
    mgk_program_judge(program, wrong.message);
    return mgk_fail(error, status, "%s", wrong.message);
}

static clmgk_status try_small(const clmgk_gemm_plan *plan, const mgk_device_facts *facts, const char *parameters,
                              int number, mgk_gemm_step_maker *make_step, clmgk_error *error)
{
    const clmgk_allocator *const allocator = &plan->context->allocator;
    mgk_limits ignored = {0};
    clmgk_program_origin origin = CLMGK_PROGRAM_MEMORY;
    mgk_program *const program = plan->steps->step[0].program;
    mgk_gemm_trial t = {.context = plan->context, .fill = 0xff};
    clmgk_gemm_plan small = {.context = plan->context, .steps = mgk_alloc(allocator, 1, sizeof(*small.steps))};
    if (small.steps == NULL)
        return mgk_fail_memory(error, "a trial of a product");
    mgk_steps_clear(small.steps, allocator);
    clmgk_status status;
    MGK_TRY_GOTO(status, make_small(plan, number, &small.desc, error), done);
    MGK_TRY_GOTO(status, make_step(&small, facts, parameters, error), done);
    MGK_TRY_GOTO(status, mgk_steps_make(plan->context, &small.steps, 1, &ignored, &origin, error), done);
    if (small.steps->step[0].program != program)
        MGK_TRY_GOTO(status, mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "a small product has another program"), done);
    t.desc = small.desc;
    t.scale = scale_of(&small.desc);
    status = try_program(&small, &t, program, error);
done:
    mgk_gemm_trial_end(&t);
    mgk_steps_clear(small.steps, allocator);
    mgk_free(allocator, small.steps);
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

/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments and steps of our own kernels of products. */
#include "device/flags.h"
#include "gemm/combine_args.clh"
#include "gemm/gemm.h"
#include "gemm/product_args.clh"

#define MGK_GEMM_BUFFER(NAME, name, type, needed) {MGK_GEMM_##NAME, needed},

int64_t mgk_gemm_parts(int64_t count, int64_t size)
{
    return (count + size - 1) / size;
}

static mgk_gemm_product_args args_of(const clmgk_gemm_desc *desc, int64_t rows, int64_t columns)
{
    return (mgk_gemm_product_args){.stride_a = desc->stride_a,
                                   .stride_b = desc->stride_b,
                                   .stride_c = desc->stride_c,
                                   .row_a = desc->transpose_a != 0 ? 1 : desc->lda,
                                   .step_a = desc->transpose_a != 0 ? desc->lda : 1,
                                   .ldb = desc->ldb,
                                   .ldc = desc->ldc,
                                   .m = (mgk_i32)desc->m,
                                   .n = (mgk_i32)desc->n,
                                   .k = (mgk_i32)desc->k,
                                   .rows = (mgk_i32)rows,
                                   .columns = (mgk_i32)columns,
                                   .row_groups = (mgk_i32)mgk_gemm_parts(desc->m, rows),
                                   .column_groups = (mgk_i32)mgk_gemm_parts(desc->n, columns),
                                   .alpha = (float)desc->alpha,
                                   .beta = (float)desc->beta};
}

/* The number of blocks of C. */
static int64_t describe(clmgk_gemm_plan *plan, const mgk_gemm_product_args *args)
{
    plan->info.sums = CLMGK_DTYPE_F32;
    plan->info.cached = plan->context->keeper != CLMGK_KEEPER_NOBODY;
    return plan->desc.batch * args->row_groups * args->column_groups;
}

int64_t mgk_gemm_bind_product(clmgk_gemm_plan *plan, mgk_step *step, int64_t rows, int64_t columns)
{
    static const mgk_step_buffer list[] = {MGK_GEMM_PRODUCT_BUFFERS(MGK_GEMM_BUFFER)};
    const mgk_gemm_product_args args = args_of(&plan->desc, rows, columns);
    mgk_step_bind(step, &args, sizeof(args), list, MGK_COUNT(list));
    return describe(plan, &args);
}

/* ---- ranges of K ------------------------------------------------------------------------------------------------ */

/* Appends the step that adds up the sums of ranges, which are `sums` floats into the workspace, or with 0 ranges scales
 * C by beta. */
static void add_combination(clmgk_gemm_plan *plan, int64_t ranges, mgk_i64 sums)
{
    enum { GROUP = 64 };
    static const mgk_step_buffer list[] = {MGK_GEMM_COMBINE_BUFFERS(MGK_GEMM_BUFFER)};
    const clmgk_gemm_desc *const desc = &plan->desc;
    const mgk_flags flags = {.TYPE_Q = (int)desc->dtype};
    const mgk_gemm_combine_args args = {.stride = desc->stride_c,
                                        .ld = desc->ldc,
                                        .elements = desc->batch * desc->m * desc->n,
                                        .sums = sums,
                                        .rows = (mgk_i32)desc->m,
                                        .columns = (mgk_i32)desc->n,
                                        .ranges = (mgk_i32)ranges,
                                        .alpha = (float)desc->alpha,
                                        .beta = (float)desc->beta};
    mgk_step *const step = &plan->steps->step[plan->steps->count++];
    step->file = "gemm/combine.cl";
    step->name = "gemm_combine";
    mgk_text_printf(&step->options, "-cl-std=CL1.2");
    mgk_flags_options(&flags, &step->options);
    step->launch = (mgk_launch){1, {(size_t)mgk_gemm_parts(args.elements, GROUP) * GROUP}, {GROUP}};
    mgk_step_bind(step, &args, sizeof(args), list, MGK_COUNT(list));
}

int64_t mgk_gemm_bind_ranges(clmgk_gemm_plan *plan, mgk_step *step, int64_t rows, int64_t columns, int64_t range)
{
    static const mgk_step_buffer list[] = {{MGK_GEMM_A, true}, {MGK_GEMM_B, true}, {MGK_GEMM_WORKSPACE, true}};
    const clmgk_gemm_desc *const desc = &plan->desc;
    const int64_t ranges = mgk_gemm_parts(desc->k, range), size = desc->m * desc->n;
    mgk_gemm_product_args args = args_of(desc, rows, columns);
    args.stride_c = size;
    args.ldc = desc->n;
    args.alpha = 1.0F;
    args.beta = 0.0F;
    args.range = (mgk_i32)range;
    mgk_step_bind(step, &args, sizeof(args), list, MGK_COUNT(list));
    add_combination(plan, ranges, mgk_steps_region(plan->steps, desc->batch * ranges * size));
    plan->info.workspace_bytes = mgk_steps_workspace_size(plan->steps);
    return describe(plan, &args) * ranges;
}

size_t mgk_gemm_workspace_unit(const clmgk_gemm_plan *plan)
{
    return plan->steps->workspace_bytes > 0 ? sizeof(float) : 1;
}

/* ---- products without a sum ------------------------------------------------------------------------------------- */

static clmgk_status scale_plan(clmgk_gemm_plan *plan, const char *parameters, clmgk_error *error)
{
    const clmgk_gemm_desc *const desc = &plan->desc;
    (void)parameters;
    (void)error;
    if (desc->beta != 1.0 && desc->batch * desc->m * desc->n > 0) /* else nothing changes */
        add_combination(plan, 0, 0);
    return CLMGK_OK;
}

const mgk_gemm_provider mgk_gemm_scale = {.name = "none", .plan = scale_plan};

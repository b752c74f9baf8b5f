/* SPDX-License-Identifier: Apache-2.0 */
/* The library's own kernels, for few rows, where reading B is the limit, and for types that no other provider takes. */
#include "gemm/gemm.h"
#include "gemm/product_args.clh"
#include "operation/rows.h"

/* Up to this many rows they come first, as measured on CPUs (docs/gemm.md). */
#define FEW_ROWS 8

#define MGK_GEMM_BUFFER(NAME, name, type, needed) {MGK_GEMM_##NAME, needed},

static clmgk_status own_applicable(const mgk_device_facts *facts, clmgk_dtype dtype, clmgk_error *error)
{
    (void)facts;
    (void)dtype;
    (void)error;
    return CLMGK_OK;
}

static int64_t parts_of(int64_t count, int64_t size)
{
    return (count + size - 1) / size;
}

/* Divides C among work-groups. On a CPU there are few work-groups, each large enough for a task, but enough for all
 * cores. */
static void share(const clmgk_gemm_plan *plan, const mgk_row_form *form, mgk_gemm_product_args *args)
{
    enum { TASK = 1 << 15, TASKS_OF_CORE = 4, ROWS_OF_TASK = 64, ROWS_OF_GROUP = 16 };
    const clmgk_gemm_desc *const desc = &plan->desc;
    const mgk_device_facts *const facts = &plan->context->facts;
    if (form->group > 1) {
        args->rows = ROWS_OF_GROUP;
        args->columns = desc->transpose_b != 0 ? form->group / form->team : form->team * form->lanes;
    } else {
        const int64_t tasks = TASKS_OF_CORE * (int64_t)facts->info.compute_units;
        args->rows = ROWS_OF_TASK;
        const int64_t others = desc->batch * parts_of(desc->m, args->rows);
        const int64_t worth = parts_of(TASK, desc->k * (int64_t)mgk_gemm_element(desc->dtype));
        const int64_t even = parts_of(desc->n, parts_of(tasks, others));
        /* whole blocks: of 64 columns, or of 16 if B is transposed or a task has fewer columns */
        const int64_t unit = desc->transpose_b != 0 || even < 64 ? 16 : 64;
        args->columns = (mgk_i32)(parts_of(worth > even ? worth : even, unit) * unit);
    }
    args->row_groups = (mgk_i32)parts_of(desc->m, args->rows);
    args->column_groups = (mgk_i32)parts_of(desc->n, args->columns);
}

static clmgk_status own_plan(clmgk_gemm_plan *plan, const char *parameters, clmgk_error *error)
{
    static const mgk_step_buffer list[] = {MGK_GEMM_PRODUCT_BUFFERS(MGK_GEMM_BUFFER)};
    const clmgk_gemm_desc *const desc = &plan->desc;
    const mgk_row_form form = mgk_rows_form(&plan->context->facts);
    mgk_gemm_product_args args = {.stride_a = desc->stride_a,
                                  .stride_b = desc->stride_b,
                                  .stride_c = desc->stride_c,
                                  .row_a = desc->transpose_a != 0 ? 1 : desc->lda,
                                  .step_a = desc->transpose_a != 0 ? desc->lda : 1,
                                  .ldb = desc->ldb,
                                  .ldc = desc->ldc,
                                  .m = (mgk_i32)desc->m,
                                  .n = (mgk_i32)desc->n,
                                  .k = (mgk_i32)desc->k,
                                  .alpha = (float)desc->alpha,
                                  .beta = (float)desc->beta};
    (void)parameters;
    (void)error;
    share(plan, &form, &args);
    const size_t groups = (size_t)desc->batch * (size_t)args.row_groups * (size_t)args.column_groups;
    mgk_step *const step = &plan->steps->step[plan->steps->count++];
    step->file = "gemm/product.cl";
    step->name = desc->transpose_b != 0 ? "gemm_product_rows" : "gemm_product_columns";
    mgk_rows_options(&plan->context->facts, desc->dtype, &step->options);
    mgk_rows_most_registers(&plan->context->facts, &step->options);
    step->launch = (mgk_launch){1, {groups * (size_t)form.group}, {(size_t)form.group}};
    mgk_step_bind(step, &args, sizeof(args), list, MGK_COUNT(list));
    plan->info.sums = CLMGK_DTYPE_F32;
    plan->info.cached = plan->context->keeper != CLMGK_KEEPER_NOBODY;
    return CLMGK_OK;
}

const mgk_gemm_provider mgk_gemm_own = {.name = "clmgk",
                                        .few_rows = FEW_ROWS,
                                        .applicable = own_applicable,
                                        .check_parameters = mgk_gemm_no_parameters,
                                        .plan = own_plan};

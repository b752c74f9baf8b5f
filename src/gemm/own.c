/* SPDX-License-Identifier: Apache-2.0 */
/* The library's own kernels, for few rows, where reading B is the limit, and for types that no other provider takes. */
#include "gemm/gemm.h"
#include "operation/rows.h"

/* Up to this many rows they come first, as measured on CPUs (docs/layer.md). */
#define FEW_ROWS 8

static clmgk_status own_applicable(const mgk_device_facts *facts, clmgk_dtype dtype, clmgk_error *error)
{
    (void)facts;
    (void)dtype;
    (void)error;
    return CLMGK_OK;
}

/* Divides C among work-groups. On a CPU there are few work-groups, each large enough for a task, but enough for all
 * cores. */
static void share(const clmgk_gemm_plan *plan, const mgk_row_form *form, int64_t *rows, int64_t *columns)
{
    enum { TASK = 1 << 15, TASKS_OF_CORE = 4, ROWS_OF_TASK = 64, ROWS_OF_GROUP = 16 };
    const clmgk_gemm_desc *const desc = &plan->desc;
    const mgk_device_facts *const facts = &plan->context->facts;
    if (form->group > 1) {
        *rows = ROWS_OF_GROUP;
        *columns = desc->transpose_b != 0 ? form->group / form->team : form->team * form->lanes;
        return;
    }
    const int64_t tasks = TASKS_OF_CORE * (int64_t)facts->info.compute_units;
    *rows = ROWS_OF_TASK;
    const int64_t others = desc->batch * mgk_gemm_parts(desc->m, *rows);
    const int64_t worth = mgk_gemm_parts(TASK, desc->k * (int64_t)mgk_gemm_element(desc->dtype));
    const int64_t even = mgk_gemm_parts(desc->n, mgk_gemm_parts(tasks, others));
    /* whole blocks: of 64 columns, or of 16 if B is transposed or a task has fewer columns */
    const int64_t unit = desc->transpose_b != 0 || even < 64 ? 16 : 64;
    *columns = mgk_gemm_parts(worth > even ? worth : even, unit) * unit;
}

static clmgk_status own_resize(clmgk_gemm_plan *plan, clmgk_error *error)
{
    const mgk_row_form form = mgk_rows_form(&plan->context->facts);
    mgk_step *const step = &plan->steps->step[plan->steps->count++];
    int64_t rows = 0, columns = 0;
    (void)error;
    share(plan, &form, &rows, &columns);
    const size_t groups = (size_t)mgk_gemm_bind_product(plan, step, rows, columns);
    step->file = "gemm/product.cl";
    step->name = plan->desc.transpose_b != 0 ? "gemm_product_rows" : "gemm_product_columns";
    mgk_rows_options(&plan->context->facts, (mgk_flags){.TYPE_Q = (int)plan->desc.dtype}, &step->options);
    mgk_rows_most_registers(&plan->context->facts, &step->options);
    step->launch = (mgk_launch){1, {groups * (size_t)form.group}, {(size_t)form.group}};
    return CLMGK_OK;
}

static clmgk_status own_plan(clmgk_gemm_plan *plan, const char *parameters, clmgk_error *error)
{
    (void)parameters;
    return own_resize(plan, error);
}

const mgk_gemm_provider mgk_gemm_own = {.name = "clmgk",
                                        .few_rows = FEW_ROWS,
                                        .applicable = own_applicable,
                                        .check_parameters = mgk_gemm_no_parameters,
                                        .plan = own_plan,
                                        .resize = own_resize};

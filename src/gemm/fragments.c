/* SPDX-License-Identifier: Apache-2.0 */
/* Products by a GPU's matrix units, in the fragments of the engine `matrix`. Without units they are emulated, for
 * tests. */
#include "device/flags.h"
#include "gemm/gemm.h"
#include "gemm/tunables.h"

#include <inttypes.h>

MGK_TUNABLE_TABLE(fragments, "gemm-matrix", MGK_FRAGMENTS_TUNABLES, MGK_FRAGMENTS_CONSTRAINTS);

const mgk_tunable_table *const mgk_gemm_fragments_table = &fragments_table;

/* Columns of a fragment, and bytes of a piece that is copied at once. */
enum { FRAGMENT_COLUMNS = 8, PIECE_BYTES = 16 };

/* The bound of sums of more numbers has room for the parts that three products of tf32, or of three slices, omit
 * (docs/layer.md). */
enum { FEW_NUMBERS = 64 };

/* Number of products of tf32, for f32 numbers without slices. */
static int tf32_products_of(const clmgk_gemm_desc *desc, int slices)
{
    enum { ROUNDED = 1, EXACT = 3, EXACT_OF_FEW = 4 };
    if (desc->dtype != CLMGK_DTYPE_F32 || slices > 0)
        return 0;
    return desc->precision != CLMGK_PRECISION_EXACT ? ROUNDED : desc->k > FEW_NUMBERS ? EXACT : EXACT_OF_FEW;
}

/* Number of bf16 slices of an f32 number that make its products exact enough; 0: none do. */
enum { ROUNDED_SLICES = 2, EXACT_SLICES = 3 };

static int slices_of(const clmgk_gemm_desc *desc)
{
    if (desc->dtype != CLMGK_DTYPE_F32)
        return 0;
    return desc->precision != CLMGK_PRECISION_EXACT ? ROUNDED_SLICES : desc->k > FEW_NUMBERS ? EXACT_SLICES : 0;
}

/* The product of the fewest numbers in a sum that the plan computes. */
static clmgk_gemm_desc least_of(const clmgk_gemm_plan *plan)
{
    clmgk_gemm_desc desc = plan->desc;
    if (plan->any_rows && desc.transpose_a != 0)
        desc.k = 1;
    return desc;
}

/* ---- blocks ---------------------------------------------------------------------------------------------------- */

/* Sizes of the unit, or of the one that is emulated. */
static const mgk_unit_sizes *sizes_of(const mgk_tunables *p)
{
    const int unit = mgk_tunable_get(p, MGK_NAMED(unit)), emulated = mgk_tunable_get(p, MGK_NAMED(emulates));
    return mgk_matrix_unit_sizes(unit != 0 ? unit : emulated != 0 ? emulated : MATRIX_MMA);
}

/* True of a direct unit, also an emulated one. */
static bool is_direct(const mgk_tunables *p)
{
    return mgk_matrix_unit_is_direct(mgk_tunable_get(p, MGK_NAMED(unit))) ||
           mgk_tunable_get(p, MGK_NAMED(emulates)) != 0;
}

static int64_t threads_of(const mgk_tunables *p)
{
    return (int64_t)mgk_tunable_get(p, MGK_NAMED(warps)) * sizes_of(p)->lanes;
}

static int64_t rows_of(const mgk_tunables *p)
{
    return (int64_t)(mgk_tunable_get(p, MGK_NAMED(warps)) / mgk_tunable_get(p, MGK_NAMED(column_warps))) *
           mgk_tunable_get(p, MGK_NAMED(row_tiles)) * sizes_of(p)->rows;
}

static int64_t columns_of(const mgk_tunables *p)
{
    return (int64_t)mgk_tunable_get(p, MGK_NAMED(column_warps)) * mgk_tunable_get(p, MGK_NAMED(column_tiles)) *
           FRAGMENT_COLUMNS;
}

/* A tile has half as many numbers of f32, whose slices take two bytes each. */
static uint64_t local_bytes_of(const mgk_tunables *p)
{
    enum { BYTES = 2 };
    const int slices = mgk_tunable_get(p, MGK_NAMED(slices));
    const int64_t bytes = (rows_of(p) + columns_of(p)) * mgk_tunable_get(p, MGK_NAMED(depth)) *
                          mgk_tunable_get(p, MGK_NAMED(stages)) * BYTES;
    return (uint64_t)(slices > 0 ? bytes / 2 * slices : bytes);
}

static int64_t blocks_of(const clmgk_gemm_desc *desc, const mgk_tunables *p)
{
    return desc->batch * mgk_gemm_parts(desc->m, rows_of(p)) * mgk_gemm_parts(desc->n, columns_of(p));
}

/* Checks that a warp's columns are whole fragments of the unit, and that transposed rows of a tile are long enough. */
static clmgk_status check_fragments(const mgk_tunables *p, clmgk_error *error)
{
    enum { LEAST_ROWS = 32 };
    const int tiles = sizes_of(p)->columns / FRAGMENT_COLUMNS;
    if (mgk_tunable_get(p, MGK_NAMED(column_tiles)) % tiles != 0)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "column-tiles: expected a multiple of %d with this unit",
                        tiles);
    return rows_of(p) >= LEAST_ROWS
               ? CLMGK_OK
               : mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "a block of %d rows with this unit: expected at least %d",
                          (int)rows_of(p), LEAST_ROWS);
}

/* Halves a parameter that is a default, unless a block would then be too small. */
static bool halve(mgk_tunables *p, mgk_tunable_name name)
{
    mgk_tunables smaller = *p;
    if (!mgk_tunable_is_default(p, name) || mgk_tunable_get(p, name) < 2)
        return false;
    mgk_tunable_default(&smaller, name, mgk_tunable_get(p, name) / 2);
    if (mgk_tunables_check(&smaller, true, NULL) != CLMGK_OK || check_fragments(&smaller, NULL) != CLMGK_OK)
        return false;
    *p = smaller;
    return true;
}

static bool halve_longer_side(mgk_tunables *p)
{
    return columns_of(p) > rows_of(p) / 2 ? halve(p, MGK_NAMED(column_tiles)) || halve(p, MGK_NAMED(row_tiles))
                                          : halve(p, MGK_NAMED(row_tiles)) || halve(p, MGK_NAMED(column_tiles));
}

/* If half of the device's units would have no block, K is divided into ranges of this length or more, in place of
 * smaller blocks than LEAST_SPLIT. */
enum { LEAST_RANGE = 512, LEAST_SPLIT = 64 * 64 };

static bool is_to_split(const clmgk_gemm_desc *desc, const mgk_tunables *p)
{
    return rows_of(p) * columns_of(p) <= LEAST_SPLIT && desc->k >= (int64_t)2 * LEAST_RANGE &&
           mgk_tunable_is_default(p, MGK_NAMED(splits));
}

/* Takes as many ranges as units without a block can take. */
static void choose_splits(const clmgk_gemm_desc *desc, int64_t units, mgk_tunables *p)
{
    enum { MOST = 64 };
    int splits = 1;
    while (splits < MOST && desc->k >= (int64_t)2 * splits * LEAST_RANGE && blocks_of(desc, p) * 2 * splits <= units)
        splits *= 2;
    mgk_tunable_default(p, MGK_NAMED(splits), splits);
}

/* Numbers of K in a range: whole tiles. */
static int64_t range_of(const clmgk_gemm_desc *desc, const mgk_tunables *p)
{
    const int64_t tile = mgk_tunable_get(p, MGK_NAMED(depth));
    return mgk_gemm_parts(mgk_gemm_parts(desc->k, mgk_tunable_get(p, MGK_NAMED(splits))), tile) * tile;
}

/* Large blocks load the fewest numbers for a product. They are smaller if the product would leave half of a block
 * empty, or half of the device's units without one. */
static void choose_block(const clmgk_gemm_desc *desc, const mgk_device_facts *facts, mgk_tunables *p)
{
    const int64_t units = facts->info.device_class == CLMGK_DEVICE_CPU ? 1 : (int64_t)facts->info.compute_units;
    bool halved = true;
    while (halved && desc->n <= columns_of(p) / 2)
        halved = halve(p, MGK_NAMED(column_tiles));
    for (halved = true; halved && desc->m <= rows_of(p) / 2;)
        halved = halve(p, MGK_NAMED(row_tiles));
    for (halved = true; halved && blocks_of(desc, p) <= units / 2 && !is_to_split(desc, p);)
        halved = halve_longer_side(p);
    choose_splits(desc, units, p);
}

/* Pieces that are loaded ahead need no more than two stages, and slices leave no room for more. */
static void choose_stages(mgk_tunables *p)
{
    enum { STAGES = 2 };
    if (mgk_tunable_get(p, MGK_NAMED(slices)) > 0 || is_direct(p))
        mgk_tunable_default(p, MGK_NAMED(stages), STAGES);
}

/* Takes fewer tiles in flight, else a smaller block, if local memory has no room for the defaults. */
static void choose_local(uint64_t local, mgk_tunables *p)
{
    enum { STAGES = 2 };
    if (local_bytes_of(p) > local && mgk_tunable_get(p, MGK_NAMED(stages)) > STAGES)
        mgk_tunable_default(p, MGK_NAMED(stages), STAGES);
    for (bool halved = true; halved && local_bytes_of(p) > local;)
        halved = halve_longer_side(p);
}

/* True if the given parameters suit wgmma, whose four warps have their rows one below the other, and the product leaves
 * no half of its least block empty. Then the defaults are wgmma's. f32 numbers must have slices. Tiles are short: three
 * tiles of 32 numbers would take 48 KiB, which NVIDIA's driver refuses; two would wait for the copies. */
static bool choose_wgmma(const clmgk_gemm_desc *desc, mgk_tunables *p)
{
    enum { LEAST = 64, ROW_TILES = 2, COLUMN_TILES = 16, DEPTH = 16, STAGES = 5 };
    mgk_tunables own = *p;
    mgk_tunable_default(&own, MGK_NAMED(slices), slices_of(desc));
    if (desc->dtype == CLMGK_DTYPE_F32 && mgk_tunable_get(&own, MGK_NAMED(slices)) == 0)
        return false;
    mgk_tunable_default(&own, MGK_NAMED(unit), MATRIX_WGMMA);
    mgk_tunable_default(&own, MGK_NAMED(column_warps), 1);
    mgk_tunable_default(&own, MGK_NAMED(row_tiles), ROW_TILES);
    mgk_tunable_default(&own, MGK_NAMED(column_tiles), COLUMN_TILES);
    if (desc->dtype != CLMGK_DTYPE_F32)
        mgk_tunable_default(&own, MGK_NAMED(depth), DEPTH);
    if (mgk_tunable_get(&own, MGK_NAMED(depth)) == DEPTH)
        mgk_tunable_default(&own, MGK_NAMED(stages), STAGES);
    const bool suits = desc->m > LEAST / 2 && desc->n > LEAST / 2 && mgk_tunables_check(&own, true, NULL) == CLMGK_OK;
    if (suits)
        *p = own;
    return suits;
}

/* A warp of a direct unit has as many columns as a tile of attention has keys, and MOST_SUMS sums in a lane. */
static void choose_direct(mgk_tunables *p)
{
    enum { MOST_SUMS = 64 };
    const mgk_unit_sizes *const unit = sizes_of(p);
    const int columns = unit->most_tiles * FRAGMENT_COLUMNS;
    mgk_tunable_default(p, MGK_NAMED(column_tiles), unit->most_tiles);
    mgk_tunable_default(p, MGK_NAMED(row_tiles), MOST_SUMS * unit->lanes / columns / unit->rows);
}

static void choose(const clmgk_gemm_plan *plan, const mgk_device_facts *facts, mgk_tunables *p)
{
    const clmgk_gemm_desc least = least_of(plan);
    const int found = facts->matrix_unit.unit;
    mgk_tunables_begin(p, facts->info.device_class);
    if (found != MATRIX_WGMMA || !choose_wgmma(&least, p))
        mgk_tunable_default(p, MGK_NAMED(unit), found == MATRIX_WGMMA ? MATRIX_MMA : found);
    if (is_direct(p))
        choose_direct(p);
    choose_stages(p);
    choose_local(facts->info.local_memory_bytes, p);
    choose_block(&plan->desc, facts, p);
}

/* ---- plans ------------------------------------------------------------------------------------------------------ */

/* The newest unit of the engine `matrix` that a device of this architecture has; 0: none. */
static int newest_unit(const mgk_device_facts *facts)
{
    int newest = mgk_matrix_unit_of(facts, MATRIX_WGMMA);
    for (int unit = 1; unit < MGK_MATRIX_UNITS && newest == 0; ++unit)
        if (mgk_matrix_unit_is_direct(unit))
            newest = mgk_matrix_unit_of(facts, unit);
    return newest;
}

static clmgk_status fragments_applicable(const mgk_device_facts *facts, clmgk_dtype dtype, clmgk_error *error)
{
    return mgk_matrix_unit_is_direct(newest_unit(facts)) && dtype == CLMGK_DTYPE_F32
               ? mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "the device's matrix units multiply f16 and bf16 alone")
               : CLMGK_OK;
}

static const char *fragments_only_named(const mgk_device_facts *facts)
{
    return newest_unit(facts) == 0 ? "emulates matrix units, for tests that name it" : NULL;
}

static clmgk_status fragments_check(const char *text, clmgk_error *error)
{
    const mgk_parameters parameters = {.text = text, .origin = MGK_ORIGIN_CALLER};
    mgk_tunables tunables = mgk_tunables_of(&fragments_table);
    MGK_TRY(mgk_tunables_read(&tunables, &parameters, error));
    return mgk_tunables_check(&tunables, false, error);
}

/* Finds the unit of products of a type: the device's, or 0 on a device without one. */
static clmgk_status find_unit(clmgk_context *context, clmgk_dtype dtype, int *unit, clmgk_error *error)
{
    const int newest = newest_unit(&context->facts);
    *unit = 0;
    if (newest == 0)
        return CLMGK_OK;
    const mgk_matrix_unit found = mgk_context_matrix_unit(context, newest);
    *unit = found.unit;
    return found.unit > 0 && (found.wrong_types >> dtype & 1U) == 0
               ? CLMGK_OK
               : mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "no matrix units: %s", found.why);
}

static void add_step(clmgk_gemm_plan *plan, const mgk_device_facts *facts, const mgk_tunables *p)
{
    const clmgk_gemm_desc *const desc = &plan->desc, least = least_of(plan);
    const int splits = mgk_tunable_get(p, MGK_NAMED(splits)), slices = mgk_tunable_get(p, MGK_NAMED(slices));
    mgk_step *const step = &plan->steps->step[plan->steps->count++];
    const mgk_flags flags = {.engine = CLMGK_ENGINE_MATRIX,
                             .TYPE_Q = (int)desc->dtype,
                             .TYPE_K = (int)desc->dtype,
                             .TYPE_V = (int)desc->dtype,
                             .TYPE_O = (int)desc->dtype,
                             .MATRIX_UNIT = mgk_tunable_get(p, MGK_NAMED(unit)),
                             .EMULATED_UNIT = mgk_tunable_get(p, MGK_NAMED(emulates)),
                             .SHUFFLE = facts->sub_group.shuffle,
                             .SUB_GROUP_SIZE = facts->sub_group.size,
                             .LEAST_SUB_GROUP = facts->least_sub_group,
                             .TF32_PRODUCTS = tf32_products_of(&least, slices),
                             .BF16_SLICES = slices,
                             .SPLIT_DEPTH = splits > 1,
                             .TRANSPOSE_A = desc->transpose_a,
                             .TRANSPOSE_B = desc->transpose_b};
    const size_t threads = (size_t)threads_of(p);
    const int unit = mgk_tunable_get(p, MGK_NAMED(unit));
    step->file = "gemm/fragments.cl";
    step->name = "gemm_fragments";
    mgk_text_printf(&step->options, "-cl-std=CL1.2");
    mgk_flags_options(&flags, &step->options);
    mgk_tunables_options(p, &step->options);
    if (unit == MATRIX_WGMMA || mgk_matrix_unit_is_direct(unit))
        mgk_text_printf(&step->options, " %s", unit == MATRIX_WGMMA ? MGK_EDITED_PTX : MGK_UNTRIED_UNIT);
    const int64_t rows = rows_of(p), columns = columns_of(p);
    const size_t blocks = (size_t)(splits > 1 ? mgk_gemm_bind_ranges(plan, step, rows, columns, range_of(desc, p))
                                              : mgk_gemm_bind_product(plan, step, rows, columns));
    plan->info.precision =
        flags.TF32_PRODUCTS == 1 || slices == ROUNDED_SLICES ? CLMGK_PRECISION_TF32 : CLMGK_PRECISION_EXACT;
    step->launch = (mgk_launch){1, {blocks * threads}, {threads}};
    step->local_bytes = local_bytes_of(p);
}

static clmgk_status check_group(const mgk_tunables *p, const mgk_device_facts *facts, clmgk_error *error)
{
    const uint64_t threads = (uint64_t)threads_of(p), local = local_bytes_of(p);
    if (threads > facts->info.max_work_group || threads > facts->work_item_limit)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "a work-group of %" PRIu64 ", the device takes %" PRIu64,
                        threads, facts->info.max_work_group);
    return local <= facts->info.local_memory_bytes
               ? CLMGK_OK
               : mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "%" PRIu64 " bytes of local memory, the device has %" PRIu64,
                          local, facts->info.local_memory_bytes);
}

/* Notes why a product is slower than the units are. */
static void add_note(clmgk_gemm_plan *plan, const mgk_tunables *p)
{
    const clmgk_gemm_desc *const desc = &plan->desc;
    const int64_t piece = PIECE_BYTES / (int64_t)mgk_gemm_element(desc->dtype);
    const bool pieces = (mgk_gemm_a(desc).columns % piece | mgk_gemm_b(desc).columns % piece | desc->lda % piece |
                         desc->ldb % piece | desc->stride_a % piece | desc->stride_b % piece) == 0;
    const char *const reason = mgk_tunable_get(p, MGK_NAMED(unit)) == 0 ? "slow: emulates matrix units"
                               : pieces                                 ? NULL
                                        : "slow: rows of A or B are no multiples of 16 bytes, and are copied number by "
                                          "number";
    if (reason != NULL)
        mgk_text_printf(&plan->note, "%s%s", plan->note.length > 0 ? "; " : "", reason);
}

/* Checks that the unit multiplies the factors, and exactly enough. */
static clmgk_status check_slices(const clmgk_gemm_plan *plan, const mgk_tunables *p, clmgk_error *error)
{
    const clmgk_gemm_desc desc = least_of(plan);
    const int slices = mgk_tunable_get(p, MGK_NAMED(slices)), least = slices_of(&desc);
    if (slices > 0 && (least == 0 || slices < least))
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "%d slices of a number are not for this product: expected %d",
                        slices, least);
    if (desc.dtype == CLMGK_DTYPE_F32 && is_direct(p))
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "the unit has no products of f32");
    if (slices == 0 && desc.dtype == CLMGK_DTYPE_F32 && mgk_tunable_get(p, MGK_NAMED(unit)) == MATRIX_WGMMA)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "wgmma multiplies slices of f32 numbers, which this product does not have: expected unit 1");
    return CLMGK_OK;
}

/* Reads the plan's parameters and makes the others. */
static clmgk_status read_parameters(const clmgk_gemm_plan *plan, const mgk_device_facts *facts,
                                    const mgk_parameters *parameters, mgk_tunables *p, clmgk_error *error)
{
    *p = mgk_tunables_of(&fragments_table);
    MGK_TRY(mgk_tunables_read(p, parameters, error));
    choose(plan, facts, p);
    MGK_TRY(check_slices(plan, p, error));
    MGK_TRY(mgk_tunables_check(p, true, error));
    MGK_TRY(check_fragments(p, error));
    if (!mgk_matrix_unit_allows(facts, mgk_tunable_get(p, MGK_NAMED(unit))))
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "the device has no such matrix unit");
    return check_group(p, facts, error);
}

clmgk_status mgk_gemm_fragments_step(clmgk_gemm_plan *plan, const mgk_device_facts *facts, const char *parameters,
                                     clmgk_error *error)
{
    const mgk_parameters given = {.text = parameters, .origin = MGK_ORIGIN_CALLER};
    mgk_tunables tunables;
    MGK_TRY(read_parameters(plan, facts, &given, &tunables, error));
    add_step(plan, facts, &tunables);
    return CLMGK_OK;
}

/* Verifies the plan's program by small products in the same program, which have two ranges of K if the plan has any. */
static clmgk_status verify(clmgk_gemm_plan *plan, const mgk_device_facts *facts, const mgk_tunables *p,
                           clmgk_error *error)
{
    enum { RANGES = 2 };
    mgk_tunables small = *p;
    mgk_text all = {.allocator = &plan->context->allocator};
    if (mgk_tunable_get(p, MGK_NAMED(splits)) > RANGES)
        small.value[mgk_tunable_index(p, MGK_NAMED(splits))] = RANGES;
    mgk_tunables_print(&small, &all);
    const clmgk_status status = all.failed ? mgk_fail_memory(error, "a plan's parameters")
                                           : mgk_gemm_verify(plan, facts, all.data, mgk_gemm_fragments_step, error);
    mgk_text_free(&all);
    return status;
}

static clmgk_status make(clmgk_gemm_plan *plan, const mgk_device_facts *facts, const mgk_tunables *p,
                         mgk_limits *limits, clmgk_error *error)
{
    clmgk_program_origin origin = CLMGK_PROGRAM_MEMORY;
    add_step(plan, facts, p);
    plan->steps->any_size = plan->any_rows;
    MGK_TRY(mgk_steps_make(plan->context, &plan->steps, 1, limits, &origin, error));
    return verify(plan, facts, p, error);
}

/* After a failed plan with these parameters: lowers the facts to less local memory, if that was missing and default
 * parameters can need less, else to an older unit. False: to neither. */
static bool lower(const clmgk_gemm_plan *plan, const mgk_parameters *given, const mgk_limits *limits,
                  const mgk_tunables *p, mgk_device_facts *facts)
{
    const int unit = mgk_tunable_get(p, MGK_NAMED(unit));
    mgk_device_facts less = *facts;
    mgk_tunables smaller;
    less.info.local_memory_bytes = limits->local;
    if (limits->narrowed && read_parameters(plan, &less, given, &smaller, NULL) == CLMGK_OK) {
        *facts = less;
        return true;
    }
    facts->matrix_unit.unit = mgk_matrix_unit_older(unit);
    return facts->matrix_unit.unit != 0 && mgk_tunable_is_default(p, MGK_NAMED(unit));
}

/* Takes the newest unit and the largest block whose program compiles, runs, and is right. */
static clmgk_status fragments_plan(clmgk_gemm_plan *plan, const char *parameters, clmgk_error *error)
{
    const bool own = plan->info.tuning == CLMGK_TUNING_CALLER || plan->info.tuning == CLMGK_TUNING_BUCKET;
    const mgk_parameters given = {.text = parameters, .origin = own ? MGK_ORIGIN_CALLER : MGK_ORIGIN_NEAR};
    mgk_device_facts facts = plan->context->facts;
    mgk_tunables tunables;
    MGK_TRY(find_unit(plan->context, plan->desc.dtype, &facts.matrix_unit.unit, error));
    facts.sub_group = mgk_context_sub_group(plan->context);
    for (;;) {
        clmgk_error failure = {.status = CLMGK_OK};
        mgk_limits limits = {0};
        MGK_TRY(read_parameters(plan, &facts, &given, &tunables, error));
        const clmgk_status status = make(plan, &facts, &tunables, &limits, &failure);
        const int unit = mgk_tunable_get(&tunables, MGK_NAMED(unit));
        if (status == CLMGK_OK)
            break;
        if (status == CLMGK_ERROR_OUT_OF_HOST_MEMORY || !lower(plan, &given, &limits, &tunables, &facts))
            return mgk_fail_code(error, status, failure.opencl_code, "%s", failure.message);
        mgk_text_printf(&plan->note, "%sno %s: %s", plan->note.length > 0 ? "; " : "",
                        facts.matrix_unit.unit != unit ? mgk_matrix_unit_name(&facts, unit) : "larger block",
                        failure.message);
        mgk_steps_clear(plan->steps, &plan->context->allocator);
        plan->info.workspace_bytes = 0;
    }
    add_note(plan, &tunables);
    mgk_text_free(&plan->parameters);
    mgk_tunables_print(&tunables, &plan->parameters);
    return CLMGK_OK;
}

/* With the plan's parameters. */
static clmgk_status fragments_resize(clmgk_gemm_plan *plan, clmgk_error *error)
{
    const mgk_parameters own = {.text = plan->parameters.data, .origin = MGK_ORIGIN_CALLER};
    mgk_tunables tunables = mgk_tunables_of(&fragments_table);
    MGK_TRY(mgk_tunables_read(&tunables, &own, error));
    add_step(plan, &plan->context->facts, &tunables);
    return CLMGK_OK;
}

const mgk_gemm_provider mgk_gemm_fragments = {.name = "matrix",
                                              .applicable = fragments_applicable,
                                              .only_named = fragments_only_named,
                                              .check_parameters = fragments_check,
                                              .plan = fragments_plan,
                                              .resize = fragments_resize};

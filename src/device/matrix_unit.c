/* SPDX-License-Identifier: Apache-2.0 */
/* Units that multiply small matrices. A device's architecture says which ones it should have; a probe kernel of each
 * shows whether the compiler takes its instructions, and whether it multiplies rightly. */
#include "device/probe.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define FUNCTION static
#include "engine/probe_numbers.clh"

/* As in the probes' kernels: for f16, bf16 and (one warp) f32, products A B^T and A B of square matrices. */
enum { WARP_SIZE = 32, TYPES = 3, SIZE = 16, FORMS = 2 };
enum { GROUP_ITEMS = 4 * WARP_SIZE, GROUP_TYPES = 2, GROUP_SIZE = 64, GROUP_FORMS = 6 };
enum { TILE_SIZE = 32 }; /* AMX: A B^T for the unit's type alone */
/* Direct units: of ordinary numbers, of a small A, of a small B. */
enum { DIRECT_SIZE = 32, DIRECT_ROUNDS = 3, DIRECT_TYPES = 2, DIRECT_FORMS = 2 };
enum { DIRECT_PRODUCTS = DIRECT_ROUNDS * DIRECT_FORMS, DIRECT_NUMBERS = DIRECT_SIZE * DIRECT_SIZE };

static int expected_sum(int size, bool transposed, int row, int column)
{
    int sum = 0;
    for (int d = 0; d < size; ++d)
        sum += left_number(row, d) * (transposed ? right_number(column, d) : right_number(d, column));
    return sum;
}

static bool is_scaled(const float *product, int size, bool transposed, float scale)
{
    bool right = true;
    for (int row = 0; row < size; ++row)
        for (int column = 0; column < size; ++column)
            right &= product[row * size + column] == scale * (float)expected_sum(size, transposed, row, column);
    return right;
}

static bool is_product(const float *product, int size, bool transposed)
{
    return is_scaled(product, size, transposed, 1.0F);
}

/* `products`: of all forms, for each type. */
static bool are_products(const float *products, int types, int size, const bool *transposed, int forms)
{
    bool right = true;
    for (int n = 0; n < types * forms; ++n)
        right &= is_product(products + (ptrdiff_t)n * size * size, size, transposed[n % forms]);
    return right;
}

static bool are_right(const void *products)
{
    static const bool transposed[FORMS] = {true, false};
    return are_products(products, TYPES, SIZE, transposed, FORMS);
}

/* A in registers, twice, then in local memory, each by columns at a time of two widths. */
static bool are_right_of_group(const void *products)
{
    static const bool transposed[GROUP_FORMS] = {true, true, false, false, true, true};
    return are_products(products, GROUP_TYPES, GROUP_SIZE, transposed, GROUP_FORMS);
}

static bool are_right_of_tiles(const void *products)
{
    return is_product(products, TILE_SIZE, true);
}

/* The set of types of which a direct unit multiplies numbers wrongly. Kernels need f16's subnormal numbers. */
static uint32_t wrong_types_of(const float *products)
{
    static const struct {
        clmgk_dtype type;
        float small;
    } types[DIRECT_TYPES] = {{CLMGK_DTYPE_F16, SMALL_F16}, {CLMGK_DTYPE_BF16, SMALL_BF16}};
    uint32_t wrong = 0;
    for (int n = 0; n < DIRECT_TYPES * DIRECT_PRODUCTS; ++n) {
        const int type = n / DIRECT_PRODUCTS, round = n % DIRECT_PRODUCTS / DIRECT_FORMS;
        if (!is_scaled(products + (ptrdiff_t)n * DIRECT_NUMBERS, DIRECT_SIZE, n % DIRECT_FORMS == 0,
                       round > 0 ? types[type].small : 1.0F))
            wrong |= 1U << types[type].type;
    }
    return wrong;
}

/* At least one type is right. */
static bool are_right_of_direct(const void *products)
{
    return wrong_types_of(products) != (1U << CLMGK_DTYPE_F16 | 1U << CLMGK_DTYPE_BF16);
}

#define DIRECT_UNIT(unit, its_name, its_maker, its_models, its_lanes, ...)                                             \
    [unit] = {.name = (its_name),                                                                                      \
              .engine = "matrix",                                                                                      \
              .maker = MGK_GPU_##its_maker,                                                                            \
              .models = (its_models),                                                                                  \
              .lanes = (its_lanes),                                                                                    \
              .options = " " MGK_UNTRIED_UNIT,                                                                         \
              .probe = {.file = "engine/direct_probe.cl",                                                              \
                        .kernel = "direct_probe",                                                                      \
                        .items = (its_lanes),                                                                          \
                        .group = (its_lanes),                                                                          \
                        .bytes = sizeof(float) * DIRECT_TYPES * DIRECT_PRODUCTS * DIRECT_NUMBERS,                      \
                        .is_right = are_right_of_direct}},

#define TILE_OPTIONS " -DWIDE_VECTORS=1 -DONE_SPACE=1"
#define TILE_PROBE                                                                                                     \
    {                                                                                                                  \
        .file = "engine/tile_probe.cl", .kernel = "tile_probe", .items = 1, .group = 1,                                \
        .bytes = sizeof(float) * TILE_SIZE * TILE_SIZE, .is_right = are_right_of_tiles                                 \
    }

/* Units by their numbers. */
static const struct {
    const char *name, *engine; /* engine: the one that uses it */
    int older;                 /* unit of the same engine and maker; 0: none */
    int least, most;           /* compute capability of NVIDIA's devices that have it */
    bool amx;                  /* of x86 CPUs: needs a permission */
    mgk_gpu maker;             /* direct units: the devices (engine/units.clh); 0: others */
    const char *models;
    int lanes;
    const char *options;
    mgk_probe probe;
} units[MGK_MATRIX_UNITS] = {
    MATRIX_DIRECT_UNITS(DIRECT_UNIT)[MATRIX_MMA] = {.name = "mma.sync",
                                                    .engine = "matrix",
                                                    .least = 80,
                                                    .most = 1000,
                                                    .options = "",
                                                    .probe = {.file = "engine/unit_probe.cl",
                                                              .kernel = "unit_probe",
                                                              .items = WARP_SIZE,
                                                              .group = WARP_SIZE,
                                                              .bytes = sizeof(float) * TYPES * FORMS * SIZE * SIZE,
                                                              .is_right = are_right}},
    [MATRIX_WGMMA] = {.name = "wgmma",
                      .engine = "matrix",
                      .older = MATRIX_MMA,
                      .least = 90,
                      .most = 90,
                      .options = " " MGK_EDITED_PTX,
                      .probe = {.file = "engine/group_probe.cl",
                                .kernel = "group_probe",
                                .items = GROUP_ITEMS,
                                .group = GROUP_ITEMS,
                                .bytes = sizeof(float) * GROUP_TYPES * GROUP_FORMS * GROUP_SIZE * GROUP_SIZE,
                                .is_right = are_right_of_group}},
    [MATRIX_AMX] = {.name = "amx", .engine = "lane", .amx = true, .options = TILE_OPTIONS, .probe = TILE_PROBE},
    [MATRIX_AMX_F16] = {.name = "amx-fp16",
                        .engine = "lane",
                        .older = MATRIX_AMX,
                        .amx = true,
                        .options = TILE_OPTIONS,
                        .probe = TILE_PROBE}};

#define SIZES_OF(unit, its_name, its_maker, its_models, ...) [unit] = {__VA_ARGS__},
static const mgk_unit_sizes sizes[MGK_MATRIX_UNITS] = {MATRIX_ENGINE_UNITS(SIZES_OF)};

bool mgk_matrix_unit_is_direct(int unit)
{
    return units[unit].maker != MGK_GPU_OTHER;
}

const mgk_unit_sizes *mgk_matrix_unit_sizes(int unit)
{
    return &sizes[unit];
}

/* True if the text begins with one of the words. */
static bool begins_with_one_of(const char *text, const char *words)
{
    bool begins = false;
    while (*words != '\0' && !begins) {
        const size_t length = strcspn(words, " ");
        begins = strncmp(text, words, length) == 0;
        words += length + strspn(words + length, " ");
    }
    return begins;
}

/* Makers name processors in the same way for all drivers that have the units' instructions. */
static bool has_direct_unit(const mgk_device_facts *facts, int unit)
{
    if (mgk_gpu_of(facts) != units[unit].maker)
        return false;
    return units[unit].maker == MGK_GPU_INTEL ? facts->intel_matrix_mad && facts->least_sub_group == units[unit].lanes
                                              : begins_with_one_of(facts->info.architecture, units[unit].models);
}

static bool has_unit(const mgk_device_facts *facts, int unit)
{
    if (mgk_matrix_unit_is_direct(unit))
        return has_direct_unit(facts, unit);
    const int capability = facts->runtime == MGK_RUNTIME_NVIDIA ? mgk_nvidia_capability(facts) : 0;
    const bool has_tiles = unit == MATRIX_AMX_F16 ? facts->x86_amx_f16 : facts->x86_amx || facts->x86_dots;
    return units[unit].amx ? has_tiles && facts->x86_avx512dq && facts->runtime == MGK_RUNTIME_POCL
                           : capability >= units[unit].least && capability <= units[unit].most;
}

int mgk_matrix_unit_older(int unit)
{
    return units[unit].older;
}

bool mgk_matrix_unit_includes(int newest, int unit)
{
    int one = newest;
    while (one != unit && one != 0)
        one = units[one].older;
    return one == unit;
}

bool mgk_matrix_unit_allows(const mgk_device_facts *facts, int unit)
{
    const mgk_matrix_unit *const found = &facts->matrix_unit;
    return mgk_matrix_unit_includes(found->unit, unit) && !(found->alone && unit != 0 && unit != found->unit);
}

/* AMX's unit has two names. */
#define DOTS_NAME "avx512-bf16"

/* The unit of this name; 0: there is none. */
static int unit_named(const char *name)
{
    int unit = MGK_MATRIX_UNITS - 1;
    while (unit > 0 && strcmp(name, units[unit].name) != 0)
        --unit;
    return unit == 0 && strcmp(name, DOTS_NAME) == 0 ? MATRIX_AMX : unit;
}

clmgk_status mgk_matrix_unit_read_allowed(const char *value, int *allowed, clmgk_error *error)
{
    *allowed = 0;
    if (value == NULL || value[0] == '\0')
        return CLMGK_OK;
    *allowed = strcmp(value, "none") == 0 ? MGK_NO_UNIT : unit_named(value);
    if (*allowed != 0)
        return CLMGK_OK;
    char names[256] = "";
    for (int unit = 1; unit < MGK_MATRIX_UNITS; ++unit)
        mgk_add_reason(names, sizeof(names), NULL, units[unit].name);
    return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "CLMGK_UNIT: \"%s\": expected none or the name of a unit: %s",
                    value, names);
}

int mgk_matrix_unit_of(const mgk_device_facts *facts, int newest)
{
    int unit = newest;
    while (unit != 0 && !has_unit(facts, unit))
        unit = units[unit].older;
    return unit;
}

bool mgk_matrix_unit_has_dots(const mgk_device_facts *facts, int unit)
{
    return units[unit].amx && facts->x86_dots && !facts->x86_amx;
}

const char *mgk_matrix_unit_name(const mgk_device_facts *facts, int unit)
{
    return mgk_matrix_unit_has_dots(facts, unit) ? DOTS_NAME : unit > 0 ? units[unit].name : "";
}

const char *mgk_matrix_unit_probe(const mgk_device_facts *facts, int unit, char *options, size_t size)
{
    const int used = snprintf(options, size, "-cl-std=CL1.2 -DENGINE=%s -DMATRIX_UNIT=%d%s%s", units[unit].engine, unit,
                              mgk_matrix_unit_has_dots(facts, unit) ? " -DDOT_PRODUCTS=1" : "", units[unit].options);
    if (units[unit].maker == MGK_GPU_INTEL)
        (void)snprintf(options + used, size - (size_t)used, " -DLEAST_SUB_GROUP=%d", facts->least_sub_group);
    return units[unit].probe.file;
}

/* Asks for the permission: without it, the unit's instructions would end the process. */
static clmgk_status permit(const clmgk_context *context, int unit, clmgk_error *error)
{
    if (!units[unit].amx)
        return CLMGK_OK;
    if (context->no_amx)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "switched off by the options or CLMGK_AMX");
    return mgk_matrix_unit_has_dots(&context->facts, unit) ? CLMGK_OK : mgk_permit_tiles(error);
}

/* Notes the types of which a direct unit multiplies numbers wrongly. */
static void judge_types(const clmgk_context *context, mgk_matrix_unit *found, const void *products)
{
    if (!mgk_matrix_unit_is_direct(found->unit))
        return;
    found->wrong_types = wrong_types_of(products);
    for (int type = 0; type < (int)sizeof(found->wrong_types) * CHAR_BIT; ++type)
        if ((found->wrong_types >> type & 1U) != 0) {
            char why[64];
            (void)snprintf(why, sizeof(why), "it gives wrong products of %s here", clmgk_dtype_name((clmgk_dtype)type));
            mgk_add_reason(found->why, sizeof(found->why), mgk_matrix_unit_name(&context->facts, found->unit), why);
        }
}

static mgk_matrix_unit run_probe(clmgk_context *context, int unit)
{
    mgk_matrix_unit found = {.known = true};
    const mgk_probe *const probe = &units[unit].probe;
    char options[MGK_UNIT_OPTIONS];
    clmgk_error reason = {.message = "no memory"};
    void *const products = mgk_alloc(&context->allocator, probe->bytes, 1);
    (void)mgk_matrix_unit_probe(&context->facts, unit, options, sizeof(options));
    if (products != NULL && permit(context, unit, &reason) == CLMGK_OK &&
        mgk_probe_run(context, probe, options, products, &reason) == CLMGK_OK) {
        found.unit = unit;
        judge_types(context, &found, products);
    } else
        mgk_add_reason(found.why, sizeof(found.why), mgk_matrix_unit_name(&context->facts, unit), reason.message);
    mgk_free(&context->allocator, products);
    return found;
}

/* Facts of one unit. */
static mgk_matrix_unit ask(clmgk_context *context, int unit)
{
    mgk_matrix_unit found;
    mgk_monitor_copy(&context->monitor, &found, &context->matrix_unit[unit], sizeof(found));
    if (!found.known) {
        found = run_probe(context, unit); /* builds programs, which takes the mutex; threads at the same time find the
                                             same */
        mgk_monitor_copy(&context->monitor, &context->matrix_unit[unit], &found, sizeof(found));
    }
    return found;
}

/* A unit counts only if the older ones are right, too: engines take an older one for some problems. */
mgk_matrix_unit mgk_context_matrix_unit(clmgk_context *context, int newest)
{
    const int allowed = context->allowed_unit;
    mgk_matrix_unit best = {.known = true};
    int chain[MGK_MATRIX_UNITS], count = 0;
    for (int unit = newest; unit != 0; unit = units[unit].older)
        if (has_unit(&context->facts, unit) && (allowed == 0 || allowed == unit))
            chain[count++] = unit;
    while (count > 0 && best.why[0] == '\0') {
        const mgk_matrix_unit own = ask(context, chain[--count]);
        if (own.unit != 0)
            best = own;
        else
            mgk_add_reason(best.why, sizeof(best.why), NULL, own.why);
    }
    best.alone = allowed != 0;
    for (int unit = newest; unit != 0; unit = units[unit].older)
        if (has_unit(&context->facts, unit) && allowed != 0 && allowed != unit)
            mgk_add_reason(best.why, sizeof(best.why), mgk_matrix_unit_name(&context->facts, unit),
                           "switched off by CLMGK_UNIT");
    return best;
}

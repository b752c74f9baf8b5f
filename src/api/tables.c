/* SPDX-License-Identifier: Apache-2.0 */
#include "api/tables.h"

#include "attention/core/attention.h"
#include "gemm/gemm.h"

#include <string.h>

static const clmgk_variant variants[] = {
#define VARIANT(name, value, ...) CLMGK_VARIANT_##name,
    CLMGK_VARIANT_LIST(VARIANT)
#undef VARIANT
};

/* ---- tables ---------------------------------------------------------------------------------------------------- */

/* True if the variant is the first whose family adds these parameters. */
static bool is_first(size_t variant, const mgk_added_tunables *added)
{
    size_t first = 0;
    while (mgk_family_of(variants[first])->added != added)
        ++first;
    return first == variant;
}

/* Stores the parameters of table `index` in `shown`. Order of the tables: engines, engines with the parameters of a
 * family, products. False past the last. */
static bool table_at(size_t index, mgk_tunables *shown)
{
    if (index < MGK_ENGINES) {
        *shown = mgk_engine_tunables(mgk_engines[index], NULL);
        return true;
    }
    index -= MGK_ENGINES;
    for (size_t i = 0; i < MGK_COUNT(variants); ++i) {
        const mgk_added_tunables *const added = mgk_family_of(variants[i])->added;
        if (added == NULL || !is_first(i, added))
            continue;
        if (index < MGK_ENGINES) {
            *shown = mgk_engine_tunables(mgk_engines[index], added);
            return true;
        }
        index -= MGK_ENGINES;
    }
    if (index <= MGK_CLBLAST_TABLES)
        *shown = mgk_tunables_of(index == 0 ? mgk_gemm_fragments_table : mgk_clblast_tables[index - 1]);
    return index <= MGK_CLBLAST_TABLES;
}

static bool find_table(const char *name, mgk_tunables *found)
{
    bool is_one = name != NULL;
    for (size_t i = 0; is_one && (is_one = table_at(i, found)) && strcmp(found->name, name) != 0;)
        ++i;
    return is_one;
}

static clmgk_status need_table(const char *name, mgk_tunables *found, clmgk_error *error)
{
    if (name == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "table: NULL: expected a table's name");
    if (!find_table(name, found))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "table: \"%s\": expected one of clmgk_tunable_table", name);
    return CLMGK_OK;
}

const char *clmgk_tunable_table(size_t index)
{
    mgk_tunables shown;
    return table_at(index, &shown) ? shown.name : NULL;
}

const char *clmgk_tunable_table_of(clmgk_variant variant, clmgk_engine engine)
{
    const mgk_family *const family = mgk_family_of(variant);
    const mgk_engine *const found = mgk_engine_of(engine);
    return family != NULL && found != NULL ? mgk_engine_tunables(found, family->added).name : NULL;
}

clmgk_status clmgk_tunable_list(const char *table, clmgk_tunable *tunables, size_t capacity, size_t *count,
                                clmgk_error *error)
{
    mgk_tunables found;
    if (count == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "count: NULL: expected room for the number");
    if (capacity > 0)
        MGK_TRY(mgk_struct_room(tunables, "tunables", MGK_SIZE_WITH(clmgk_tunable, gpu_default), error));
    MGK_TRY(need_table(table, &found, error));
    *count = 0;
    for (size_t i = 0; i < mgk_tunables_count(&found); ++i) {
        if (mgk_tunable_is_unused(&found, i))
            continue;
        if (*count < capacity)
            mgk_struct_write(tunables, *count, &mgk_tunables_at(&found, i)->shown, sizeof(clmgk_tunable));
        ++*count;
    }
    return CLMGK_OK;
}

const char *clmgk_tunable_constraint(const char *table, size_t index)
{
    mgk_tunables found;
    return find_table(table, &found) && index < found.table->constraint_count ? found.table->constraints[index] : NULL;
}

clmgk_status clmgk_tunable_check(const char *table, const char *parameters, clmgk_error *error)
{
    mgk_tunables tunables;
    const mgk_parameters read = {.text = parameters, .origin = MGK_ORIGIN_CALLER};
    if (parameters == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "parameters: NULL: expected \"name=value,...\"");
    MGK_TRY(need_table(table, &tunables, error));
    MGK_TRY(mgk_tunables_read(&tunables, &read, error));
    for (size_t i = 0; i < mgk_tunables_count(&tunables); ++i)
        if (tunables.origin[i] == MGK_ORIGIN_DEFAULT && !mgk_tunable_is_unused(&tunables, i))
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "parameters: \"%s\": expected all of table \"%s\": %s",
                            parameters, table, mgk_tunables_at(&tunables, i)->shown.name);
    return mgk_tunables_check(&tunables, tunables.added == NULL || tunables.added->unused == NULL, error);
}

/* ---- measured values -------------------------------------------------------------------------------------------- */

#define ENGINE_WORD(name, value, word) " " #word

/* Accepts parameters of any family on the engine: an entry's family is not checked. */
static clmgk_status check_engine(const char *choice, const char *parameters, clmgk_error *error)
{
    const mgk_engine *const engine = mgk_engine_named(choice);
    const mgk_parameters read = {.text = parameters, .origin = MGK_ORIGIN_TUNED};
    if (engine == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "choice: \"%s\": expected an engine:" CLMGK_ENGINE_LIST(ENGINE_WORD), choice);
    clmgk_error failure; /* of the last family */
    clmgk_status status = CLMGK_ERROR_INVALID_VALUE;
    for (size_t i = 0; status != CLMGK_OK && i < MGK_COUNT(variants); ++i) {
        mgk_tunables tunables = mgk_engine_tunables(engine, mgk_family_of(variants[i])->added);
        status = mgk_tunables_read(&tunables, &read, &failure);
        if (status == CLMGK_OK)
            status = mgk_tunables_check(&tunables, false, &failure);
    }
    return status == CLMGK_OK ? CLMGK_OK : mgk_fail(error, status, "%s", failure.message);
}

static const struct {
    const char *operation;
    clmgk_status (*check)(const char *choice, const char *parameters, clmgk_error *error);
} operations[] = {
    {"forward", check_engine},
    {"backward", check_engine},
    {"gemm", mgk_gemm_check_tuned},
    {"clblast", mgk_gemm_check_tuned},
};

clmgk_status mgk_tuning_check(const char *operation, const char *choice, const char *parameters, clmgk_error *error)
{
    for (size_t i = 0; i < MGK_COUNT(operations); ++i)
        if (strcmp(operations[i].operation, operation) == 0)
            return operations[i].check(choice, parameters, error);
    return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "operation: \"%s\": expected forward, backward, gemm or clblast",
                    operation);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* CLBlast's parameters: their tables, and the process's values, the library's only mutable global state, a mirror of
 * CLBlast's own. */
#include "gemm/clblast_tunables.h"
#include "gemm/gemm.h"

MGK_TUNABLE_TABLE(xgemm, "clblast-xgemm", MGK_CLBLAST_XGEMM_TUNABLES, MGK_CLBLAST_XGEMM_CONSTRAINTS);
MGK_TUNABLE_TABLE(direct, "clblast-xgemmdirect", MGK_CLBLAST_XGEMMDIRECT_TUNABLES, MGK_CLBLAST_XGEMMDIRECT_CONSTRAINTS);
MGK_TUNABLE_TABLE(routine, "clblast-routine", MGK_CLBLAST_ROUTINE_TUNABLES, MGK_CLBLAST_ROUTINE_CONSTRAINTS);

const mgk_tunable_table *const mgk_clblast_tables[MGK_CLBLAST_TABLES] = {&xgemm_table, &direct_table, &routine_table};

#if CLMGK_CLBLAST
#include "gemm/clblast_parameters.h"

#include <stdio.h>
#include <string.h>

/* CLBlast's kernels, in the order of our tables. */
static const char *const kernels[MGK_CLBLAST_TABLES] = {"Xgemm", "XgemmDirect", "GemmRoutine"};

/* ---- reading -------------------------------------------------------------------------------------------------- */

static bool has_name(const mgk_tunable_table *table, const char *name, size_t length)
{
    for (size_t i = 0; i < table->count; ++i)
        if (strlen(table->tunables[i].shown.name) == length && memcmp(table->tunables[i].shown.name, name, length) == 0)
            return true;
    return false;
}

/* Collects the items of `text` that belong to the table. Returns their length, to detect items of no table. */
static size_t pick_items(const mgk_tunable_table *table, const char *text, mgk_text *items)
{
    size_t picked = 0;
    while (*text != '\0') {
        const size_t length = strcspn(text, ",");
        if (has_name(table, text, strcspn(text, "=,"))) {
            mgk_text_printf(items, "%s%.*s", items->length > 0 ? "," : "", (int)length, text);
            ++picked;
        }
        text += length + (text[length] == ',' ? 1 : 0);
    }
    return picked;
}

static size_t count_items(const char *text)
{
    size_t count = *text != '\0' ? 1 : 0;
    for (const char *c = text; *c != '\0'; ++c)
        count += *c == ',' && c[1] != '\0' ? 1 : 0;
    return count;
}

static clmgk_status read_table(const mgk_tunable_table *table, const char *items, mgk_tunables *tunables,
                               clmgk_error *error)
{
    const mgk_parameters parameters = {.text = items, .origin = MGK_ORIGIN_CALLER};
    *tunables = mgk_tunables_of(table);
    MGK_TRY(mgk_tunables_read(tunables, &parameters, error));
    for (size_t i = 0; i < table->count; ++i)
        if (tunables->origin[i] == MGK_ORIGIN_DEFAULT)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "parameters: no %s: expected all of table %s or none",
                            table->tunables[i].shown.name, table->name);
    return mgk_tunables_check(tunables, true, error);
}

clmgk_status mgk_clblast_read(const char *text, mgk_clblast_values *values, clmgk_error *error)
{
    size_t picked = 0;
    for (size_t i = 0; i < MGK_CLBLAST_TABLES; ++i) {
        const mgk_tunable_table *const table = mgk_clblast_tables[i];
        mgk_text items = {0};
        const size_t count = pick_items(table, text, &items);
        clmgk_status status = CLMGK_OK;
        values->tunables[i] = mgk_tunables_of(table);
        values->given[i] = count > 0;
        picked += count;
        if (items.failed)
            status = mgk_fail_memory(error, "CLBlast's parameters");
        else if (count > 0)
            status = read_table(table, items.data, &values->tunables[i], error);
        mgk_text_free(&items);
        MGK_TRY(status);
    }
    if (picked != count_items(text))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "parameters: \"%s\": expected \"name=value,...\" of CLBlast's tables", text);
    return CLMGK_OK;
}

/* ---- settings ------------------------------------------------------------------------------------------------- */

/* Values set for a device and precision. */
typedef struct setting {
    cl_device_id device;
    CLBlastPrecision precision;
    bool given[MGK_CLBLAST_TABLES];
    int32_t value[MGK_CLBLAST_TABLES][MGK_MAX_TUNABLES];
} setting;

enum { MAX_SETTINGS = 64 };

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER; /* guards `settings`; held shared in CLBlast's calls */
static pthread_mutex_t compiling = PTHREAD_MUTEX_INITIALIZER;
static setting settings[MAX_SETTINGS];
static size_t setting_count;

/* NULL: nothing set so far. */
static setting *find_setting(cl_device_id device, CLBlastPrecision precision)
{
    for (size_t i = 0; i < setting_count; ++i)
        if (settings[i].device == device && settings[i].precision == precision)
            return &settings[i];
    return NULL;
}

static bool is_set(const setting *set, const mgk_clblast_values *values, size_t table)
{
    return set != NULL && set->given[table] &&
           memcmp(set->value[table], values->tunables[table].value, sizeof(set->value[table])) == 0;
}

static bool is_foreign(const setting *set, const mgk_clblast_values *values)
{
    for (size_t i = 0; i < MGK_CLBLAST_TABLES; ++i)
        if (set != NULL && set->given[i] && !values->given[i])
            return true;
    return false;
}

static bool is_in_force(const setting *set, const mgk_clblast_values *values)
{
    for (size_t i = 0; i < MGK_CLBLAST_TABLES; ++i)
        if (values->given[i] && !is_set(set, values, i))
            return false;
    return true;
}

static clmgk_status set_table(const mgk_clblast *blas, setting *set, const mgk_clblast_values *values, size_t table,
                              clmgk_error *error)
{
    const mgk_tunables *const tunables = &values->tunables[table];
    const char *names[MGK_MAX_TUNABLES];
    size_t numbers[MGK_MAX_TUNABLES];
    for (size_t i = 0; i < tunables->table->count; ++i) {
        names[i] = tunables->table->tunables[i].shown.name;
        numbers[i] = (size_t)tunables->value[i];
    }
    set->given[table] = false;
    const CLBlastStatusCode code =
        blas->OverrideParameters(set->device, kernels[table], set->precision, tunables->table->count, names, numbers);
    if (code != CLBlastSuccess)
        return mgk_clblast_fail(code, "CLBlastOverrideParameters", error);
    set->given[table] = true;
    memcpy(set->value[table], tunables->value, sizeof(set->value[table]));
    return CLMGK_OK;
}

static clmgk_status set_values(const mgk_clblast *blas, cl_device_id device, CLBlastPrecision precision,
                               const mgk_clblast_values *values, clmgk_error *error)
{
    setting *set = find_setting(device, precision);
    if (set == NULL) {
        if (setting_count == MAX_SETTINGS)
            return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "CLBlast's parameters have been set for %d devices already",
                            MAX_SETTINGS);
        set = &settings[setting_count++];
        *set = (setting){.device = device, .precision = precision};
    }
    for (size_t i = 0; i < MGK_CLBLAST_TABLES; ++i)
        if (values->given[i] && !is_set(set, values, i))
            MGK_TRY(set_table(blas, set, values, i, error));
    return CLMGK_OK;
}

clmgk_status mgk_clblast_enter(const mgk_clblast *blas, cl_device_id device, CLBlastPrecision precision,
                               const mgk_clblast_values *values, bool *foreign, clmgk_error *error)
{
    clmgk_status status = CLMGK_OK;
    *foreign = false;
    pthread_rwlock_rdlock(&lock);
    const setting *const set = find_setting(device, precision);
    if (is_in_force(set, values) && !is_foreign(set, values))
        return CLMGK_OK;
    pthread_rwlock_unlock(&lock);

    pthread_rwlock_wrlock(&lock);
    if (!is_in_force(find_setting(device, precision), values))
        status = set_values(blas, device, precision, values, error);
    *foreign = is_foreign(find_setting(device, precision), values);
    if (status != CLMGK_OK)
        pthread_rwlock_unlock(&lock);
    return status;
}

void mgk_clblast_leave(void)
{
    pthread_rwlock_unlock(&lock);
}

void mgk_clblast_begin_compile(void)
{
    pthread_mutex_lock(&compiling);
}

void mgk_clblast_end_compile(void)
{
    pthread_mutex_unlock(&compiling);
}

/* ---- failures ------------------------------------------------------------------------------------------------- */

clmgk_status mgk_clblast_fail(CLBlastStatusCode code, const char *call, clmgk_error *error)
{
    switch (code) {
    case CLBlastOpenCLBuildProgramFailure:
        return mgk_fail_code(error, CLMGK_ERROR_COMPILE, code, "%s: CLBlast's kernels did not compile", call);
    case CLBlastInvalidLocalMemUsage:
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "%s: CLBlast's kernels need more local memory than the device has", call);
    case CLBlastInvalidLocalThreadsTotal:
    case CLBlastInvalidLocalThreadsDim:
    case CLBlastInvalidLocalNumDimensions:
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "%s: CLBlast's kernels need larger work-groups than the device has", call);
    case CLBlastNoHalfPrecision:
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "%s: the device has no cl_khr_fp16", call);
    case CLBlastDatabaseError:
    case CLBlastInvalidOverrideKernel:
    case CLBlastMissingOverrideParameter:
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "%s: CLBlast status %d: this version has other parameters than the tables", call, (int)code);
    case CLBlastInvalidMatrixA: /* CLBlast could not query the buffers, which were checked before */
    case CLBlastInvalidMatrixB:
    case CLBlastInvalidMatrixC:
    case CLBlastUnknownError:
    case CLBlastUnexpectedError: /* failed OpenCL calls in its destructors, and C++ exceptions */
        return mgk_fail(error, CLMGK_ERROR_OPENCL, "%s: CLBlast status %d: an unexpected failure", call, (int)code);
    default:
        if (code < 0 && code > -100)
            return mgk_fail_cl(error, (cl_int)code, call);
        return mgk_fail(error, CLMGK_ERROR_INTERNAL, "%s: CLBlast status %d", call, (int)code);
    }
}
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Names and texts of the public enumerations, and the version. */
#include "base/base.h"
#include "clmgk/variants.h"
#include "clmgk/version.h"

typedef struct status_row {
    clmgk_status status;
    const char *name;
    const char *text;
} status_row;

static const status_row *find_status(clmgk_status status)
{
    static const status_row rows[] = {
#define ROW(name, value, text) {CLMGK_##name, #name, text},
        CLMGK_STATUS_LIST(ROW)};
    for (size_t i = 0; i < MGK_COUNT(rows); ++i)
        if (rows[i].status == status)
            return &rows[i];
    return NULL;
}

const char *clmgk_status_name(clmgk_status status)
{
    const status_row *const row = find_status(status);
    return row != NULL ? row->name : "unknown";
}

const char *clmgk_status_text(clmgk_status status)
{
    const status_row *const row = find_status(status);
    return row != NULL ? row->text : "unknown status";
}

static const struct {
    const char *name;
    uint32_t traits;
} variants[] = {
#define VARIANT(name, value, text, family, traits) [CLMGK_VARIANT_##name] = {text, traits},
    CLMGK_VARIANT_LIST(VARIANT)};

const char *clmgk_variant_name(clmgk_variant variant)
{
    return (unsigned)variant < MGK_COUNT(variants) ? variants[variant].name : NULL;
}

uint32_t clmgk_variant_traits(clmgk_variant variant)
{
    return (unsigned)variant < MGK_COUNT(variants) ? variants[variant].traits : 0;
}

const char *clmgk_dtype_name(clmgk_dtype dtype)
{
    static const char *const names[] = {
        [CLMGK_DTYPE_F32] = "f32", [CLMGK_DTYPE_F16] = "f16", [CLMGK_DTYPE_BF16] = "bf16"};
    return (unsigned)dtype < MGK_COUNT(names) ? names[dtype] : NULL;
}

const char *clmgk_engine_name(clmgk_engine engine)
{
#define ENGINE(NAME, value, name) [CLMGK_ENGINE_##NAME] = #name,
    static const char *const names[] = {[CLMGK_ENGINE_AUTO] = "auto", CLMGK_ENGINE_LIST(ENGINE)};
    return (unsigned)engine < MGK_COUNT(names) ? names[engine] : NULL;
}

const char *clmgk_program_keeper_name(clmgk_program_keeper keeper)
{
    static const char *const names[] = {
        [CLMGK_KEEPER_NOBODY] = "nobody", [CLMGK_KEEPER_LIBRARY] = "library", [CLMGK_KEEPER_DRIVER] = "driver"};
    return (unsigned)keeper < MGK_COUNT(names) ? names[keeper] : NULL;
}

const char *clmgk_program_origin_name(clmgk_program_origin origin)
{
    static const char *const names[] = {[CLMGK_PROGRAM_MEMORY] = "memory",
                                        [CLMGK_PROGRAM_SHIPPED] = "shipped",
                                        [CLMGK_PROGRAM_DISK] = "disk",
                                        [CLMGK_PROGRAM_BUILT] = "built"};
    return (unsigned)origin < MGK_COUNT(names) ? names[origin] : NULL;
}

const char *clmgk_version(void)
{
    return CLMGK_VERSION;
}

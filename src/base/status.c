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
        CLMGK_STATUS_LIST(ROW)
#undef ROW
    };
    for (size_t i = 0; i < MGK_COUNT(rows); ++i) {
        if (rows[i].status == status)
            return &rows[i];
    }
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

const char *clmgk_variant_name(clmgk_variant variant)
{
    switch (variant) {
#define NAME(name, value, text, ...)                                                                                   \
    case CLMGK_VARIANT_##name:                                                                                         \
        return text;
        CLMGK_VARIANT_LIST(NAME)
#undef NAME
    default:
        return NULL;
    }
}

uint32_t clmgk_variant_traits(clmgk_variant variant)
{
    switch (variant) {
#define TRAITS(name, value, text, family, traits)                                                                      \
    case CLMGK_VARIANT_##name:                                                                                         \
        return traits;
        CLMGK_VARIANT_LIST(TRAITS)
#undef TRAITS
    default:
        return 0;
    }
}

const char *clmgk_dtype_name(clmgk_dtype dtype)
{
    switch (dtype) {
    case CLMGK_DTYPE_F32:
        return "f32";
    case CLMGK_DTYPE_F16:
        return "f16";
    case CLMGK_DTYPE_BF16:
        return "bf16";
    default:
        return NULL;
    }
}

const char *clmgk_engine_name(clmgk_engine engine)
{
    switch (engine) {
    case CLMGK_ENGINE_AUTO:
        return "auto";
#define ENGINE_CASE(NAME, value, name)                                                                                 \
    case CLMGK_ENGINE_##NAME:                                                                                          \
        return #name;
        CLMGK_ENGINE_LIST(ENGINE_CASE)
#undef ENGINE_CASE
    default:
        return NULL;
    }
}

const char *clmgk_program_keeper_name(clmgk_program_keeper keeper)
{
    switch (keeper) {
    case CLMGK_KEEPER_NOBODY:
        return "nobody";
    case CLMGK_KEEPER_LIBRARY:
        return "library";
    case CLMGK_KEEPER_DRIVER:
        return "driver";
    default:
        return NULL;
    }
}

const char *clmgk_version(void)
{
    return CLMGK_VERSION;
}

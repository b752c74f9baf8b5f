/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of kernel parameters. What each does is told where it has its default, in cl/engine_*.clh. */
#include "tuning/tunables.h"

#include <stdlib.h>
#include <string.h>

static const mgk_tunable lane_table[] = {
    {"lanes", "LANES", {8, 16}, "lanes of a vector"},
    {"vectors", "ROW_VECTORS", {1, 2, 4}, "vectors of query rows in a panel"},
    {"panels", "PANELS", {1, 2, 4, 8}, "panels of rows that share a copied tile of keys"},
    {"tile", "TILE_KEYS", {16, 32, 64, 128}, "keys of a tile"},
    {"block", "BLOCK_KEYS", {4, 8, 16}, "keys or features of a register block"},
    {"unroll", "UNROLL_PRODUCT", {1, 2, 4, 8}, "unrolling of the product loops"},
    {"splits", NULL, {1, 2, 4, 8, 16, 32, 64, 128}, "ranges of keys that work-groups share out"},
};

static const mgk_tunable simt_table[] = {
    {"row-threads", "THREADS_ROW", {1, 2, 4, 8, 16, 32}, "work-items along the rows"},
    {"key-threads", "THREADS_KEY", {2, 4, 8, 16}, "work-items that share a row"},
    {"rows", "ROWS_PER_THREAD", {1, 2, 4, 8}, "rows of a work-item"},
    {"keys", "KEYS_PER_THREAD", {1, 2, 4, 8}, "keys of a work-item"},
    {"features", "FEATURE_CHUNK", {4, 8, 16}, "features staged at a time"},
    {"values", "VALUE_CHUNK", {2, 4, 8, 16}, "keys of values staged at a time"},
    {"splits", NULL, {1, 2, 4, 8, 16, 32, 64, 128}, "ranges of keys that work-groups share out"},
};

mgk_tunables mgk_tunables_of(clmgk_engine engine)
{
    mgk_tunables tunables = {0};
    tunables.table = engine == CLMGK_ENGINE_LANE ? lane_table : simt_table;
    tunables.count = engine == CLMGK_ENGINE_LANE ? MGK_COUNT(lane_table) : MGK_COUNT(simt_table);
    return tunables;
}

size_t mgk_tunable_index(const mgk_tunables *tunables, const char *name)
{
    size_t i = 0;
    while (i + 1 < tunables->count && strcmp(tunables->table[i].name, name) != 0)
        ++i;
    return i;
}

int mgk_tunable_get(const mgk_tunables *tunables, const char *name)
{
    return tunables->value[mgk_tunable_index(tunables, name)];
}

void mgk_tunable_default(mgk_tunables *tunables, const char *name, int value)
{
    const size_t i = mgk_tunable_index(tunables, name);
    if (!tunables->fixed[i])
        tunables->value[i] = value;
}

static bool allowed(const mgk_tunable *tunable, long value)
{
    for (size_t i = 0; i < MGK_COUNT(tunable->values) && tunable->values[i] != 0; ++i)
        if (tunable->values[i] == value)
            return true;
    return false;
}

/* "8, 16" */
static void list_values(const mgk_tunable *tunable, char *out, size_t size)
{
    mgk_text text = {0};
    for (size_t i = 0; i < MGK_COUNT(tunable->values) && tunable->values[i] != 0; ++i)
        mgk_text_printf(&text, "%s%d", i == 0 ? "" : ", ", tunable->values[i]);
    const size_t length = text.length < size ? text.length : size - 1;
    if (text.data != NULL)
        memcpy(out, text.data, length);
    out[text.data != NULL ? length : 0] = '\0';
    mgk_text_free(&text);
}

/* Reads the "name=value" of `length` characters at `item`. */
static clmgk_status read_item(mgk_tunables *tunables, const char *item, size_t length, clmgk_error *error)
{
    const char *const equals = memchr(item, '=', length);
    for (size_t i = 0; equals != NULL && i < tunables->count; ++i) {
        const mgk_tunable *const tunable = &tunables->table[i];
        const size_t name_length = (size_t)(equals - item);
        if (strlen(tunable->name) != name_length || memcmp(tunable->name, item, name_length) != 0)
            continue;
        char *end = NULL;
        const long value = strtol(equals + 1, &end, 10);
        if (end != item + length || end == equals + 1 || !allowed(tunable, value)) {
            char values[128];
            list_values(tunable, values, sizeof(values));
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "parameters: \"%.*s\": expected one of %s", (int)length,
                            item, values);
        }
        tunables->value[i] = (int)value;
        tunables->fixed[i] = true;
        return CLMGK_OK;
    }
    return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "parameters: \"%.*s\": expected name=value of this engine",
                    (int)length, item);
}

clmgk_status mgk_tunables_read(mgk_tunables *tunables, const char *text, clmgk_error *error)
{
    while (text != NULL && *text != '\0') {
        const size_t length = strcspn(text, ",");
        MGK_TRY(read_item(tunables, text, length, error));
        text += length + (text[length] == ',' ? 1 : 0);
    }
    return CLMGK_OK;
}

void mgk_tunables_options(const mgk_tunables *tunables, mgk_text *text)
{
    for (size_t i = 0; i < tunables->count; ++i)
        if (tunables->table[i].macro != NULL)
            mgk_text_printf(text, " -D%s=%d", tunables->table[i].macro, tunables->value[i]);
}

void mgk_tunables_print(const mgk_tunables *tunables, mgk_text *text)
{
    for (size_t i = 0; i < tunables->count; ++i)
        mgk_text_printf(text, "%s%s=%d", i == 0 ? "" : ",", tunables->table[i].name, tunables->value[i]);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The measurements for a device, and the kernel parameters that can be measured. */
#include "info.h"
#include "tuned.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tool_exit info_get_tuning(const clmgk_device_info *info, info_tuning *tuning, tool_error *error)
{
    clmgk_tuning_entry *entries = NULL;
    size_t count = 0;
    *tuning = (info_tuning){0};
    TOOL_TRY(tool_list_tuned(info->device_id, &entries, &count, error));
    for (size_t i = 0; i < count; i++) {
        if (!entries[i].allowed)
            tuning->passed_over++;
        else if (entries[i].shipped)
            tuning->shipped++;
        else if (entries[i].source == CLMGK_TUNING_ARCHITECTURE)
            tuning->stale++;
        else
            tuning->current++;
    }
    free(entries);
    return TOOL_DONE;
}

bool info_is_tuned(const info_tuning *tuning)
{
    return tuning->current > 0 || tuning->stale > 0 || tuning->shipped > 0;
}

void info_print_tuning(const info_tuning *tuning)
{
    if (info_is_tuned(tuning))
        printf("tuned (measured here %" PRIu64 ", with another driver or on its kind %" PRIu64
               ", by the library's makers %" PRIu64 ")",
               tuning->current, tuning->stale, tuning->shipped);
    else
        printf("not tuned (default parameters)");
    if (tuning->passed_over > 0)
        printf("; %" PRIu64 " %s passed over: clmgk-tune --show says why", tuning->passed_over,
               tool_plural(tuning->passed_over, "entry", "entries"));
}

json_t *info_tuning_json(const info_tuning *tuning)
{
    return json_pack("{s:I, s:I, s:I, s:I}", "current", (json_int_t)tuning->current, "stale", (json_int_t)tuning->stale,
                     "shipped", (json_int_t)tuning->shipped, "passed_over", (json_int_t)tuning->passed_over);
}

void info_print_tuning_cache(const clmgk_tuning_info *cache)
{
    if (cache->path[0])
        printf("tuning cache: %s, %" PRIu64 " %s, %.1f KB\n", cache->path, cache->entries,
               tool_plural(cache->entries, "entry", "entries"), 1e-3 * (double)cache->bytes);
    else
        printf("tuning cache: no files are used\n");
    tool_print_passed_over(cache);
}

json_t *info_message_json(const char *message)
{
    return message[0] ? tool_json_text(message) : json_null();
}

json_t *info_tuning_cache_json(const clmgk_tuning_info *cache, const char *failure)
{
    return json_pack("{s:s?, s:I, s:I, s:I, s:o}", "path", cache->path[0] ? cache->path : NULL, "entries",
                     (json_int_t)cache->entries, "bytes", (json_int_t)cache->bytes, "damaged",
                     (json_int_t)cache->damaged, "message", info_message_json(failure[0] ? failure : cache->message));
}

enum { MAX_TUNABLES = 64 };

/* "name  1 2 4 8  default 4 (GPU 2)  what it is" */
static void print_tunable(const clmgk_tunable *tunable)
{
    printf("    %-12s ", tunable->name);
    for (size_t i = 0; i < tunable->value_count; i++)
        printf("%s%" PRId32, i ? " " : "", tunable->values[i]);
    if (tunable->cpu_default == 0 && tunable->gpu_default == 0 && tunable->values[0] != 0)
        printf("; default by device and shape");
    else if (tunable->cpu_default == tunable->gpu_default)
        printf("; default %" PRId32, tunable->cpu_default);
    else
        printf("; default %" PRId32 " on CPUs, %" PRId32 " on GPUs", tunable->cpu_default, tunable->gpu_default);
    printf(": %s\n", tunable->meaning);
}

static json_t *tunable_json(const clmgk_tunable *tunable)
{
    json_t *values = json_array();
    for (size_t i = 0; i < tunable->value_count; i++)
        tool_json_append(&values, json_integer(tunable->values[i]));
    return json_pack("{s:s, s:o, s:i, s:i, s:s}", "name", tunable->name, "values", values, "cpu_default",
                     (int)tunable->cpu_default, "gpu_default", (int)tunable->gpu_default, "meaning", tunable->meaning);
}

static json_t *table_json(const char *name, const clmgk_tunable *tunables, size_t count)
{
    json_t *list = json_array(), *constraints = json_array();
    for (size_t i = 0; i < count; i++)
        tool_json_append(&list, tunable_json(&tunables[i]));
    for (size_t i = 0; clmgk_tunable_constraint(name, i); i++)
        tool_json_append(&constraints, json_string(clmgk_tunable_constraint(name, i)));
    return json_pack("{s:s, s:o, s:o}", "name", name, "tunables", list, "constraints", constraints);
}

static void print_table(const char *name, const clmgk_tunable *tunables, size_t count)
{
    printf("%s\n", name);
    for (size_t i = 0; i < count; i++)
        print_tunable(&tunables[i]);
    for (size_t i = 0; clmgk_tunable_constraint(name, i); i++)
        printf("    constraint: %s\n", clmgk_tunable_constraint(name, i));
}

tool_exit info_show_tunables(bool json, tool_error *error)
{
    json_t *tables = json_array();
    const char *name = clmgk_tunable_table(0);
    for (size_t i = 0; name; name = clmgk_tunable_table(++i)) {
        clmgk_tunable tunables[MAX_TUNABLES] = {CLMGK_TUNABLE_INIT};
        size_t count = 0;
        const clmgk_status listed = clmgk_tunable_list(name, tunables, MAX_TUNABLES, &count, &error->library);
        if (listed != CLMGK_OK) {
            json_decref(tables);
            return tool_check_library(listed, error);
        }
        count = count < MAX_TUNABLES ? count : MAX_TUNABLES;
        if (json)
            tool_json_append(&tables, table_json(name, tunables, count));
        else
            print_table(name, tunables, count);
    }
    json_t *object = json_pack("{s:s, s:o}", "clmgk", clmgk_version(), "tables", tables);
    if (json)
        return tool_print_json(object, error);
    json_decref(object);
    return tool_flush_stdout(error);
}

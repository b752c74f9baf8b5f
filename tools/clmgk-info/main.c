/* SPDX-License-Identifier: Apache-2.0 */
#include "info.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPTION_SELFTEST = TOOL_STANDARD_OPTION_COUNT, OPTION_ENGINE, OPTION_CACHE_CLEAR, OPTION_TUNABLES, OPTION_COUNT };

static const tool_option options_table[OPTION_COUNT] = {
    TOOL_STANDARD_OPTIONS,
    {"selftest", NULL, "run a small problem of every variant and check it against double precision"},
    {"engine", "NAME", "with --selftest: " TOOL_ENGINE_NAMES "; auto: the device's default"},
    {"cache-clear", NULL, "only remove the compiled programs from the cache on disk"},
    {"tunables", NULL, "only list the kernel parameters with values, defaults, constraints and meaning"},
};

static const tool_program program = {
    .name = "clmgk-info",
    .summary = "Lists OpenCL devices, and the engine, tuning and caches that the library would use on each.",
    .notes =
        "Without --device all devices are listed, and the default one is marked with *. If CLMGK_DEVICE does not name\n"
        "one of them, they are listed too, and the exit status says so (3: it names none; 2: it names several).\n\n"
        "--json prints: clmgk (version), devices [{selector, default, platform, name, vendor, driver, class, engine,\n"
        "matrix_units (true, or null: none), programs_kept_by (driver, library, nobody), tuned, tuning {current,\n"
        "stale, shipped, passed_over: entries}, compute_units, clock_mhz, native_float_lanes, global_memory_bytes,\n"
        "local_memory_bytes, max_allocation_bytes, max_work_group, architecture, products [{provider, dtypes, reason\n"
        "(why not others)}], message (what failed; null: nothing; so below), engine_reason, matrix_unit\n"
        "(in use), matrix_unit_found, matrix_unit_reason (why it is not used), first_use, with --selftest selftest\n"
        "[{variant, engine, offered, ok, error, bound, message}]}], message, cache, tuning_cache and program_dir\n"
        "(programs made ahead), each {path, entries, bytes, message}, tuning_cache also damaged (lines). With\n"
        "--cache-clear: clmgk, removed {path, entries, bytes}. With --tunables: clmgk, tables [{name,\n"
        "tunables [{name, values, cpu_default, gpu_default, meaning}], constraints}].",
    .options = options_table,
    .option_count = OPTION_COUNT,
};

/* A device with what is told about it. */
typedef struct entry {
    clmgk_device_info info;
    bool is_default;
    clmgk_program_keeper keeper;
    info_tuning tuning;
    info_products products;
    clmgk_matrix_unit_info unit; /* its name is empty: none */
    clmgk_first_use_info first_use;
    info_selftest test; /* count 0: not asked for */
    tool_error failure; /* of one of these */
} entry;

/* A part that fails is told in its place, and the rest is listed. */
typedef struct listing {
    clmgk_cache_info cache;
    tool_error cache_failure;
    clmgk_tuning_info tuning;
    tool_error tuning_failure;
    clmgk_cache_info shipped; /* programs made ahead */
    tool_error shipped_failure;
    entry *entries;
    size_t count;
    tool_error devices_failure;
    tool_exit status; /* of the first failure, at the end the program's */
    const tool_error *failure;
} listing;

/* ---- gathering ---------------------------------------------------------------------------------------------- */

/* Marks the device that programs take when none is named. Fails if CLMGK_DEVICE does not name exactly one. */
static tool_exit mark_default(listing *list, tool_error *error)
{
    clmgk_device_info chosen = CLMGK_DEVICE_INFO_INIT;
    TOOL_TRY(tool_check_library(clmgk_select_device(NULL, &chosen, &error->library), error));
    for (size_t i = 0; i < list->count; i++)
        list->entries[i].is_default = list->entries[i].info.device_id == chosen.device_id;
    return TOOL_DONE;
}

/* Goes on after a failure, and keeps the first one. */
static void note(listing *list, tool_exit status, const tool_error *failure)
{
    if (status == TOOL_DONE || list->status != TOOL_DONE)
        return;
    list->status = status;
    list->failure = failure;
}

/* Tests the device's matrix units, if it should have some, and reads the verdicts of its first use. */
static tool_exit describe_context(entry *one)
{
    tool_device device = {0};
    tool_error *const error = &one->failure;
    one->unit = (clmgk_matrix_unit_info)CLMGK_MATRIX_UNIT_INFO_INIT;
    one->first_use = (clmgk_first_use_info)CLMGK_FIRST_USE_INFO_INIT;
    if (!one->info.matrix_units && one->info.device_class == CLMGK_DEVICE_CPU)
        return TOOL_DONE;
    tool_exit status = tool_device_open_info(&one->info, &device, error);
    if (status == TOOL_DONE && one->info.matrix_units)
        status = tool_check_library(clmgk_context_get_matrix_unit(device.library, &one->unit, &error->library), error);
    if (status == TOOL_DONE)
        status =
            tool_check_library(clmgk_context_get_first_use(device.library, &one->first_use, &error->library), error);
    tool_device_close(&device);
    return status;
}

static tool_exit describe(entry *one)
{
    tool_error *const error = &one->failure;
    TOOL_TRY(
        tool_check_library(clmgk_cache_get_keeper(NULL, one->info.device_id, &one->keeper, &error->library), error));
    TOOL_TRY(info_get_tuning(&one->info, &one->tuning, error));
    TOOL_TRY(describe_context(one));
    return info_get_products(&one->info, &one->products, error);
}

static tool_exit list_devices(const char *selector, listing *list, tool_error *error)
{
    clmgk_device_info *infos = NULL;
    size_t count = 0;
    TOOL_TRY(tool_list_devices(selector, selector == NULL, &infos, &count, error));
    list->entries = calloc(count, sizeof(*list->entries));
    for (; list->entries && list->count < count; list->count++)
        list->entries[list->count].info = infos[list->count];
    free(infos);
    return list->entries ? TOOL_DONE : tool_fail_memory(error, "the list of devices");
}

/* Fails only for a device that was asked for. */
static tool_exit gather(const char *selector, listing *list, tool_error *error)
{
    if (selector)
        TOOL_TRY(list_devices(selector, list, error));
    else
        note(list, list_devices(NULL, list, &list->devices_failure), &list->devices_failure);
    tool_error unmarked = {.message = ""};
    const tool_exit marked = mark_default(list, &unmarked);
    if (!selector && list->status == TOOL_DONE) {
        list->devices_failure = unmarked;
        note(list, marked, &list->devices_failure);
    }
    for (size_t i = 0; i < list->count; i++)
        note(list, describe(&list->entries[i]), &list->entries[i].failure);
    note(list,
         tool_check_library(clmgk_program_dir_get_info(NULL, &list->shipped, &list->shipped_failure.library),
                            &list->shipped_failure),
         &list->shipped_failure);
    note(list,
         tool_check_library(clmgk_tuning_get_info(NULL, &list->tuning, &list->tuning_failure.library),
                            &list->tuning_failure),
         &list->tuning_failure);
    return TOOL_DONE;
}

/* ---- text --------------------------------------------------------------------------------------------------- */

static const char *keeper_words(clmgk_program_keeper keeper)
{
    return keeper == CLMGK_KEEPER_DRIVER    ? "the driver's own cache"
           : keeper == CLMGK_KEEPER_LIBRARY ? "the program cache below"
                                            : "nobody: each process compiles them";
}

static void print_result(const info_result *result)
{
    printf("    %-13s %-5s ", clmgk_variant_name(result->variant), clmgk_engine_name(result->engine));
    if (!result->offered)
        printf("not offered: %s\n", result->message);
    else if (result->ok)
        printf("right: error %.1e, bound %.1e\n", result->error, result->bound);
    else
        printf("WRONG: %s\n", result->message);
    fflush(stdout);
}

static void print_entry(const entry *one)
{
    const clmgk_device_info *info = &one->info;
    printf("%s %" PRIu32 ":%" PRIu32 " %s\n", one->is_default ? "*" : " ", info->platform_index, info->device_index,
           info->name);
    printf("    platform %s, vendor %s, driver %s\n", info->platform, info->vendor, info->driver);
    printf("    %s, %" PRIu32 " compute units at %" PRIu32 " MHz, vectors of %" PRIu32 " floats\n",
           clmgk_device_class_name(info->device_class), info->compute_units, info->clock_mhz, info->native_float_lanes);
    printf("    architecture %s\n", info->architecture);
    printf("    memory %.0f MB, buffers up to %.0f MB, local memory %.0f KB, work-groups up to %" PRIu64 "\n",
           1e-6 * (double)info->global_memory_bytes, 1e-6 * (double)info->max_allocation_bytes,
           1e-3 * (double)info->local_memory_bytes, info->max_work_group);
    const bool others = info->matrix_unit[0] && strcmp(one->unit.name, info->matrix_unit) != 0;
    printf("    engine %s, matrix units %s%s%s%s, ", clmgk_engine_name(info->engine),
           one->unit.name[0] ? one->unit.name : "not used", others ? " (found " : "", others ? info->matrix_unit : "",
           others ? ")" : "");
    info_print_tuning(&one->tuning);
    printf("\n    this engine because %s\n", info->engine_reason);
    if (one->unit.reason[0])
        printf("    matrix units refused: %s\n", one->unit.reason);
    info_print_products(&one->products);
    if (one->first_use.verdicts[0])
        printf("    first use of a device that nobody has tried: %s\n", one->first_use.verdicts);
    printf("    compiled programs are kept by %s\n", keeper_words(one->keeper));
    if (one->failure.message[0])
        printf("    failed: %s\n", one->failure.message);
    fflush(stdout);
}

static void print_caches(const listing *list)
{
    if (list->cache_failure.message[0])
        printf("program cache: not used: %s\n", list->cache_failure.message);
    else if (list->cache.path[0])
        printf("program cache: %s, %" PRIu64 " %s, %.1f MB\n", list->cache.path, list->cache.entries,
               tool_plural(list->cache.entries, "program", "programs"), 1e-6 * (double)list->cache.bytes);
    else
        printf("program cache: no files are used\n");
    if (list->cache.note[0])
        printf("    nothing can be written there: %s\n", list->cache.note);
    if (list->shipped_failure.message[0])
        printf("programs made ahead: not read: %s\n", list->shipped_failure.message);
    else if (list->shipped.path[0])
        printf("programs made ahead: %s, %" PRIu64 " %s, %.1f MB\n", list->shipped.path, list->shipped.entries,
               tool_plural(list->shipped.entries, "program", "programs"), 1e-6 * (double)list->shipped.bytes);
    if (list->tuning_failure.message[0])
        printf("tuning cache: not used: %s\n", list->tuning_failure.message);
    else
        info_print_tuning_cache(&list->tuning);
}

/* ---- JSON --------------------------------------------------------------------------------------------------- */

static json_t *cache_json(const clmgk_cache_info *cache)
{
    return json_pack("{s:s?, s:I, s:I}", "path", cache->path[0] ? cache->path : NULL, "entries",
                     (json_int_t)cache->entries, "bytes", (json_int_t)cache->bytes);
}

/* `message`: why the folder is not used, or not written. */
static json_t *folder_json(const clmgk_cache_info *folder, const tool_error *failure)
{
    const char *message = failure->message[0] ? failure->message : folder->note;
    return tool_json_merge(cache_json(folder), json_pack("{s:o}", "message", info_message_json(message)));
}

static json_t *selftest_json(const info_selftest *test)
{
    json_t *list = json_array();
    for (const info_result *result = test->results; result < test->results + test->count; result++)
        tool_json_append(&list,
                         json_pack("{s:s, s:s, s:b, s:b, s:f, s:f, s:s}", "variant",
                                   clmgk_variant_name(result->variant), "engine", clmgk_engine_name(result->engine),
                                   "offered", (int)result->offered, "ok", (int)result->ok, "error", result->error,
                                   "bound", result->bound, "message", result->message));
    return list;
}

static json_t *entry_json(const entry *one)
{
    const clmgk_device_info *info = &one->info;
    char selector[32];
    snprintf(selector, sizeof(selector), "%" PRIu32 ":%" PRIu32, info->platform_index, info->device_index);
    json_t *object = json_pack(
        "{s:s, s:b, s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:s, s:b, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, "
        "s:o, s:s, s:s?, s:s?, s:o, s:o}",
        "selector", selector, "default", (int)one->is_default, "platform", info->platform, "name", info->name, "vendor",
        info->vendor, "driver", info->driver, "class", clmgk_device_class_name(info->device_class), "engine",
        clmgk_engine_name(info->engine), "matrix_units", info->matrix_units ? json_true() : json_null(),
        "programs_kept_by", clmgk_program_keeper_name(one->keeper), "tuned", (int)info_is_tuned(&one->tuning), "tuning",
        info_tuning_json(&one->tuning), "compute_units", (json_int_t)info->compute_units, "clock_mhz",
        (json_int_t)info->clock_mhz, "native_float_lanes", (json_int_t)info->native_float_lanes, "global_memory_bytes",
        (json_int_t)info->global_memory_bytes, "local_memory_bytes", (json_int_t)info->local_memory_bytes,
        "max_allocation_bytes", (json_int_t)info->max_allocation_bytes, "max_work_group",
        (json_int_t)info->max_work_group, "architecture", tool_json_text(info->architecture), "products",
        info_products_json(&one->products), "message", info_message_json(one->failure.message), "engine_reason",
        info->engine_reason, "matrix_unit", one->unit.name[0] ? one->unit.name : NULL, "matrix_unit_found",
        info->matrix_unit[0] ? info->matrix_unit : NULL, "matrix_unit_reason", info_message_json(one->unit.reason),
        "first_use", info_message_json(one->first_use.verdicts));
    return one->test.count ? tool_json_merge(object, json_pack("{s:o}", "selftest", selftest_json(&one->test)))
                           : object;
}

static json_t *listing_json(const listing *list)
{
    json_t *devices = json_array();
    for (size_t i = 0; i < list->count; i++)
        tool_json_append(&devices, entry_json(&list->entries[i]));
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o}", "clmgk", clmgk_version(), "devices", devices, "message",
                     info_message_json(list->devices_failure.message), "cache",
                     folder_json(&list->cache, &list->cache_failure), "tuning_cache",
                     info_tuning_cache_json(&list->tuning, list->tuning_failure.message), "program_dir",
                     folder_json(&list->shipped, &list->shipped_failure));
}

static tool_exit clear_cache(bool json, tool_error *error)
{
    clmgk_cache_info before = CLMGK_CACHE_INFO_INIT;
    TOOL_TRY(tool_check_library(clmgk_cache_get_info(NULL, &before, &error->library), error));
    TOOL_TRY(tool_check_library(clmgk_cache_clear(NULL, &error->library), error));
    if (json)
        return tool_print_json(json_pack("{s:s, s:o}", "clmgk", clmgk_version(), "removed", cache_json(&before)),
                               error);
    printf("removed %" PRIu64 " %s, %.1f MB%s%s\n", before.entries, tool_plural(before.entries, "program", "programs"),
           1e-6 * (double)before.bytes, before.path[0] ? ", from " : "", before.path);
    return tool_flush_stdout(error);
}

/* Lists and tests the devices in turn. The cache comes last, to include the programs that the tests left in it. */
static tool_exit show(listing *list, bool selftest, clmgk_engine engine, bool json, tool_error *error)
{
    if (!json)
        printf("libclmgk %s\n%s%s", clmgk_version(), list->devices_failure.message,
               list->devices_failure.message[0] ? "\n" : "");
    for (size_t i = 0; i < list->count; i++) {
        entry *const one = &list->entries[i];
        if (!json)
            print_entry(one);
        if (selftest)
            note(list, info_run_selftest(&one->info, engine, &one->test, json ? NULL : print_result, &one->failure),
                 &one->failure);
    }
    note(list,
         tool_check_library(clmgk_cache_get_info(NULL, &list->cache, &list->cache_failure.library),
                            &list->cache_failure),
         &list->cache_failure);
    if (json)
        TOOL_TRY(tool_print_json(listing_json(list), error));
    else
        print_caches(list);
    TOOL_TRY(tool_flush_stdout(error));
    if (list->status != TOOL_DONE)
        *error = *list->failure;
    TOOL_TRY(list->status);
    for (size_t i = 0; i < list->count; i++) {
        if (list->entries[i].test.count && !list->entries[i].test.ok)
            return tool_fail(error, TOOL_CHECK_FAILED, "self-test: %s computes wrongly", list->entries[i].info.name);
    }
    return TOOL_DONE;
}

static tool_exit act(const char *const *values, listing *list, tool_error *error)
{
    const bool json = values[TOOL_OPTION_JSON] != NULL;
    clmgk_engine engine = CLMGK_ENGINE_AUTO;
    TOOL_TRY(tool_parse_engine("engine", values[OPTION_ENGINE], &engine, error));
    if (values[OPTION_ENGINE] && !values[OPTION_SELFTEST])
        return tool_fail(error, TOOL_BAD_INPUT, "--engine: expected --selftest with it");
    if (values[OPTION_TUNABLES]) {
        if (values[TOOL_OPTION_DEVICE] || values[OPTION_SELFTEST] || values[OPTION_CACHE_CLEAR])
            return tool_fail(error, TOOL_BAD_INPUT,
                             "--tunables lists what all devices have and does nothing else: "
                             "expected no --device, --selftest or --cache-clear with it");
        return info_show_tunables(json, error);
    }
    if (values[OPTION_CACHE_CLEAR]) {
        if (values[TOOL_OPTION_DEVICE] || values[OPTION_SELFTEST])
            return tool_fail(error, TOOL_BAD_INPUT,
                             "--cache-clear clears the whole cache and does nothing else: "
                             "expected no --device and no --selftest with it");
        return clear_cache(json, error);
    }
    TOOL_TRY(gather(values[TOOL_OPTION_DEVICE], list, error));
    return show(list, values[OPTION_SELFTEST] != NULL, engine, json, error);
}

int main(int argc, char **argv)
{
    const char *values[OPTION_COUNT];
    tool_error error = {.message = ""};
    listing list = {.cache = CLMGK_CACHE_INFO_INIT, .tuning = CLMGK_TUNING_INFO_INIT, .shipped = CLMGK_CACHE_INFO_INIT};
    bool finished = false;
    tool_exit status = tool_parse_options(&program, argc, argv, values, &finished, &error);
    if (status == TOOL_DONE && !finished)
        status = act(values, &list, &error);
    free(list.entries);
    return tool_report(&program, status, &error);
}

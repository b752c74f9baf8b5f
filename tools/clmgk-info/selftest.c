/* SPDX-License-Identifier: Apache-2.0 */
/* A small problem of every variant. */
#include "info.h"

#include "cases.h"

#include <unistd.h>

static const clmgk_variant variants[] = {
#define VARIANT_VALUE(name, ...) CLMGK_VARIANT_##name,
    CLMGK_VARIANT_LIST(VARIANT_VALUE)
#undef VARIANT_VALUE
};

/* Sizes that no tile divides; the linear family with states, the admixture family with three global heads where the
 * others have two components. */
static tool_exit describe(clmgk_variant variant, clmgk_attention_desc *desc, tool_error *error)
{
    const uint32_t traits = clmgk_variant_traits(variant);
    *desc = (clmgk_attention_desc)CLMGK_ATTENTION_DESC_INIT;
    desc->variant = variant;
    desc->batch = 1;
    desc->heads = 2;
    desc->length = 37;
    desc->length_k = 53;
    desc->head_size = 24;
    desc->value_size = 40;
    desc->causal = 1;
    if (tool_is_mixed(variant) && !(traits & CLMGK_TRAIT_SQUARE))
        desc->components = 3;
    desc->use_mix_weight = (traits & CLMGK_TRAIT_GENERALISED) != 0;
    desc->use_mix_offset = desc->use_mix_weight && !tool_is_linear(variant);
    desc->use_state = desc->use_new_state = tool_is_linear(variant);
    return tool_check_library(clmgk_attention_validate(desc, desc, &error->library), error);
}

static tool_exit test_engine(const tool_device *device, const bench_arrays *arrays, const clmgk_attention_desc *desc,
                             info_result *result, tool_error *error)
{
    const bench_manner manner = {.engine = result->engine};
    bench_error_found found = {.ok = false};
    const tool_exit status = bench_check(device, &manner, arrays, desc, BENCH_FORWARD, &found, error);
    result->offered = status == TOOL_DONE || error->library.status != CLMGK_ERROR_UNSUPPORTED;
    if (result->offered && status != TOOL_DONE)
        return status;
    result->ok = !result->offered || found.ok;
    result->error = found.max;
    result->bound = found.bound;
    snprintf(result->message, sizeof(result->message), "%s", result->offered ? found.message : error->library.message);
    return TOOL_DONE;
}

/* One line, written over; compiling takes seconds. */
static void show_progress(const char *variant, const char *engine)
{
    if (!isatty(STDERR_FILENO))
        return;
    fprintf(stderr, "\r\033[K");
    if (variant)
        fprintf(stderr, "self-test: %s, engine %s ...", variant, engine);
    fflush(stderr);
}

static tool_exit test_all(const tool_device *device, const bench_group *group, const bench_arrays *arrays,
                          clmgk_engine engine, info_selftest *test, void (*report)(const info_result *),
                          tool_error *error)
{
    for (size_t v = 0; v < group->count; v++) {
        info_result *result = &test->results[test->count++];
        *result = (info_result){.variant = variants[v], .engine = engine};
        show_progress(clmgk_variant_name(variants[v]), clmgk_engine_name(engine));
        const tool_exit status = test_engine(device, arrays, &group->cases[v].desc, result, error);
        show_progress(NULL, NULL);
        TOOL_TRY(status);
        test->ok = test->ok && result->ok;
        if (report)
            report(result);
    }
    return TOOL_DONE;
}

tool_exit info_run_selftest(const clmgk_device_info *info, clmgk_engine engine, info_selftest *test,
                            void (*report)(const info_result *), tool_error *error)
{
    bench_case cases[TOOL_COUNT(variants)] = {{0}};
    const bench_group group = {.cases = cases, .count = TOOL_COUNT(variants)};
    tool_device device = {0};
    bench_arrays arrays = {0};
    tool_exit status = TOOL_DONE;
    *test = (info_selftest){.ok = true};
    for (size_t v = 0; v < group.count; v++)
        TOOL_TRY(describe(variants[v], &cases[v].desc, error));
    TOOL_TRY_GOTO(status, tool_device_open_info(info, &device, error), done);
    TOOL_TRY_GOTO(status, bench_arrays_create(&device, &group, &arrays, error), done);
    status =
        test_all(&device, &group, &arrays, engine == CLMGK_ENGINE_AUTO ? info->engine : engine, test, report, error);
done:
    bench_arrays_release(&arrays);
    tool_device_close(&device);
    return status;
}

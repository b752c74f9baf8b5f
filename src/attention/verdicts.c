/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/verdicts.h"

#include "device/program_cache.h"

#include <stdio.h>
#include <string.h>

_Static_assert(MGK_FAMILIES *MGK_ENGINES <= MGK_VERDICTS, "a context has a verdict for each family and engine");

bool mgk_device_is_tried(const mgk_device_facts *facts)
{
    return facts->runtime == MGK_RUNTIME_NVIDIA ||
           (facts->runtime != MGK_RUNTIME_OTHER && facts->info.device_class == CLMGK_DEVICE_CPU);
}

#define NAME(name) #name,
static const char *const families[] = {CLMGK_FAMILY_LIST(NAME)};

int mgk_family_number(const mgk_family *family)
{
    int number = 0;
    while (strcmp(families[number], family->name) != 0)
        ++number;
    return number;
}

static mgk_verdict *place_of(clmgk_context *context, int family, clmgk_engine engine)
{
    return &context->verdicts[family * MGK_ENGINES + (int)engine - 1];
}

static void key_of(const clmgk_context *context, int family, clmgk_engine engine, mgk_text *key)
{
    const clmgk_device_info *const info = &context->facts.info;
    mgk_text_printf(key, "first use\n%s\n%s\n%s\n%s\n%s\n%d\n%s", clmgk_version(), info->platform, info->name,
                    info->driver, context->facts.platform_version, family, clmgk_engine_name(engine));
}

/* Stands for no reason in the cache, which holds no empty texts. */
#define RIGHT "right"

static mgk_cache cache_of(const clmgk_context *context)
{
    return (mgk_cache){
        .allocator = &context->allocator, .path = context->cache_path, .max_bytes = context->cache_max_bytes};
}

static mgk_verdict verdict_on_disk(const clmgk_context *context, int family, clmgk_engine engine)
{
    mgk_verdict verdict = {.known = MGK_VERDICT_NONE};
    mgk_text key = {.allocator = &context->allocator};
    const mgk_cache cache = cache_of(context);
    char *entry = NULL;
    const char *text = NULL;
    size_t length = 0;
    key_of(context, family, engine, &key);
    if (!key.failed && mgk_cache_get(&cache, key.data, &entry, &text, &length)) {
        (void)snprintf(verdict.wrong, sizeof(verdict.wrong), "%.*s", (int)length, text);
        verdict.known = strcmp(verdict.wrong, RIGHT) == 0 ? MGK_VERDICT_RIGHT : MGK_VERDICT_WRONG;
        mgk_free(&context->allocator, entry);
    }
    mgk_text_free(&key);
    return verdict;
}

/* Nobody hears of a failure: the next process tries the engine again. */
void mgk_verdict_keep(clmgk_context *context, int family, clmgk_engine engine, const mgk_verdict *verdict)
{
    mgk_monitor_copy(&context->monitor, place_of(context, family, engine), verdict, sizeof(*verdict));
    mgk_text key = {.allocator = &context->allocator};
    const mgk_cache cache = cache_of(context);
    const char *const text = verdict->known == MGK_VERDICT_WRONG ? verdict->wrong : RIGHT;
    key_of(context, family, engine, &key);
    if (!key.failed)
        (void)mgk_cache_put(&cache, key.data, text, strlen(text), NULL);
    mgk_text_free(&key);
}

mgk_verdict mgk_verdict_get(clmgk_context *context, int family, clmgk_engine engine)
{
    mgk_verdict *const own = place_of(context, family, engine);
    mgk_verdict verdict;
    mgk_monitor_copy(&context->monitor, &verdict, own, sizeof(verdict));
    if (verdict.known == MGK_VERDICT_UNREAD) {
        verdict = mgk_device_is_tried(&context->facts) ? (mgk_verdict){.known = MGK_VERDICT_RIGHT}
                                                       : verdict_on_disk(context, family, engine);
        mgk_monitor_copy(&context->monitor, own, &verdict, sizeof(verdict));
    }
    return verdict;
}

bool mgk_verdict_allows(clmgk_context *context, const mgk_family *family, clmgk_engine engine, clmgk_error *reason)
{
    if (mgk_device_is_tried(&context->facts))
        return true;
    const mgk_verdict verdict = mgk_verdict_get(context, mgk_family_number(family), engine);
    if (verdict.known == MGK_VERDICT_WRONG)
        (void)mgk_fail(reason, CLMGK_ERROR_UNSUPPORTED, "engine %s: %s", clmgk_engine_name(engine), verdict.wrong);
    return verdict.known != MGK_VERDICT_WRONG;
}

/* ---- what is known ---------------------------------------------------------------------------------------------- */

static void describe(clmgk_context *context, mgk_text *text)
{
    for (int family = 0; family < MGK_FAMILIES; ++family) {
        const size_t begin = text->length;
        for (int engine = 1; engine <= MGK_ENGINES; ++engine) {
            const mgk_verdict verdict = mgk_verdict_get(context, family, (clmgk_engine)engine);
            if (verdict.known >= MGK_VERDICT_RIGHT)
                mgk_text_printf(text, "%s%s: %s %s", text->length == 0 ? "" : "; ", families[family],
                                clmgk_engine_name((clmgk_engine)engine),
                                verdict.known == MGK_VERDICT_RIGHT ? RIGHT : verdict.wrong);
        }
        if (text->length == begin)
            mgk_text_printf(text, "%s%s: not used yet", begin == 0 ? "" : "; ", families[family]);
    }
}

clmgk_status clmgk_context_get_first_use(clmgk_context *context, clmgk_first_use_info *info, clmgk_error *error)
{
    clmgk_first_use_info found = CLMGK_FIRST_USE_INFO_INIT;
    if (context == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "context: NULL: expected a context");
    MGK_TRY(mgk_struct_room(info, "info", MGK_SIZE_WITH(clmgk_first_use_info, verdicts), error));
    mgk_text text = {.allocator = &context->allocator};
    if (!mgk_device_is_tried(&context->facts))
        describe(context, &text);
    (void)snprintf(found.verdicts, sizeof(found.verdicts), "%s", text.data != NULL ? text.data : "");
    const bool failed = text.failed;
    mgk_text_free(&text);
    if (failed)
        return mgk_fail_memory(error, "the verdicts on a device");
    mgk_struct_write(info, 0, &found, sizeof(found));
    return CLMGK_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/harness.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static bool is_listed(const clmgk_tunable *list, size_t count, const char *name, size_t length)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(list[i].name) == length && memcmp(list[i].name, name, length) == 0)
            return true;
    return false;
}

bool th_has_parameters(const th_session *session, size_t n, clmgk_variant variant, const char *parameters)
{
    enum { MOST = 64 };
    clmgk_tunable list[MOST] = {{.struct_size = sizeof(list[0])}};
    size_t count = 0;
    th_expect_ok(
        clmgk_tunable_list(clmgk_tunable_table_of(variant, session->engine[n]), list, MOST, &count, &th_error));
    assert_in_range(count, 1, MOST);
    bool all = true;
    for (const char *name = parameters; all && *name != '\0';) {
        all = is_listed(list, count, name, strcspn(name, "="));
        name += strcspn(name, ",");
        name += *name == ',' ? 1 : 0;
    }
    return all;
}

/* By default blocks depend on the problem's size. With these parameters one program serves all sizes. NULL: the engine
 * has no such parameters. */
static const char *few_programs(const th_session *session, size_t n)
{
    static const char panels[] = "panels=2,vectors=2", smallest[] = "rows=1,keys=1,splits=1";
    if (th_has_parameters(session, n, CLMGK_VARIANT_SOFTMAX, panels))
        return panels;
    /* an engine that is not the device's own builds fastest with the smallest blocks */
    const bool own = session->engine[n] == session->info.engine;
    return !own && th_has_parameters(session, n, CLMGK_VARIANT_SOFTMAX, smallest) ? smallest : NULL;
}

/* Adds the engine if it makes a plan here; prints the reason if not. The device's own must. */
static void add_engine(th_session *session, clmgk_engine engine)
{
    const clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SOFTMAX, 16, 16);
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    clmgk_plan *plan = NULL;
    clmgk_error error = {0};
    options.engine = engine;
    const clmgk_status status = clmgk_plan_create(session->context, &desc, &options, &plan, &error);
    if (status == CLMGK_OK)
        session->engine[session->engines++] = engine;
    else if (engine == session->info.engine || status != CLMGK_ERROR_UNSUPPORTED)
        fail_msg("engine %s: %s", clmgk_engine_name(engine), error.message);
    else
        print_message("engine %s is not tested here: %s\n", clmgk_engine_name(engine), error.message);
    clmgk_plan_release(plan);
}

/* Every engine that makes a plan here, the device's own first, or only the one that CLMGK_TEST_ENGINE names; "own": the
 * device's own. Without a name not the matrix engine, whose emulation is slow: test_matrix is its test. */
static void find_engines(th_session *session)
{
#define ENGINE(NAME, value, name) CLMGK_ENGINE_##NAME,
    static const clmgk_engine engines[TH_ENGINES] = {CLMGK_ENGINE_LIST(ENGINE)};
#undef ENGINE
    const clmgk_engine own = session->info.engine;
    const char *const name = getenv("CLMGK_TEST_ENGINE");
    clmgk_engine only = own;
    session->named = name && strcmp(name, "own") != 0;
    if (session->named)
        th_expect_ok(clmgk_engine_from_name(name, &only, &th_error));
    if (!name || only == own)
        add_engine(session, own);
    for (size_t n = 0; n < TH_ENGINES; n++)
        if (engines[n] != own && (name ? only == engines[n] : engines[n] != CLMGK_ENGINE_MATRIX))
            add_engine(session, engines[n]);
    if (session->engines == 0)
        fail_msg("CLMGK_TEST_ENGINE=%s: not offered here", name ? name : "");
    for (size_t n = 0; n < session->engines; n++) {
        const char *const few = few_programs(session, n);
        const bool panels = th_has_parameters(session, n, CLMGK_VARIANT_SOFTMAX, "panels=2");
        session->parameters[n] = session->full && (panels || session->engine[n] == own) ? NULL : few;
        session->backward_parameters[n] = panels ? "panels=2" : NULL;
    }
}

clmgk_context *th_open_context(cl_context cl, cl_device_id device, const char *cache_dir)
{
    clmgk_context_options options = CLMGK_CONTEXT_OPTIONS_INIT;
    clmgk_context *context = NULL;
    options.cache_dir = cache_dir;
    options.untuned = 1;
    th_expect_ok(clmgk_context_create(cl, device, &options, &context, &th_error));
    return context;
}

int th_session_open(void **state)
{
    th_session *const session = calloc(1, sizeof(*session));
    cl_int code = CL_SUCCESS;
    assert_non_null(session);
    session->full = th_is_full();
    session->info = (clmgk_device_info)CLMGK_DEVICE_INFO_INIT;
    th_expect_ok(clmgk_select_device(NULL, &session->info, &th_error));
    session->cl = clCreateContext(NULL, 1, &session->info.device_id, NULL, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    session->queue = clCreateCommandQueue(session->cl, session->info.device_id, 0, &code);
    assert_int_equal(code, CL_SUCCESS);
    session->context = th_open_context(session->cl, session->info.device_id, NULL);
    find_engines(session);
    *state = session;
    return 0;
}

int th_session_close(void **state)
{
    th_session *const session = *state;
    if (!session)
        return 0; /* opening it has failed */
    print_message("%s: %zu runs checked, %zu plans, %zu programs built and %zu loaded in %.1f s\n", session->info.name,
                  session->cases, session->plans, session->built, session->loaded, session->built_ms / 1000.0);
    for (size_t n = 0; n < session->kept_count; n++)
        clmgk_plan_release(session->kept[n]);
    free(session->kept);
    for (size_t n = 0; n < session->layer_count; n++)
        clmgk_layer_release(session->layers[n]);
    free(session->layers);
    clmgk_context_release(session->context);
    assert_int_equal(clReleaseCommandQueue(session->queue), CL_SUCCESS);
    assert_int_equal(clReleaseContext(session->cl), CL_SUCCESS);
    free(session);
    return 0;
}

bool th_is_emulated(const th_session *session)
{
    return session->engine[0] == CLMGK_ENGINE_MATRIX && session->info.device_class == CLMGK_DEVICE_CPU;
}

void th_fit_type(const th_session *session, clmgk_attention_desc *desc)
{
    const bool mixed = (clmgk_variant_traits(desc->variant) & CLMGK_TRAIT_ADMIXTURE) != 0;
    if (mixed && desc->dtype == CLMGK_DTYPE_F32 && session->engine[0] == CLMGK_ENGINE_MATRIX)
        desc->dtype = CLMGK_DTYPE_BF16;
}

bool th_takes(const th_session *session, size_t index, size_t step)
{
    return session->full || index % step == 0;
}

static size_t number_of(const th_session *session, const clmgk_plan_info *plan)
{
    size_t number = 0;
    for (size_t n = 0; n < session->kept_count; n++) {
        clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
        assert_int_equal(clmgk_plan_get_info(session->kept[n], &info, NULL), CLMGK_OK);
        if (strcmp(info.options, plan->options) == 0)
            return number;
        number += info.engine == plan->engine;
    }
    return number;
}

/* Another plan, which keeps the program in memory. */
static void keep(th_session *session, clmgk_plan *plan)
{
    session->kept = realloc(session->kept, (session->kept_count + 1) * sizeof(*session->kept));
    assert_non_null(session->kept);
    session->kept[session->kept_count++] = plan;
}

clmgk_plan *th_try_plan(th_session *session, const clmgk_attention_desc *desc, const clmgk_plan_options *options,
                        th_message *message)
{
    clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
    clmgk_plan *plan = NULL, *second = NULL;
    clmgk_error error = {0}, told = {0};
    const clmgk_status supported = clmgk_attention_supported(session->context, desc, options, &told);
    const clmgk_status status = clmgk_plan_create(session->context, desc, options, &plan, &error);
    assert_int_equal(supported, status == CLMGK_ERROR_COMPILE ? CLMGK_OK : status);
    if (status != CLMGK_OK) {
        if (supported != CLMGK_OK)
            assert_string_equal(told.message, error.message);
        th_say(message, "engine %s: %s", clmgk_engine_name(options->engine), error.message);
        return NULL;
    }
    assert_int_equal(clmgk_plan_get_info(plan, &info, NULL), CLMGK_OK);
    assert_true(options->engine == CLMGK_ENGINE_AUTO || info.engine == options->engine);
    session->plans++;
    session->program = number_of(session, &info);
    session->built += info.origin == CLMGK_PROGRAM_BUILT;
    session->loaded += info.origin == CLMGK_PROGRAM_DISK;
    if (info.origin == CLMGK_PROGRAM_MEMORY)
        return plan;
    session->built_ms += info.compile_ms;
    assert_int_equal(clmgk_plan_create(session->context, desc, options, &second, NULL), CLMGK_OK);
    keep(session, second);
    return plan;
}

clmgk_plan *th_plan_of(th_session *session, const clmgk_attention_desc *desc, const clmgk_plan_options *options)
{
    th_message message;
    clmgk_plan *const plan = th_try_plan(session, desc, options, &message);
    if (!plan)
        fail_msg("%s", message.text);
    return plan;
}

clmgk_plan *th_plan(th_session *session, const clmgk_attention_desc *desc, clmgk_engine engine, const char *parameters)
{
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    options.engine = engine;
    options.parameters = parameters;
    return th_plan_of(session, desc, &options);
}

cl_command_queue th_queue(const th_session *session, bool out_of_order)
{
    cl_command_queue_properties offered = 0;
    cl_int code = CL_SUCCESS;
    assert_int_equal(
        clGetDeviceInfo(session->info.device_id, CL_DEVICE_QUEUE_PROPERTIES, sizeof(offered), &offered, NULL),
        CL_SUCCESS);
    const cl_command_queue_properties wanted = out_of_order ? offered & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE : 0;
    cl_command_queue queue = clCreateCommandQueue(session->cl, session->info.device_id, wanted, &code);
    assert_int_equal(code, CL_SUCCESS);
    return queue;
}

clmgk_plan_options th_options(const th_session *session, size_t n)
{
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    options.engine = session->engine[n];
    options.parameters = few_programs(session, n);
    options.backward_parameters = session->backward_parameters[n];
    return options;
}

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

bool th_has_word(const char *text, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word)) {
        const bool starts = at == text || !is_word(at[-1]) || !is_word(word[0]);
        const bool ends = length == 0 || !is_word(at[length]);
        if (starts && ends)
            return true;
    }
    return false;
}

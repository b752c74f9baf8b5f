/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/harness.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Every engine that makes a plan here; the device's own must be one of them. */
static void find_engines(th_session *session)
{
    static const clmgk_engine engines[TH_ENGINES] = {CLMGK_ENGINE_LANE, CLMGK_ENGINE_SIMT};
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.length = desc.length_k = desc.head_size = 16;
    bool own = false;
    for (size_t n = 0; n < TH_ENGINES; n++) {
        clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
        clmgk_plan *plan = NULL;
        clmgk_error error = {0};
        options.engine = engines[n];
        const clmgk_status status = clmgk_plan_create(session->context, &desc, &options, &plan, &error);
        if (status == CLMGK_OK) {
            session->engine[session->engines++] = engines[n];
            own = own || engines[n] == session->info.engine;
        } else if (status != CLMGK_ERROR_UNSUPPORTED) {
            fail_msg("engine %s: %s", clmgk_engine_name(engines[n]), error.message);
        }
        clmgk_plan_release(plan);
    }
    assert_true(own);
}

int th_session_open(void **state)
{
    th_session *const session = calloc(1, sizeof(*session));
    clmgk_error error = {0};
    cl_int code = CL_SUCCESS;
    assert_non_null(session);
    const char *const full = getenv("CLMGK_TEST_FULL");
    session->full = full && strcmp(full, "1") == 0;
    if (clmgk_select_device(NULL, &session->info, &error) != CLMGK_OK)
        fail_msg("%s", error.message);
    session->cl = clCreateContext(NULL, 1, &session->info.device_id, NULL, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    session->queue = clCreateCommandQueue(session->cl, session->info.device_id, 0, &code);
    assert_int_equal(code, CL_SUCCESS);
    if (clmgk_context_create(session->cl, session->info.device_id, NULL, &session->context, &error) != CLMGK_OK)
        fail_msg("%s", error.message);
    find_engines(session);
    *state = session;
    return 0;
}

int th_session_close(void **state)
{
    th_session *const session = *state;
    print_message("%s: %zu runs checked, %zu plans, %zu programs built and %zu loaded in %.1f s\n", session->info.name,
                  session->cases, session->plans, session->built, session->loaded, session->built_ms / 1000.0);
    clmgk_context_release(session->context);
    assert_int_equal(clReleaseCommandQueue(session->queue), CL_SUCCESS);
    assert_int_equal(clReleaseContext(session->cl), CL_SUCCESS);
    free(session);
    return 0;
}

clmgk_plan *th_plan(th_session *session, const clmgk_attention_desc *desc, clmgk_engine engine, const char *parameters)
{
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    clmgk_plan_info info = {0};
    clmgk_plan *plan = NULL;
    clmgk_error error = {0};
    options.engine = engine;
    options.parameters = parameters;
    if (clmgk_plan_create(session->context, desc, &options, &plan, &error) != CLMGK_OK)
        fail_msg("engine %s: %s", clmgk_engine_name(engine), error.message);
    assert_int_equal(clmgk_plan_get_info(plan, &info, &error), CLMGK_OK);
    assert_true(engine == CLMGK_ENGINE_AUTO || info.engine == engine);
    session->plans++;
    session->built += info.origin == CLMGK_PROGRAM_BUILT;
    session->loaded += info.origin == CLMGK_PROGRAM_DISK;
    session->built_ms += info.origin == CLMGK_PROGRAM_MEMORY ? 0.0 : info.compile_ms;
    return plan;
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

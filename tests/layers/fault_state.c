/* SPDX-License-Identifier: Apache-2.0 */
#include "fault_state.h"

#include <stdio.h>
#include <stdlib.h>

bool fault_due(fault_state *state, const char *function)
{
    if (!atomic_load(&state->armed))
        return false;
    const unsigned long call = atomic_fetch_add(&state->calls, 1) + 1;
    const unsigned long fail_at = atomic_load(&state->fail_at);
    if (fail_at == 0 || call < fail_at || (call > fail_at && !atomic_load(&state->sticky)))
        return false;
    const char *none = NULL;
    atomic_compare_exchange_strong(&state->failed, &none, function);
    return true;
}

void fault_arm(fault_state *state, unsigned long fail_at, bool sticky, int code)
{
    atomic_store(&state->calls, 0);
    atomic_store(&state->failed, NULL);
    atomic_store(&state->fail_at, fail_at);
    atomic_store(&state->sticky, sticky);
    atomic_store(&state->code, code);
    atomic_store(&state->armed, true);
}

void fault_disarm(fault_state *state)
{
    atomic_store(&state->armed, false);
}

unsigned long fault_step(void)
{
    const char *const text = getenv("CLMGK_FAULT_STEP");
    const unsigned long step = text != NULL ? strtoul(text, NULL, 10) : 1;
    return step > 0 ? step : 1;
}

void fault_arm_from_environment(fault_state *state, const char *variable, int default_code)
{
    const char *text = getenv(variable);
    if (text == NULL)
        return;
    char *end = NULL;
    const unsigned long fail_at = strtoul(text, &end, 10);
    const bool sticky = *end == '+';
    if (sticky)
        end++;
    fault_arm(state, fail_at, sticky, *end == ':' ? (int)strtol(end + 1, NULL, 10) : default_code);
}

void fault_report(fault_state *state)
{
    const char *failed = atomic_load(&state->failed);
    (void)fprintf(stderr, "%s: calls=%lu live=%ld failed=%s\n", state->kind, atomic_load(&state->calls),
                  atomic_load(&state->live), failed != NULL ? failed : "none");
}

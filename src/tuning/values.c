/* SPDX-License-Identifier: Apache-2.0 */
/* Which measured values are allowed: one line for each kind of operation. */
#include "gemm/gemm.h"
#include "tuning/entries.h"
#include "tuning/tunables.h"

#include <string.h>

static clmgk_status check_engine(const char *choice, const char *parameters, clmgk_error *error)
{
    static const clmgk_engine engines[] = {CLMGK_ENGINE_LANE, CLMGK_ENGINE_SIMT};
    for (size_t i = 0; i < MGK_COUNT(engines); ++i) {
        if (strcmp(clmgk_engine_name(engines[i]), choice) != 0)
            continue;
        mgk_tunables tunables = mgk_tunables_of(engines[i], true); /* what every variant knows is among them */
        const mgk_parameters read = {.text = parameters, .origin = MGK_ORIGIN_TUNED};
        MGK_TRY(mgk_tunables_read(&tunables, &read, error));
        return mgk_tunables_check(&tunables, false, error);
    }
    return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "choice: \"%s\": expected the name of an engine", choice);
}

static const struct {
    const char *operation;
    clmgk_status (*check)(const char *choice, const char *parameters, clmgk_error *error);
} operations[] = {
    {"forward", check_engine},
    {"backward", check_engine},
    {"gemm", mgk_gemm_check_tuned},
    {"clblast", mgk_gemm_check_tuned},
};

clmgk_status mgk_tuning_check(const char *operation, const char *choice, const char *parameters, clmgk_error *error)
{
    for (size_t i = 0; i < MGK_COUNT(operations); ++i)
        if (strcmp(operations[i].operation, operation) == 0)
            return operations[i].check(choice, parameters, error);
    return CLMGK_OK;
}

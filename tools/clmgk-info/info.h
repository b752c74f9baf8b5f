/* SPDX-License-Identifier: Apache-2.0 */
/* clmgk-info: devices, what the library would use on each, and whether it computes rightly there. */
#ifndef INFO_H
#define INFO_H

#include "opencl.h"
#include "tool.h"

#include <jansson.h>

/* As many as variants. */
#define INFO_VARIANT(name, ...) INFO_VARIANT_##name,
enum { CLMGK_VARIANT_LIST(INFO_VARIANT) INFO_MAX_RESULTS };
#undef INFO_VARIANT

/* A variant on an engine of a device. */
typedef struct info_result {
    clmgk_variant variant;
    clmgk_engine engine;
    bool offered; /* the engine is, on this device */
    bool ok;
    double error; /* largest of O */
    double bound;
    char message[CLMGK_ERROR_MESSAGE_SIZE]; /* why it is not offered or not ok */
} info_result;

typedef struct info_selftest {
    info_result results[INFO_MAX_RESULTS];
    size_t count;
    bool ok;
} info_selftest;

/* A small problem of every variant, against the reference, on `engine` (automatic: the device's). `report` (or NULL)
 * gets each result at once. If standard error is a terminal, it shows the variant under test. */
tool_exit info_run_selftest(const clmgk_device_info *info, clmgk_engine engine, info_selftest *test,
                            void (*report)(const info_result *), tool_error *error);

/* ---- tuning ------------------------------------------------------------------------------------------------- */

/* The tuning cache's entries for a device, found by the same rule as in plans. */
typedef struct info_tuning {
    uint64_t current;     /* measured here, with this driver */
    uint64_t stale;       /* with another, or on another device of the architecture */
    uint64_t shipped;     /* by the library's makers */
    uint64_t passed_over; /* they bear the device's name, no plan takes them */
} info_tuning;

tool_exit info_get_tuning(const clmgk_device_info *info, info_tuning *tuning, tool_error *error);
bool info_is_tuned(const info_tuning *tuning);

void info_print_tuning(const info_tuning *tuning); /* a part of a line */
json_t *info_tuning_json(const info_tuning *tuning);

json_t *info_message_json(const char *message); /* null: empty */

void info_print_tuning_cache(const clmgk_tuning_info *cache);
json_t *info_tuning_cache_json(const clmgk_tuning_info *cache, const char *failure); /* failure: empty, or why not */

/* Prints the tables of kernel parameters. */
tool_exit info_show_tunables(bool json, tool_error *error);

/* ---- matrix products ---------------------------------------------------------------------------------------- */

#define INFO_MAX_PROVIDERS 8

typedef struct info_products {
    clmgk_gemm_provider_info providers[INFO_MAX_PROVIDERS];
    size_t count;
} info_products;

tool_exit info_get_products(const clmgk_device_info *info, info_products *products, tool_error *error);
void info_print_products(const info_products *products);
json_t *info_products_json(const info_products *products);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of all kernel parameters, and the operations with tuned values. */
#ifndef MGK_TABLES_H
#define MGK_TABLES_H

#include "base/base.h"

/* Checks that a plan could ever use these values: INVALID_VALUE, with the reason, if not. */
clmgk_status mgk_tuning_check(const char *operation, const char *choice, const char *parameters, clmgk_error *error);

#endif

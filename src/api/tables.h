/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of all kernel parameters, and the operations whose values are measured. */
#ifndef MGK_TABLES_H
#define MGK_TABLES_H

#include "base/base.h"

/* Whether a plan could ever take such values: INVALID_VALUE, with the reason, if not. Operations that this library
 * does not know are not judged. */
clmgk_status mgk_tuning_check(const char *operation, const char *choice, const char *parameters, clmgk_error *error);

#endif

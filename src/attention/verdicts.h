/* SPDX-License-Identifier: Apache-2.0 */
/* The verdicts of the first use (attention/first_use.h): in a context, and on disk. */
#ifndef MGK_VERDICTS_H
#define MGK_VERDICTS_H

#include "attention/core/family.h"

#define MGK_FAMILY_PLACE(name) MGK_FAMILY_PLACE_##name,
enum { CLMGK_FAMILY_LIST(MGK_FAMILY_PLACE) MGK_FAMILIES };

/* Place in CLMGK_FAMILY_LIST. */
int mgk_family_number(const mgk_family *family);

/* True of CPUs, through implementations that the tests run on, and of NVIDIA's GPUs: no verdict is needed. */
bool mgk_device_is_tried(const mgk_device_facts *facts);

/* The verdict of the context, or on disk; MGK_VERDICT_NONE: there is none. */
mgk_verdict mgk_verdict_get(clmgk_context *context, int family, clmgk_engine engine);
void mgk_verdict_keep(clmgk_context *context, int family, clmgk_engine engine, const mgk_verdict *verdict);

/* False, with the reason, if the verdict on an engine's kernels of a family is known, and they are wrong. */
bool mgk_verdict_allows(clmgk_context *context, const mgk_family *family, clmgk_engine engine, clmgk_error *reason);

#endif

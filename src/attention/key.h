/* SPDX-License-Identifier: Apache-2.0 */
/* The tuning bucket of an attention problem. */
#ifndef MGK_BUCKET_H
#define MGK_BUCKET_H

#include "attention/core/family.h"
#include "tuning/database.h"

/* The key of a resolved descriptor. The statistics use the backward pass's. */
mgk_tuning_key mgk_attention_key(const clmgk_attention_desc *desc, clmgk_pass pass);

#endif

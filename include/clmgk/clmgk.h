/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclmgk: attention with several Gaussian keys per position, as fused OpenCL kernels.
 *
 * status.h     what functions return
 * variants.h   the variants with their formulas
 * context.h    devices, contexts, the program cache
 * attention.h  describe, plan, enqueue; the simple call on host arrays
 * gemm.h       matrix products
 * tuning.h     kernel parameters, and the cache of those that were measured
 *
 * Thread safety: every function may be called from any thread. Objects may be shared as stated with them.
 */
#ifndef CLMGK_CLMGK_H
#define CLMGK_CLMGK_H

#include "attention.h"
#include "context.h"
#include "gemm.h"
#include "status.h"
#include "tuning.h"
#include "variants.h"
#include "version.h"

#endif

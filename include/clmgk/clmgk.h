/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclmgk: softmax attention, attention with several Gaussian keys per position (MGK), with scores mixed across heads
 * (FiSH), and their linear forms, as fused OpenCL kernels.
 *
 * Papers cited in the headers: MGK = Improving Transformers with Probabilistic Attention Keys; FiSH = FiSHFormer:
 * Transformer with a Finite Admixture of Shared Heads; LRB = Low-Rank Bottleneck in Multi-head Attention Models.
 *
 * status.h     status codes and error records
 * variants.h   the variants with their formulas
 * context.h    devices, contexts, the program cache
 * arrays.h     the list of attention's arrays
 * attention.h  attention: describe, plan, enqueue; blocking calls on host arrays
 * cuda.h       attention on memory and streams of CUDA
 * warm_up.h    plans made in the background
 * gemm.h       matrix products
 * counts.h     numbers of operations and parameters, as the papers count them
 * layer.h      multi-head attention layers
 * tuning.h     kernel parameters and the cache of measured values
 *
 * Thread safety: every function may be called from any thread. Each object's comment says how threads may share it.
 */
#ifndef CLMGK_CLMGK_H
#define CLMGK_CLMGK_H

#include "attention.h"
#include "context.h"
#include "counts.h"
#include "cuda.h"
#include "gemm.h"
#include "layer.h"
#include "status.h"
#include "tuning.h"
#include "variants.h"
#include "version.h"
#include "warm_up.h"

#endif

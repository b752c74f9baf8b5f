/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Edited programs. NVIDIA's OpenCL compiler targets sm_90 and refuses the instructions that only sm_90a has, but the
 * driver's assembler takes them. Kernels write each of them as an inline assembly statement that begins with a mark.
 * The compiler fills in its operands and copies it to the PTX, the program's binary, as a comment. The driver then gets
 * this PTX without the marks, for sm_90a. See docs/gpu.md.
 */
#ifndef MGK_EDITED_H
#define MGK_EDITED_H

#include "base/base.h"

#define MGK_PTX_MARK "//@"

/* Appends the PTX of `length` bytes, without its marks and for sm_90a in place of sm_90, to `edited`, and stores the
 * number of marks. UNSUPPORTED, with the reason, if `binary` is not PTX for sm_90. */
clmgk_status mgk_ptx_edit(const char *binary, size_t length, mgk_text *edited, size_t *marks, clmgk_error *error);

/* Appends the PTX of `length` bytes, edited or not, in CUDA's form to `out`: without OpenCL's mode of textures and
 * without registers that only OpenCL's driver sets. `dynamic`: arrays of local memory whose names end with
 * MGK_PTX_DYNAMIC have the size that a launch gives them. UNSUPPORTED, with the reason, if there is no such form. */
#define MGK_PTX_DYNAMIC "_tiles"
clmgk_status mgk_ptx_for_cuda(const char *binary, size_t length, bool dynamic, mgk_text *out, clmgk_error *error);

#endif

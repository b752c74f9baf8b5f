/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels' flags: a field for each macro of cl/base/flags.clh and for each flag that a family's buffers.clh
 * declares, with the macro's name. The build makes two lists (src/CMakeLists.txt): MGK_FLAG_LIST(F) of all flags, as
 * F(name), and MGK_ARRAY_FLAG_LIST(F) of the flags that say whether a descriptor has an array, as F(HAS_<array>,
 * <array>). */
#ifndef MGK_FLAGS_H
#define MGK_FLAGS_H

#include "base/base.h"
#include "kernel_flags.h"

/* 0: the flag is not set. */
typedef struct mgk_flags {
    clmgk_engine engine; /* ENGINE: the engine whose files the program includes (cl/engine/files.clh) */
#define MGK_FLAG(name) int name;
    MGK_FLAG_LIST(MGK_FLAG)
#undef MGK_FLAG
} mgk_flags;

/* A flag in a formula of a kernel's header, read from the `flags` in scope. */
#define FLAG(name) (flags->name)

/* Sets the flags that `more` has set, too. */
void mgk_flags_add(mgk_flags *flags, const mgk_flags *more);

/* Appends " -DENGINE=<name>", then " -DNAME=value" for each flag that is set. */
void mgk_flags_options(const mgk_flags *flags, mgk_text *text);

#endif

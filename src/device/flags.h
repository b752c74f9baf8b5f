/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels' flags: fields named like the macros of cl/base/flags.clh, from which the list is made. */
#ifndef MGK_FLAGS_H
#define MGK_FLAGS_H

#include "base/base.h"
#include "kernel_flags.h"

/* 0: the flag is not given. */
typedef struct mgk_flags {
#define MGK_FLAG(name) int name;
    MGK_FLAG_LIST(MGK_FLAG)
#undef MGK_FLAG
} mgk_flags;

/* A flag in a formula of a kernel's header: of the `flags` in scope. */
#define FLAG(name) (flags->name)

/* Appends " -DNAME=value" of the flags that are given. */
void mgk_flags_options(const mgk_flags *flags, mgk_text *text);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Flags as compiler options. */
#include "device/flags.h"

static void append(mgk_text *text, const char *name, int value)
{
    if (value != 0)
        mgk_text_printf(text, " -D%s=%d", name, value);
}

void mgk_flags_add(mgk_flags *flags, const mgk_flags *more)
{
#define MGK_FLAG(name) flags->name |= more->name;
    MGK_FLAG_LIST(MGK_FLAG)
#undef MGK_FLAG
}

void mgk_flags_options(const mgk_flags *flags, mgk_text *text)
{
    if (flags->engine != CLMGK_ENGINE_AUTO)
        mgk_text_printf(text, " -DENGINE=%s", clmgk_engine_name(flags->engine));
#define MGK_FLAG(name) append(text, #name, flags->name);
    MGK_FLAG_LIST(MGK_FLAG)
#undef MGK_FLAG
}

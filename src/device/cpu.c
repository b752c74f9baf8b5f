/* SPDX-License-Identifier: Apache-2.0 */
/* The host's CPU, from CPUID. */
#include "device/device.h"

#include <stdio.h>
#include <string.h>

#if defined(__GNUC__) && defined(__x86_64__)
#define HOST_TELLS 1
#include <cpuid.h>
#else
#define HOST_TELLS 0
#endif

enum { EXTENDED_FAMILY = 15, INTEL_FAMILY = 6 };

/* Family and model as the manuals number them: CPUID 1, EAX. */
void mgk_cpu_describe(const char *vendor, uint32_t signature, const char *vectors, char *target, size_t size)
{
    const uint32_t base = signature >> 8 & 15;
    const uint32_t family = base == EXTENDED_FAMILY ? base + (signature >> 20 & 255) : base;
    const bool extended = base == EXTENDED_FAMILY || base == INTEL_FAMILY;
    const uint32_t model = (signature >> 4 & 15) | (extended ? signature >> 12 & 0xf0 : 0);
    snprintf(target, size, "x86-64 %s %u/%u %s", vendor, (unsigned)family, (unsigned)model, vectors);
}

#if HOST_TELLS
/* Vector instructions that the operating system lets programs use. */
static const char *host_vectors(void)
{
    if (__builtin_cpu_supports("avx512f"))
        return "avx512";
    if (__builtin_cpu_supports("avx2"))
        return "avx2";
    return __builtin_cpu_supports("avx") ? "avx" : "sse2";
}
#endif

void mgk_cpu_name(char *target, size_t size)
{
    target[0] = '\0';
#if HOST_TELLS
    unsigned most = 0;
    unsigned name[3] = {0}; /* EBX, EDX, ECX: "GenuineIntel" */
    unsigned signature = 0;
    unsigned ignored[3];
    char vendor[sizeof(name) + 1] = "";
    if (__get_cpuid(0, &most, &name[0], &name[2], &name[1]) == 0 ||
        __get_cpuid(1, &signature, &ignored[0], &ignored[1], &ignored[2]) == 0)
        return;
    memcpy(vendor, name, sizeof(name));
    mgk_cpu_describe(vendor, signature, host_vectors(), target, size);
#else
    (void)size;
#endif
}

bool mgk_cpu_has_avx512dq(void)
{
#if HOST_TELLS
    return __builtin_cpu_supports("avx512dq") != 0;
#else
    return false;
#endif
}

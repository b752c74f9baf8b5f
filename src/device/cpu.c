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

enum { EXTENDED_FAMILY = 15, INTEL_FAMILY = 6, ZEN_4_FAMILY = 25 };
enum { VENDOR_SIZE = 13 };

/* Family and model as the manuals number them: CPUID 1, EAX. */
static uint32_t family_of(uint32_t signature)
{
    const uint32_t base = signature >> 8 & 15;
    return base == EXTENDED_FAMILY ? base + (signature >> 20 & 255) : base;
}

void mgk_cpu_describe(const char *vendor, uint32_t signature, const char *vectors, char *target, size_t size)
{
    const uint32_t base = signature >> 8 & 15;
    const bool extended = base == EXTENDED_FAMILY || base == INTEL_FAMILY;
    const uint32_t model = (signature >> 4 & 15) | (extended ? signature >> 12 & 0xf0 : 0);
    snprintf(target, size, "x86-64 %s %u/%u %s", vendor, (unsigned)family_of(signature), (unsigned)model, vectors);
}

/* True except for AMD's CPUs up to Zen 4, which take two cycles for such an instruction. */
bool mgk_cpu_makes_two(const char *vendor, uint32_t signature)
{
    return strcmp(vendor, "AuthenticAMD") != 0 || family_of(signature) > ZEN_4_FAMILY;
}

#if HOST_TELLS
/* The vector instructions that the operating system lets programs use. */
static const char *host_vectors(void)
{
    if (__builtin_cpu_supports("avx512f"))
        return "avx512";
    if (__builtin_cpu_supports("avx2"))
        return "avx2";
    return __builtin_cpu_supports("avx") ? "avx" : "sse2";
}

static bool host_identity(char vendor[VENDOR_SIZE], uint32_t *signature)
{
    unsigned most = 0;
    unsigned name[3] = {0}; /* EBX, EDX, ECX: "GenuineIntel" */
    unsigned eax = 0;
    unsigned ignored[3];
    if (__get_cpuid(0, &most, &name[0], &name[2], &name[1]) == 0 ||
        __get_cpuid(1, &eax, &ignored[0], &ignored[1], &ignored[2]) == 0)
        return false;
    memcpy(vendor, name, sizeof(name));
    vendor[VENDOR_SIZE - 1] = '\0';
    *signature = eax;
    return true;
}

/* CPUID 7, part 1, EAX: 0 where the CPU has no such part. */
static uint32_t newer_features(void)
{
    enum { FEATURES = 7 };
    unsigned parts = 0;
    unsigned features = 0;
    unsigned ignored[3];
    if (__get_cpuid_count(FEATURES, 0, &parts, &ignored[0], &ignored[1], &ignored[2]) == 0 || parts < 1)
        return 0;
    __cpuid_count(FEATURES, 1, features, ignored[0], ignored[1], ignored[2]);
    return features;
}

enum { NEWER_CONVERSIONS = 1U << 5, NEWER_F16_TILES = 1U << 21 }; /* AVX512-BF16, AMX-FP16 */
#endif

void mgk_cpu_name(char *target, size_t size)
{
    target[0] = '\0';
#if HOST_TELLS
    char vendor[VENDOR_SIZE];
    uint32_t signature;
    if (host_identity(vendor, &signature))
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

bool mgk_cpu_has_amx(void)
{
#if HOST_TELLS
    enum { FEATURES = 7, OS_SAVES = 1U << 27, SAVED_TILES = 3U << 17 };
    enum { BF16 = 1U << 22, TILES = 1U << 24 };
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & OS_SAVES) == 0 ||
        __get_cpuid_count(FEATURES, 0, &a, &b, &c, &d) == 0)
        return false;
    unsigned saved = 0;
    unsigned high = 0;
    __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    return (d & BF16) != 0 && (d & TILES) != 0 && (newer_features() & NEWER_CONVERSIONS) != 0 &&
           (saved & SAVED_TILES) == SAVED_TILES;
#else
    return false;
#endif
}

bool mgk_cpu_has_amx_f16(void)
{
#if HOST_TELLS
    return (newer_features() & NEWER_F16_TILES) != 0;
#else
    return false;
#endif
}

bool mgk_cpu_has_dots(void)
{
#if HOST_TELLS
    char vendor[VENDOR_SIZE];
    uint32_t signature = 0;
    return mgk_cpu_has_avx512dq() && host_identity(vendor, &signature) && strcmp(vendor, "AuthenticAMD") == 0 &&
           (newer_features() & NEWER_CONVERSIONS) != 0;
#else
    return false;
#endif
}

bool mgk_cpu_has_two_units(void)
{
#if HOST_TELLS
    char vendor[VENDOR_SIZE];
    uint32_t signature;
    return mgk_cpu_has_avx512dq() && host_identity(vendor, &signature) && mgk_cpu_makes_two(vendor, signature);
#else
    return false;
#endif
}

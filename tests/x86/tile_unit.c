/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AMX's tile registers in software, for CPUs that have AVX512-BF16 but no AMX. With CLMGK_TEST_EMULATE_AMX=1 a program
 * that is linked with this file, which replaces three of the library's functions, takes the CPU for one with AMX, and
 * with CLMGK_TEST_EMULATE_AMX=fp16 for one that has AMX-FP16, too. AMX's instructions then raise SIGILL, and the
 * handler does what the instruction does (Intel's manual, volume 2: rows in memory, layouts, the order of a product's
 * sums, denormals as 0 but for f16). Registers without a layout, and shapes that do not fit each other, end the
 * process, as on the CPU.
 *
 * Where the CPU has AMX, or lacks AVX512-BF16, whose conversions the kernels use as well, such a program finds no AMX.
 */
#define _GNU_SOURCE /* names of registers */
#include "base/base.h"
#include "device/device.h"

#include <stdlib.h>
#include <string.h>

/* The library's functions, and what replaces them. */
bool __real_mgk_cpu_has_amx(void);
bool __real_mgk_cpu_has_amx_f16(void);
clmgk_status __real_mgk_permit_tiles(clmgk_error *error);
bool __wrap_mgk_cpu_has_amx(void);
bool __wrap_mgk_cpu_has_amx_f16(void);
clmgk_status __wrap_mgk_permit_tiles(clmgk_error *error);

#if defined(__linux__) && defined(__x86_64__)
#include <immintrin.h>
#include <signal.h>
#include <ucontext.h>

static bool emulates(void)
{
    return getenv("CLMGK_TEST_EMULATE_AMX") != NULL;
}

static bool emulates_f16(void)
{
    return emulates() && strcmp(getenv("CLMGK_TEST_EMULATE_AMX"), "fp16") == 0;
}

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64, PALETTE = 1 };

typedef struct tile {
    unsigned char row[ROWS][ROW_BYTES];
} tile;

typedef struct tile_shape {
    int rows, bytes;
} tile_shape;

static _Thread_local tile tiles[TILES];
static _Thread_local tile_shape shapes[TILES];
static _Thread_local bool has_layout;

/* What is invalid ends the process: the handler can't return. */
static void require(bool valid)
{
    if (!valid)
        abort();
}

/* ---- instructions ----------------------------------------------------------------------------------------------- */

static void set_layout(const unsigned char *layout)
{
    enum { BYTES_AT = 16, ROWS_AT = 48 };
    has_layout = layout[0] != 0;
    memset(tiles, 0, sizeof(tiles));
    memset(shapes, 0, sizeof(shapes));
    if (!has_layout)
        return;
    require(layout[0] == PALETTE);
    for (int i = 0; i < TILES; i++) {
        shapes[i].bytes = layout[BYTES_AT + 2 * i] | layout[BYTES_AT + 2 * i + 1] << 8;
        shapes[i].rows = layout[ROWS_AT + i];
        require(shapes[i].bytes <= ROW_BYTES && shapes[i].rows <= ROWS);
    }
}

static tile_shape shape_of(int number)
{
    require(number < TILES && has_layout && shapes[number].rows > 0 && shapes[number].bytes > 0);
    return shapes[number];
}

static void tile_load(int number, const unsigned char *address, int64_t stride)
{
    const tile_shape shape = shape_of(number);
    memset(&tiles[number], 0, sizeof(tile));
    for (int i = 0; i < shape.rows; i++)
        memcpy(tiles[number].row[i], address + i * stride, (size_t)shape.bytes);
}

static void tile_store(int number, unsigned char *address, int64_t stride)
{
    const tile_shape shape = shape_of(number);
    for (int i = 0; i < shape.rows; i++)
        memcpy(address + i * stride, tiles[number].row[i], (size_t)shape.bytes);
}

enum { PAIRS = ROW_BYTES / 4 };

/* The pairs of a register's rows, as f32. */
typedef struct numbers {
    float first[ROWS][PAIRS], second[ROWS][PAIRS];
} numbers;

static float widened_bf16(uint32_t bits)
{
    const uint32_t upper = bits << 16;
    float value;
    memcpy(&value, &upper, sizeof(value));
    return value;
}

__attribute__((target("f16c"))) static float widened_f16(uint32_t bits)
{
    return _cvtsh_ss((unsigned short)bits);
}

static void widen(const tile *x, bool is_f16, numbers *to)
{
    for (int i = 0; i < ROWS; i++)
        for (int n = 0; n < PAIRS; n++) {
            uint32_t pair;
            memcpy(&pair, x->row[i] + sizeof(pair) * (size_t)n, sizeof(pair));
            to->first[i][n] = is_f16 ? widened_f16(pair & 0xffff) : widened_bf16(pair & 0xffff);
            to->second[i][n] = is_f16 ? widened_f16(pair >> 16) : widened_bf16(pair >> 16);
        }
}

/* Row `row` of C: the sums of its first factors' products and of its second factors', added at the end. */
__attribute__((target("avx2,fma"))) static void multiply_row(float *c, const numbers *a, int row, int pairs,
                                                             const numbers *b, int columns)
{
    float first[PAIRS] = {0};
    float second[PAIRS] = {0};
    for (int k = 0; k < pairs; k++)
        for (int n = 0; n < columns; n++) {
            first[n] = __builtin_fmaf(a->first[row][k], b->first[k][n], first[n]);
            second[n] = __builtin_fmaf(a->second[row][k], b->second[k][n], second[n]);
        }
    for (int n = 0; n < columns; n++)
        c[n] += first[n] + second[n];
}

static void tile_multiply(int c, int a, int b, bool is_f16)
{
    numbers factors[2];
    const tile_shape sums = shape_of(c);
    const tile_shape left = shape_of(a);
    const tile_shape right = shape_of(b);
    const unsigned flush = 0x9fc0; /* MXCSR: denormals are 0, as factors and as results; ties go to even */
    require(c != a && c != b && a != b && left.rows == sums.rows && right.bytes == sums.bytes &&
            right.rows * 4 == left.bytes);
    __builtin_ia32_ldmxcsr(flush); /* the handler's end restores it */
    widen(&tiles[a], is_f16, &factors[0]);
    widen(&tiles[b], is_f16, &factors[1]);
    for (int i = 0; i < sums.rows; i++)
        multiply_row((float *)(void *)tiles[c].row[i], &factors[0], i, right.rows, &factors[1], sums.bytes / 4);
}

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

/* An instruction with a VEX prefix of three bytes, map 0F 38. */
typedef struct instruction {
    int prefix, opcode;
    int reg, vector; /* operands of the ModRM and VEX bytes */
    int rm;          /* of the ModRM byte, if that names a register; else -1 */
    unsigned char *address;
    int64_t index; /* scaled: the bytes from row to row */
    int length;
} instruction;

static int64_t general_register(const ucontext_t *state, int number)
{
    static const int place[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return state->uc_mcontext.gregs[place[number]];
}

/* The address of a memory operand; `at` begins with the ModRM byte. */
static void decode_address(instruction *x, const unsigned char *at, int high_index, int high_base,
                           const ucontext_t *state)
{
    enum { HAS_SIB = 4, NO_INDEX = 4, NO_BASE = 5, OPCODE_BYTES = 4 };
    const int mod = at[0] >> 6;
    const bool has_sib = (at[0] & 7) == HAS_SIB;
    const int low_base = has_sib ? at[1] & 7 : at[0] & 7;
    const int index = has_sib ? (at[1] >> 3 & 7) | high_index : NO_INDEX;
    const unsigned char *const displacement = at + 1 + has_sib;
    const int bytes = mod == 0 ? 0 : mod == 1 ? 1 : 4;
    int32_t offset = 0;
    require(mod != 0 || low_base != NO_BASE); /* forms without a base: not used */
    if (mod == 1)
        offset = displacement[0] < 128 ? displacement[0] : displacement[0] - 256;
    else if (mod == 2)
        memcpy(&offset, displacement, sizeof(offset));
    x->index = index == NO_INDEX ? 0 : general_register(state, index) * (INT64_C(1) << (at[1] >> 6));
    x->address = (unsigned char *)(uintptr_t)(general_register(state, low_base | high_base) + offset); // NOLINT
    x->length = OPCODE_BYTES + 1 + has_sib + bytes;
}

static bool decode(instruction *x, const unsigned char *code, const ucontext_t *state)
{
    enum { VEX = 0xc4, MAP = 2, EXTENDS_REG = 0x80, EXTENDS_INDEX = 0x40, EXTENDS_BASE = 0x20, WIDE = 0x84 };
    if (code[0] != VEX || (code[1] & 0x1f) != MAP || (code[2] & WIDE) != 0)
        return false;
    *x = (instruction){.prefix = code[2] & 3, .opcode = code[3], .rm = -1, .vector = ~(code[2] >> 3) & 15};
    x->reg = (code[4] >> 3 & 7) | ((code[1] & EXTENDS_REG) != 0 ? 0 : 8);
    if (code[4] >> 6 == 3) {
        x->rm = (code[4] & 7) | ((code[1] & EXTENDS_BASE) != 0 ? 0 : 8);
        x->length = 5;
    } else
        decode_address(x, code + 4, (code[1] & EXTENDS_INDEX) != 0 ? 0 : 8, (code[1] & EXTENDS_BASE) != 0 ? 0 : 8,
                       state);
    return true;
}

static bool execute(const instruction *x)
{
    enum { NONE, P66, PF3, PF2 };
    const bool in_memory = x->rm < 0;
    if (x->opcode == 0x49 && x->prefix == NONE && in_memory) /* ldtilecfg */
        set_layout(x->address);
    else if (x->opcode == 0x49 && x->prefix == NONE) /* tilerelease */
        has_layout = false;
    else if (x->opcode == 0x49 && x->prefix == PF2 && !in_memory) { /* tilezero */
        (void)shape_of(x->reg);
        memset(&tiles[x->reg], 0, sizeof(tile));
    } else if (x->opcode == 0x4b && (x->prefix == PF2 || x->prefix == P66) && in_memory) /* tileloadd, tileloaddt1 */
        tile_load(x->reg, x->address, x->index);
    else if (x->opcode == 0x4b && x->prefix == PF3 && in_memory) /* tilestored */
        tile_store(x->reg, x->address, x->index);
    else if (x->opcode == 0x5c && x->prefix == PF3 && !in_memory) /* tdpbf16ps */
        tile_multiply(x->reg, x->rm, x->vector, false);
    else if (x->opcode == 0x5c && x->prefix == PF2 && !in_memory && emulates_f16()) /* tdpfp16ps */
        tile_multiply(x->reg, x->rm, x->vector, true);
    else
        return false;
    return true;
}

static void on_illegal_instruction(int number, siginfo_t *info, void *context)
{
    ucontext_t *const state = context;
    instruction x;
    (void)number;
    (void)info;
    const unsigned char *const code = (const unsigned char *)(uintptr_t)state->uc_mcontext.gregs[REG_RIP]; // NOLINT
    require(decode(&x, code, state) && execute(&x));
    state->uc_mcontext.gregs[REG_RIP] += x.length;
}

/* In place of the C library's: cmocka sets handlers of its own for each test. */
__attribute__((visibility("default"))) void (*signal(int number, void (*handler)(int)))(int)
{
    const struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct sigaction before = {.sa_handler = SIG_DFL};
    if (number == SIGILL && emulates())
        return SIG_DFL;
    return sigaction(number, &action, &before) == 0 ? before.sa_handler : SIG_ERR;
}

bool __wrap_mgk_cpu_has_amx(void)
{
    return emulates() ? !__real_mgk_cpu_has_amx() && mgk_cpu_has_dots() : __real_mgk_cpu_has_amx();
}

bool __wrap_mgk_cpu_has_amx_f16(void)
{
    return emulates() ? emulates_f16() : __real_mgk_cpu_has_amx_f16();
}

clmgk_status __wrap_mgk_permit_tiles(clmgk_error *error)
{
    const struct sigaction action = {.sa_sigaction = on_illegal_instruction, .sa_flags = SA_SIGINFO};
    if (!emulates())
        return __real_mgk_permit_tiles(error);
    return sigaction(SIGILL, &action, NULL) == 0 ? CLMGK_OK : mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "sigaction");
}

#else

bool __wrap_mgk_cpu_has_amx(void)
{
    return __real_mgk_cpu_has_amx();
}

bool __wrap_mgk_cpu_has_amx_f16(void)
{
    return __real_mgk_cpu_has_amx_f16();
}

clmgk_status __wrap_mgk_permit_tiles(clmgk_error *error)
{
    return __real_mgk_permit_tiles(error);
}
#endif

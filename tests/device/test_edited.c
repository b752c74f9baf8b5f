/* SPDX-License-Identifier: Apache-2.0 */
/* The edit that turns the driver's PTX into the program that the driver gets. */
#include "device/edited.h"
#include "harness/harness.h"

#include <string.h>

#define HEADER ".version 9.0\n.target sm_90"

/* Edits a text with its NUL. */
static clmgk_status edit(const char *ptx, mgk_text *edited, size_t *marks)
{
    return mgk_ptx_edit(ptx, strlen(ptx) + 1, edited, marks, &th_error);
}

static void expect_edited(const char *ptx, const char *expected, size_t expected_marks)
{
    mgk_text edited = {0};
    size_t marks = 99;
    th_expect_ok(edit(ptx, &edited, &marks));
    assert_string_equal(edited.data, expected);
    assert_int_equal(edited.length, strlen(expected));
    assert_int_equal(marks, expected_marks);
    mgk_text_free(&edited);
}

static void expect_refused(const char *ptx, size_t length, const char *reason)
{
    mgk_text edited = {0};
    size_t marks;
    th_expect_error(mgk_ptx_edit(ptx, length, &edited, &marks, &th_error), CLMGK_ERROR_UNSUPPORTED, reason);
    mgk_text_free(&edited);
}

TH_HOST_TEST(marks_are_removed_and_the_target_raised)
{
    expect_edited(
        "// Compiler\n//\n\n  .version 9.0\n.target sm_90, texmode_independent // a target\n.address_size 64\n"
        ".visible .entry k( // @k\n\t// begin inline asm\n\t//@wgmma.fence;\n\t// end inline asm\n"
        "mov.b32 %r1, 1; //@wgmma.a {%r1}, %r2;//@b\n // no //@ mark\n",
        "// Compiler\n//\n\n  .version 9.0\n.target sm_90a, texmode_independent // a target\n.address_size 64\n"
        ".visible .entry k( // @k\n\t// begin inline asm\n\twgmma.fence;\n\t// end inline asm\n"
        "mov.b32 %r1, 1; wgmma.a {%r1}, %r2;//@b\n // no //@ mark\n",
        2);
    expect_edited(HEADER, HEADER "a", 0);
    expect_edited(HEADER "\n/ @ /\n//", HEADER "a\n/ @ /\n//", 0);
    expect_edited(HEADER "\r\n//@", HEADER "a\r\n", 1);
}

TH_HOST_TEST(other_binaries_are_refused)
{
    static const char no_ptx[] = "is not PTX: it does not begin with .version and .target";
    static const char *const texts[] = {" \n",
                                        "// only\n// comments",
                                        ".target sm_90\n.version 9.0\n",
                                        ".version 9.0\n",
                                        ".version 9.0\n.address_size 64\n.target sm_90\n",
                                        "; ModuleID = 'x'\n",
                                        ".versions 9.0\n.target sm_90\n"};
    for (size_t n = 0; n < TH_COUNT(texts); n++)
        expect_refused(texts[n], strlen(texts[n]), no_ptx);
    expect_refused("", 0, "it is no text");
    expect_refused("\0\0", 2, "it is no text");
    expect_refused(HEADER "\0\n", sizeof(HEADER) + 1, "it is no text");
    expect_refused("\177ELF\2\1\1\0\1", 9, "it is no text");
    expect_refused(HEADER "a\n", strlen(HEADER "a\n"), "PTX is for sm_90a, expected sm_90");
    expect_refused(".version 9.0\n.target sm_100, x\n", 31, "PTX is for sm_100, expected sm_90");
    expect_refused(".version 9.0\n.target // none\n", 29, "PTX is for , expected sm_90");
}

/* ---- for CUDA ------------------------------------------------------------------------------------------------ */

static void expect_for_cuda(const char *ptx, const char *expected)
{
    mgk_text out = {0};
    th_expect_ok(mgk_ptx_for_cuda(ptx, strlen(ptx) + 1, false, &out, &th_error));
    assert_string_equal(out.data, expected);
    mgk_text_free(&out);
}

TH_HOST_TEST(cuda_gets_no_registers_of_opencl)
{
    expect_for_cuda(HEADER
                    ", texmode_independent\n.address_size 64\nmov.b32 %r1, %envreg0;\nadd.u32 %r2, %r1, %envreg5;",
                    HEADER "\n.address_size 64\nmov.b32 %r1, 0;\nadd.u32 %r2, %r1, 0;");
    expect_for_cuda(HEADER "a, texmode_independent, debug // x\n// texmode_independent",
                    HEADER "a, debug // x\n// texmode_independent");
    expect_for_cuda(".version 9.0\n.target sm_100\n// , texmode_independent\n%env",
                    ".version 9.0\n.target sm_100\n// , texmode_independent\n%env");
    expect_for_cuda(HEADER, HEADER);
}

TH_HOST_TEST(arrays_of_tiles_get_their_size_from_a_launch)
{
    static const char ptx[] = HEADER "a, texmode_independent\n.address_size 64 // x\n\n// k_$_tiles has been demoted\n"
                                     ".visible .entry k(\n)\n{\n\t// demoted variable\n"
                                     "\t.shared .align 1024 .b8 k_$_matrix_tiles[16];\n"
                                     "\t.shared .align 4 .b8 k_$_beta[1024]; // b_tiles[1]\n"
                                     "\tmov.u64 %rd1, k_$_matrix_tiles;\n\tmov.u32 %r1, %envreg3;\n"
                                     ".shared .b8 other_tiles[4];";
    static const char expected[] = HEADER "a\n.address_size 64 // x\n"
                                          ".extern .shared .align 1024 .b8 k_$_matrix_tiles[];\n"
                                          ".extern .shared .b8 other_tiles[];\n\n// k_$_tiles has been demoted\n"
                                          ".visible .entry k(\n)\n{\n\t// demoted variable\n"
                                          "\t.shared .align 4 .b8 k_$_beta[1024]; // b_tiles[1]\n"
                                          "\tmov.u64 %rd1, k_$_matrix_tiles;\n\tmov.u32 %r1, 0;\n";
    mgk_text out = {0};
    th_expect_ok(mgk_ptx_for_cuda(ptx, strlen(ptx) + 1, true, &out, &th_error));
    assert_string_equal(out.data, expected);
    mgk_text_free(&out);
}

TH_HOST_TEST(cuda_gets_no_other_binaries)
{
    static const struct {
        const char *ptx, *reason;
        bool dynamic;
    } refused[] = {{"\177ELF", "is not PTX: it does not begin", false},
                   {"", "it is no text", false},
                   {HEADER "\nmov.b32 %r1, %envreg6;", "reads %envreg6", false},
                   {HEADER "\nmov.b32 %r1, %envreg31;", "reads %envreg31", false},
                   {HEADER "\n.shared .b8 a_tiles[16];", "no .address_size", true},
                   {HEADER "\n.address_size 64\n.shared .b8 a[16];", "declares no array", true},
                   {HEADER "\n.address_size 64\n.shared .b8 a_tiles[16];\n%envreg6", "reads %envreg6", true}};
    for (size_t n = 0; n < TH_COUNT(refused); n++) {
        mgk_text out = {0};
        th_expect_error(mgk_ptx_for_cuda(refused[n].ptx, strlen(refused[n].ptx), refused[n].dynamic, &out, &th_error),
                        CLMGK_ERROR_UNSUPPORTED, refused[n].reason);
        mgk_text_free(&out);
    }
}

static void *no_memory(size_t bytes, void *user)
{
    (void)bytes;
    (void)user;
    return NULL;
}

static void release_nothing(void *memory, void *user)
{
    (void)user;
    assert_null(memory);
}

TH_HOST_TEST(without_memory_it_fails)
{
    const clmgk_allocator allocator = {no_memory, release_nothing, NULL};
    mgk_text edited = {.allocator = &allocator};
    size_t marks;
    th_expect_error(edit(HEADER, &edited, &marks), CLMGK_ERROR_OUT_OF_HOST_MEMORY, "an edited program");
    mgk_text_free(&edited);
}

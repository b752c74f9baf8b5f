/* SPDX-License-Identifier: Apache-2.0 */
/* The language of scores and masks: values, messages, canonical form, derivatives, ranges, and broken texts. */
#include "expression/expression.h"
#include "harness/harness.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUNCTION static inline
#define floor    floorf
#include "attention/float_ranges.clh"
#undef floor

/* ---- what texts may name ----------------------------------------------------------------------------------------- */

enum { CAPTURE_T, CAPTURE_W, CAPTURE_DOC, CAPTURE_D, CAPTURES };
enum { NUMBER_C, NUMBER_K, NUMBERS };

static const mgk_symbol captures[CAPTURES] = {
    {"t", MGK_FLOAT, 2}, {"w", MGK_FLOAT, 1}, {"doc", MGK_INT, 2}, {"D", MGK_INT, 3}};
static const char *const numbers[NUMBERS] = {"c", "k"};
static const mgk_symbols symbols = {captures, CAPTURES, numbers, NUMBERS};

static double table[12], weights[9], documents[2 * 9];
static const int documents_of[2 * 9] = {0, 0, 0, 1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2, 3, 3, 3};
static const double distances[2 * 2 * 2] = {0, 1, 2, 3, 3, 2, 1, 0};

typedef struct point {
    mgk_inputs inputs;
    double number[NUMBERS];
    mgk_values arrays[CAPTURES];
} point;

static void make_point(point *at)
{
    for (int n = 0; n < 12; ++n)
        table[n] = 0.25 * n - 1;
    for (int n = 0; n < 9; ++n)
        weights[n] = 1.5 - 0.5 * n;
    for (int n = 0; n < 18; ++n)
        documents[n] = documents_of[n];
    const double names[MGK_NAMES] = {0.75, 0, 5, 3, 1, 2, 1, 7, 9};
    *at = (point){.number = {30, 0.5},
                  .arrays = {{table, {3, 4}, {4, 1}},
                             {weights, {9}, {1}},
                             {documents, {2, 9}, {9, 1}},
                             {distances, {2, 2, 2}, {4, 2, 1}}}};
    memcpy(at->inputs.names, names, sizeof(names));
    at->inputs.numbers = at->number;
    at->inputs.captures = at->arrays;
}

static mgk_expression *extract_text(const char *text, bool mask)
{
    mgk_graph graph = {0};
    int32_t root = 0;
    th_expect_ok(mgk_parse(&graph, &symbols, text, mask, mask ? "mask_mod" : "score_mod", &root, &th_error));
    mgk_expression *const expression = mgk_extract(&graph, root);
    assert_non_null(expression);
    mgk_graph_free(&graph);
    return expression;
}

static double value_of(const mgk_expression *expression, const point *at)
{
    double *const values = calloc(expression->count, sizeof(*values));
    const double value = mgk_evaluate(expression, &at->inputs, values);
    free(values);
    return value;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static const struct {
    const char *text;
    double value;
} values[] = {
    {"s", 0.75},
    {"s + i * 2 - j", 7.75},
    {"1 + 2 * 3 - 4 / 2", 5},
    {"-2 - -3", 1},
    {"7 / 2 * 1.0", 3},
    {"-7 / 2", -3},
    {"-7 % 3", -1},
    {"7 % -3", 1},
    {"i / (j - 3)", 0},
    {"i % (j - 3)", 0},
    {"2147483647 + j", -2147483646},
    {"(-2147483647 - 1) / (2 - j)", -2147483648.0},
    {"(-2147483647 - 1) % (2 - j)", 0},
    {"abs(-2147483647 - 1 + j - 3)", -2147483648.0},
    {"65536 * 65536 + i", 5},
    {"int(3e9 * s)", 2147483647},
    {"int(-1e30)", -2147483648.0},
    {"(int) -1.75", -1},
    {"int(0.0 / 0.0)", 0},
    {"float(16777217)", 16777216},
    {"(float)7 / 2", 3.5},
    {"1 / 0.0 > 1e38", 1},
    {"(bool)0.5 + (bool)0 + true", 2},
    {"j <= i && i < 6", 1},
    {"j > i || !(i >= 5)", 0},
    {"1 < 2 == true", 1},
    {"i != 5 ? 1.5 : j == 3 ? 2 : 3", 2},
    {"let x = i - j; let y = x * x; y + x", 6},
    {"let x = 2; (x > 1) + x", 3},
    {"clamp(i - j, -1, 1)", 1},
    {"clamp(s, 0, 0.5)", 0.5},
    {"min(i, j) + max(1.5, 1)", 4.5},
    {"relu(-s) + relu(s) + relu(-2)", 0.75},
    {"abs(j - i) + abs(-0.5)", 2.5},
    {"floor(-0.25) + floor(2)", 1},
    {"exp(0) + log(1) + log1p(0) + sqrt(4) + rsqrt(4)", 3.5},
    {"tanh(0) + sin(0) + cos(0) + pow(2, 3) + erf(0)", 9},
    {"sigmoid(0) + gelu(0)", 0.5},
    {"gelu(1) - 0.841344746068543", 0},
    {"c * tanh(s / c)", 0.749843828},
    {"s + t[h, clamp(i - j, 0, 3)]", 2.25},
    {"t[-5, 99]", -0.25},
    {"t[i / 4, true]", 0.25},
    {"w[j] * s * s", 0},
    {"doc[b, i] == doc[b, j]", 1},
    {"D[0, 1, doc[0, 3]]", 3},
    {"t[h, D[b, i, j]]", 1},
    {".5 + 5e-1 + 0.05E+1f + 1.f", 2.5},
    {"b + h * 10 + g * 100 + r * 1000 + N * 10000 + S * 100000", 970121},
    {"16777216.0 + 1", 16777216},
    {"0.1 * 10 == 1", 1},
};

TH_HOST_TEST(test_values)
{
    point at;
    make_point(&at);
    for (size_t n = 0; n < TH_COUNT(values); ++n) {
        mgk_expression *const expression = extract_text(values[n].text, false);
        const double value = value_of(expression, &at);
        mgk_free(NULL, expression);
        if (!(fabs(value - values[n].value) <= 1e-6 * fmax(1, fabs(value))))
            fail_msg("%s: %.9g: expected %.9g", values[n].text, value, values[n].value);
    }
}

/* A number has its float's value, as in a kernel. */
TH_HOST_TEST(test_literals)
{
    point at;
    make_point(&at);
    static const struct {
        const char *text;
        float value;
    } literals[] = {{"0.1", 0.1F},        {"3.14159265358979", 3.14159265358979F},
                    {"1e-45", 1e-45F},    {"1e-60", 0},
                    {"3.4e38", 3.4e38F},  {"123456789012345678901234567890.0", 1.23456789e29F},
                    {"1.0 / 3", 1.F / 3}, {"0.00000000000000000000000000000000000000000000001e40", 1e-7F}};
    for (size_t n = 0; n < TH_COUNT(literals); ++n) {
        mgk_expression *const expression = extract_text(literals[n].text, false);
        const double value = value_of(expression, &at);
        mgk_free(NULL, expression);
        if (value != (double)literals[n].value)
            fail_msg("%s: %.9g: expected %.9g", literals[n].text, value, (double)literals[n].value);
    }
}

/* Reads that C would not make do not count. */
TH_HOST_TEST(test_reads_outside)
{
    static const struct {
        const char *text;
        size_t outside;
    } cases[] = {{"t[h, 3]", 0},
                 {"t[h, 4] + t[3, 4] + w[-1]", 3},
                 {"i < 5 ? w[i + 9] : w[i]", 0},
                 {"i == 5 ? w[i + 9] : w[i]", 1},
                 {"j < 4 || w[j - 9] > 0", 0},
                 {"j < 3 || w[j - 9] > 0", 1},
                 {"j < 3 && w[j - 9] > 0", 0},
                 {"w[doc[0, 10]]", 1}};
    point at;
    make_point(&at);
    for (size_t n = 0; n < TH_COUNT(cases); ++n) {
        mgk_expression *const expression = extract_text(cases[n].text, false);
        double *const results = calloc(expression->count, sizeof(*results));
        bool *const needed = calloc(expression->count, sizeof(*needed));
        mgk_evaluate(expression, &at.inputs, results);
        const size_t outside = mgk_reads_outside(expression, &at.inputs, results, needed);
        if (outside != cases[n].outside)
            fail_msg("%s: %zu reads outside: expected %zu", cases[n].text, outside, cases[n].outside);
        free(results);
        free(needed);
        mgk_free(NULL, expression);
    }
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static const struct {
    const char *text, *message;
} score_errors[] = {
    {"", "score_mod: line 1, column 1: expected a number, a name or '(', found the end of the text"},
    {"s +", "line 1, column 4: expected a number, a name or '(', found the end of the text"},
    {"s s", "line 1, column 3: expected an operator or the end of the text, found 's'"},
    {"(s", "line 1, column 3: expected ')', found the end of the text"},
    {"s +\n  tanhh(s)", "line 2, column 3: unknown function 'tanhh'; nearest: 'tanh'"},
    {"docs[b, i]", "line 1, column 1: unknown name 'docs'; nearest: 'doc'"},
    {"let apple = 1; appel", "line 1, column 16: unknown name 'appel'; nearest: 'apple'"},
    {"zzzzzzzzzz", "line 1, column 1: unknown name 'zzzzzzzzzz'"},
    {"t[h]", "line 1, column 1: 't' has 2 axes: found 1 index"},
    {"w[h, 1, 2, 3, 4]", "line 1, column 1: 'w' has 1 axis: found 5 indices"},
    {"w", "line 1, column 2: expected '[' after an array's name, found the end of the text"},
    {"w[s]", "line 1, column 1: index 1 of 'w' is a float: expected an int, as int(x) makes"},
    {"c[0]", "line 1, column 2: expected an operator or the end of the text, found '['"},
    {"exp(1, 2)", "line 1, column 1: 'exp' takes 1 argument: found 2"},
    {"clamp(1)", "line 1, column 1: 'clamp' takes 3 arguments: found 1"},
    {"exp", "line 1, column 4: expected '(' after a function's name"},
    {"exp(1", "line 1, column 6: expected ',' or ')', found the end of the text"},
    {"s % 2", "line 1, column 3: '%' with a float: expected two ints"},
    {"s & 1", "line 1, column 3: expected an operator or operand of C, found '&'; nearest: '&&'"},
    {"s ? 1", "line 1, column 6: expected ':' of '? :', found the end of the text"},
    {"s = 1", "line 1, column 3: expected an operator or the end of the text, found '='"},
    {"let s = 1; s", "line 1, column 5: expected a name that is not taken, found 's'"},
    {"let x = 1; let x = 2; x", "line 1, column 16: expected a name that is not taken, found 'x'"},
    {"let t = 1; t", "line 1, column 5: expected a name that is not taken, found 't'"},
    {"let x = x; x", "line 1, column 9: unknown name 'x'"},
    {"let x = 1 x", "line 1, column 11: expected an operator or ';', found 'x'"},
    {"let 1", "line 1, column 5: expected a name after 'let', found '1'"},
    {"let x 1", "line 1, column 7: expected '=', found '1'"},
    {"s + let x = 1; x", "line 1, column 5: expected a number, a name or '(', found 'let'"},
    {"2147483648", "line 1, column 1: a number is too large: expected at most 2147483647 for an int"},
    {"1e39", "line 1, column 1: a number is too large: expected at most 3.4e38"},
    {"12x", "line 1, column 1: a number ends with 'x': expected digits"},
    {"1.2.3", "line 1, column 1: a number ends with '.': expected digits"},
    {"010", "line 1, column 1: an int begins with 0: expected a decimal number"},
    {"s + \"x\"", "line 1, column 5: expected an operator or operand of C, found '\"'"},
    {"s\t+\n\n  \303\251", "line 3, column 3: expected a character of ASCII, found byte 0xc3"},
    {"s,s", "line 1, column 2: expected an operator or the end of the text, found ','"},
    {"{s}", "line 1, column 1: expected an operator or operand of C, found '{'"},
};

static void expect_parse_error(const char *text, bool mask, const char *message)
{
    mgk_graph graph = {0};
    int32_t root = 0;
    th_expect_error(mgk_parse(&graph, &symbols, text, mask, mask ? "mask_mod" : "score_mod", &root, &th_error),
                    CLMGK_ERROR_INVALID_VALUE, message);
    mgk_graph_free(&graph);
}

TH_HOST_TEST(test_messages)
{
    for (size_t n = 0; n < TH_COUNT(score_errors); ++n)
        expect_parse_error(score_errors[n].text, false, score_errors[n].message);
    expect_parse_error("i < s", true, "mask_mod: line 1, column 5: a mask has no 's', which scores have");
    expect_parse_error("i < r", true, "mask_mod: line 1, column 5: a mask has no 'r', which scores have");
    expect_parse_error("let x = i;\n x * 0.5", true, "line 2, column 2: the mask is a float: expected a condition");
    mgk_free(NULL, extract_text("i - j", true));
}

/* A text of `count` times `unit`, then `last`. */
static char *repeat(const char *unit, size_t count, const char *last)
{
    const size_t length = strlen(unit);
    char *const text = malloc(count * length + strlen(last) + 1);
    assert_non_null(text);
    for (size_t n = 0; n < count; ++n)
        memcpy(text + n * length, unit, length);
    memcpy(text + count * length, last, strlen(last) + 1);
    return text;
}

TH_HOST_TEST(test_limits)
{
    static const struct {
        const char *unit;
        size_t count;
        const char *last, *message;
    } cases[] = {
        {"(", 1000, "s", "line 1, column 65: too deep: expected at most 64 levels"},
        {"-", 1000, "s", "line 1, column 64: too deep"},
        {"(int)", 1000, "s", "too deep"},
        {"s ? 1 : ", 1000, "s", "too deep"},
        {"w[int(", 1000, "s", "too deep"},
        {" ", 65536, "s", "score_mod: the text is longer than 65536 bytes"},
        {"s+-", 21845, "s", "too long: expected at most 100000 words and operations"},
        {"x", 64, "", "unknown name 'xxx"},
    };
    for (size_t n = 0; n < TH_COUNT(cases); ++n) {
        char *const text = repeat(cases[n].unit, cases[n].count, cases[n].last);
        expect_parse_error(text, false, cases[n].message);
        free(text);
    }
    char *const longest = repeat("s+", 32767, "s");
    mgk_expression *const expression = extract_text(longest, false);
    assert_int_equal(expression->count, 32768);
    mgk_free(NULL, expression);
    free(longest);

    char lets[MGK_TEXT_LETS + 1][20] = {{0}};
    char text[sizeof(lets)] = "";
    for (size_t n = 0; n <= MGK_TEXT_LETS; ++n) {
        (void)snprintf(lets[n], sizeof(lets[n]), "let x%zu=1;", n);
        strcat(text, lets[n]);
    }
    expect_parse_error(text, false, "too many names: expected at most 256");
}

TH_HOST_TEST(test_symbols)
{
    static const char *const ninth = "n";
    static const mgk_symbol none[] = {{"a", MGK_INT, 0}}, five[] = {{"a", MGK_INT, 5}}, taken[] = {{"exp", MGK_INT, 1}},
                            strange[] = {{"1a", MGK_INT, 1}}, twice[] = {{"a", MGK_INT, 1}, {"a", MGK_INT, 1}},
                            like_number[] = {{"n", MGK_INT, 1}}, nameless[] = {{NULL, MGK_INT, 1}},
                            many[MGK_CAPTURES + 1];
    static const char *const more[MGK_NUMBERS + 1];
    static const struct {
        mgk_symbols symbols;
        const char *message;
    } cases[] = {
        {{none, 1, NULL, 0}, "captures: 'a' has 0 axes: expected 1 to 4"},
        {{five, 1, NULL, 0}, "captures: 'a' has 5 axes: expected 1 to 4"},
        {{taken, 1, NULL, 0}, "captures: the name 'exp' is built in: expected another"},
        {{strange, 1, NULL, 0}, "captures: the name is '1a': expected letters, digits and _"},
        {{nameless, 1, NULL, 0}, "captures: the name is ''"},
        {{twice, 2, NULL, 0}, "captures: the name 'a' is taken twice"},
        {{like_number, 1, &ninth, 1}, "numbers: the name 'n' is taken twice"},
        {{many, MGK_CAPTURES + 1, NULL, 0}, "captures: 9: expected at most 8"},
        {{NULL, 0, more, MGK_NUMBERS + 1}, "numbers: 17: expected at most 16"},
    };
    th_expect_ok(mgk_symbols_check(&symbols, &th_error));
    for (size_t n = 0; n < TH_COUNT(cases); ++n)
        th_expect_error(mgk_symbols_check(&cases[n].symbols, &th_error), CLMGK_ERROR_INVALID_VALUE, cases[n].message);
}

/* ---- the canonical form ------------------------------------------------------------------------------------------ */

static mgk_text print_text(const char *text, bool mask)
{
    mgk_expression *const expression = extract_text(text, mask);
    mgk_text code = {0};
    mgk_print_function(&code, mask ? "mask_mod" : "score_mod", !mask, expression, "");
    mgk_free(NULL, expression);
    assert_false(code.failed);
    return code;
}

TH_HOST_TEST(test_canonical_form)
{
    static const struct {
        const char *a, *b;
        bool same;
    } cases[] = {
        {"s + c * k", "k*c + s", true},
        {"let x = exp(s); let y = log(s); x + y", "let q = log(s); q + exp(s)", true},
        {"let unused = exp(s); s", " ( s ) ", true},
        {"i > j ? s : 0", "j < i ? s : 0.0", true},
        {"i != j ? s : 1", "i == j ? 1 : s", true},
        {"s + 2 * 3", "s + 6", true},
        {"s * 1 + (true ? c : k)", "c + s", true},
        {"- -s", "s", true},
        {"s - c", "c - s", false},
        {"s + c", "s + k", false},
        {"s / 2", "s / 3", false},
        {"w[i]", "w[j]", false},
        {"i / 2 * 1.0", "i * 1.0 / 2", false},
    };
    for (size_t n = 0; n < TH_COUNT(cases); ++n) {
        mgk_text a = print_text(cases[n].a, false), b = print_text(cases[n].b, false);
        if ((strcmp(a.data, b.data) == 0) != cases[n].same)
            fail_msg("%s: %s: expected %s programs\n%s\n%s", cases[n].a, cases[n].b,
                     cases[n].same ? "the same" : "different", a.data, b.data);
        mgk_text_free(&a);
        mgk_text_free(&b);
    }
}

TH_HOST_TEST(test_printed_code)
{
    mgk_text code = print_text("s + t[h, clamp(i - j, 0, 3)] * c - (j < 2)", false);
    assert_string_equal(code.data,
                        "FUNCTION mod_float score_mod(const mod_float s, const struct mod_pair pair, const struct "
                        "mod_data data)\n{\n"
                        "    const mod_int t4 = mod_sub_int(pair.i, pair.j);\n"
                        "    const mod_int t6 = mod_max_int(t4, mod_const_int(0));\n"
                        "    const mod_int t8 = mod_min_int(t6, mod_const_int(3));\n"
                        "    const mod_float t9 = mod_gather_0(data.c0, mod_at(data.captures + 0, 1, t8, "
                        "mod_at(data.captures + 0, 0, mod_const_int(pair.h), mod_begin())));\n"
                        "    const mod_float t11 = t9 * mod_number(data, 0);\n"
                        "    const mod_float t12 = s + t11;\n"
                        "    const mod_int t14 = mod_less_int(pair.j, mod_const_int(2));\n"
                        "    const mod_int t15 = -t14;\n"
                        "    const mod_float t16 = mod_float_of(t15);\n"
                        "    const mod_float t17 = t12 - t16;\n"
                        "    return t17;\n}\n");
    mgk_text_free(&code);
    code = print_text("c * tanh(s / c) + floor(s / c)", false); /* a quotient is a product in tanh alone */
    assert_non_null(strstr(code.data, " = mod_tanh(s * (mod_const(1.0f) / mod_number(data, 0)));\n"));
    assert_non_null(strstr(code.data, " = s / mod_number(data, 0);\n"));
    mgk_text_free(&code);
    code = print_text("s * t[h, b] + s * t[doc[b, 2], r]", false); /* vectors share what they read */
    assert_null(strstr(code.data, "mod_gather"));
    mgk_text_free(&code);
    code = print_text("true", true);
    assert_non_null(strstr(code.data, "FUNCTION mod_int mask_mod(const struct mod_pair pair, const struct mod_data "
                                      "data)\n{\n    return mod_const_int(-1);\n}\n"));
    assert_int_equal(code.data[0], 'F'); /* inline */
    mgk_text_free(&code);
    code = print_text("doc[b, j] > 0", true); /* reads are long, and called */
    assert_ptr_equal(strstr(code.data, "SHARED_FUNCTION mod_int mask_mod("), code.data);
    mgk_text_free(&code);
    mgk_expression *const mask = extract_text("j <= i && doc[b, j] > 0 && (i / 4 - j / 4 < 2 || c * i > 3)", true);
    mgk_print_ranges(&code, "mask_mod_tile", false, mask);
    assert_string_equal(code.data, "FUNCTION mod_range mask_mod_tile(const struct mod_tile tile, const struct mod_data "
                                   "data)\n{\n"
                                   "    const mod_range t2 = range_less_equal(tile.j, tile.i);\n"
                                   "    const mod_range t5 = range_any();\n"
                                   "    const mod_range t6 = range_less(range_of(0, 0), t5);\n"
                                   "    const mod_range t7 = range_min(t2, t6);\n"
                                   "    const mod_range t9 = range_div(tile.i, range_of(4, 4));\n"
                                   "    const mod_range t10 = range_div(tile.j, range_of(4, 4));\n"
                                   "    const mod_range t11 = range_sub(t9, t10);\n"
                                   "    const mod_range t13 = range_less(t11, range_of(2, 2));\n"
                                   "    const mod_float_range t15 = floats_of_ints(tile.i);\n"
                                   "    const mod_float_range t17 = floats_mul(t15, floats_at(data.numbers[0]));\n"
                                   "    const mod_range t18 = floats_less(floats_at(as_float(0x40400000u)), t17);\n"
                                   "    const mod_range t19 = range_max(t13, t18);\n"
                                   "    const mod_range t20 = range_min(t7, t19);\n"
                                   "    return t20;\n}\n");
    mgk_text_free(&code);
    mgk_print_ranges(&code, "mask_mod_block", true, mask);
    mgk_free(NULL, mask);
    assert_non_null(strstr(code.data, "data, const mgk_i64 most)"));
    assert_non_null(strstr(code.data, "    const mod_range t5 = read_range_2(&data.captures[2], data.c2, most, 2, "
                                      "tile.b, tile.j, range_of(0, 0), range_of(0, 0));\n"));
    mgk_text_free(&code);
    mgk_print_function(&code, "score_mod", true, NULL, "s");
    assert_non_null(strstr(code.data, "{\n    return s;\n}\n"));
    mgk_text_free(&code);
}

/* ---- derivatives ------------------------------------------------------------------------------------------------- */

static const char *const smooth[] = {
    "s",
    "3",
    "c * tanh(s / c)",
    "s + k * t[h, clamp(i - j, 0, 3)]",
    "log(gelu(s) + 1)",
    "w[j + 1] * s * s - w[j] / s",
    "exp(s) * sin(s) + cos(k * s) / sqrt(s) - rsqrt(s + c)",
    "pow(s, 2.5) + pow(k, s) + pow(s, k) * log1p(s)",
    "erf(s) * sigmoid(k * s) + sigmoid(-s)",
    "abs(s - 2) + abs(s) + relu(s) + relu(-s)",
    "min(s, k) * max(s, k) + clamp(s, 0, 2) + clamp(s, 0, 0.5) + clamp(s, 1, 2)",
    "i > j ? s * s : k * s",
    "i < j ? s * s : k * s",
    "let d = s - w[2]; -0.5 * d * d / (c * c) + floor(s) + int(s) * s",
    "s / (s + k) / (1 + exp(-k * s))",
    "t[0, 1] * w[1] + t[0, int(t[0, 1])] * s",
    "s + w[i] - w[j]",
};

/* Central differences in double precision. */
static void check_derivative(const char *text, const point *at, mgk_operation operation, uint32_t slot, double *where)
{
    mgk_graph graph = {0};
    int32_t root = 0;
    th_expect_ok(mgk_parse(&graph, &symbols, text, false, "score_mod", &root, &th_error));
    const int32_t by = mgk_make_leaf(&graph, operation, MGK_FLOAT, slot);
    const int32_t derivative = mgk_derive(&graph, root, by);
    double slope = 0;
    if (derivative != MGK_NONE) {
        mgk_expression *const expression = mgk_extract(&graph, derivative);
        slope = value_of(expression, at);
        mgk_free(NULL, expression);
    }
    mgk_expression *const expression = mgk_extract(&graph, root);
    const double x = *where, step = 1e-5;
    *where = x + step;
    const double above = value_of(expression, at);
    *where = x - step;
    const double below = value_of(expression, at);
    *where = x;
    const double expected = (above - below) / (2 * step);
    if (!(fabs(slope - expected) <= 1e-6 * fmax(1, fabs(expected))))
        fail_msg("%s: the derivative by %d %u is %.9g: expected %.9g", text, (int)operation, (unsigned)slot, slope,
                 expected);
    mgk_free(NULL, expression);
    mgk_graph_free(&graph);
}

TH_HOST_TEST(test_derivatives)
{
    point at;
    make_point(&at);
    for (size_t n = 0; n < TH_COUNT(smooth); ++n) {
        check_derivative(smooth[n], &at, MGK_NAME, MGK_NAME_SCORE, &at.inputs.names[MGK_NAME_SCORE]);
        check_derivative(smooth[n], &at, MGK_NUMBER, NUMBER_C, &at.number[NUMBER_C]);
        check_derivative(smooth[n], &at, MGK_NUMBER, NUMBER_K, &at.number[NUMBER_K]);
    }
}

/* Gradients of all elements: each read's derivative goes to the element that it reads. */
TH_HOST_TEST(test_array_derivatives)
{
    point at;
    make_point(&at);
    for (size_t n = 0; n < TH_COUNT(smooth); ++n) {
        mgk_graph graph = {0};
        int32_t root = 0;
        th_expect_ok(mgk_parse(&graph, &symbols, smooth[n], false, "score_mod", &root, &th_error));
        mgk_expression *const expression = mgk_extract(&graph, root);
        double *const results = calloc(graph.count + 1, sizeof(*results));
        double gradient[CAPTURES][12] = {{0}};
        const size_t count = graph.count;
        for (size_t read = 0; read < count; ++read) {
            if (graph.nodes[read].operation != MGK_READ || graph.nodes[read].type != MGK_FLOAT)
                continue;
            const int32_t derivative = mgk_derive(&graph, root, (int32_t)read);
            mgk_expression *const place = mgk_extract(&graph, (int32_t)read);
            mgk_expression *const slope = derivative == MGK_NONE ? NULL : mgk_extract(&graph, derivative);
            const mgk_node *const node = &place->nodes[place->count - 1];
            mgk_evaluate(place, &at.inputs, results);
            gradient[node->slot][mgk_element(node, &at.arrays[node->slot], results)] +=
                slope ? value_of(slope, &at) : 0;
            mgk_free(NULL, place);
            mgk_free(NULL, slope);
        }
        for (int e = 0; e < 12 + 9; ++e) {
            double *const where = e < 12 ? &table[e] : &weights[e - 12];
            const double x = *where, step = 1e-5, slope = e < 12 ? gradient[CAPTURE_T][e] : gradient[CAPTURE_W][e - 12];
            *where = x + step;
            const double above = value_of(expression, &at);
            *where = x - step;
            const double expected = (above - value_of(expression, &at)) / (2 * step);
            *where = x;
            if (!(fabs(slope - expected) <= 1e-6 * fmax(1, fabs(expected))))
                fail_msg("%s: the derivative by element %d is %.9g: expected %.9g", smooth[n], e, slope, expected);
        }
        free(results);
        mgk_free(NULL, expression);
        mgk_graph_free(&graph);
    }
}

/* The documented derivatives where there is none. */
TH_HOST_TEST(test_kinks)
{
    static const struct {
        const char *text;
        double s, slope;
    } cases[] = {
        {"abs(s)", 0, 0},
        {"relu(s)", 0, 0},
        {"min(s, 2 * s)", 0, 1},
        {"max(2 * s, s)", 0, 2},
        {"clamp(s, 0, 1)", 0, 1},
        {"clamp(s, 0, 1)", 1, 1},
        {"s < 0 ? -s : 3 * s", 0, 3},
        {"floor(s) + s", 1, 1},
        {"pow(0, s)", 2, 0},
        {"pow(s, 2)", 0, 0},
        {"s > 0 ? log(s) : 0", -1, 0},
        {"s > 0 ? sqrt(s) : s", 0, 1},
        {"sigmoid(s)", -100, 3.72008e-44},
        {"tanh(s)", 400, 0},
        {"sigmoid(s)", -800, 0},
    };
    point at;
    make_point(&at);
    for (size_t n = 0; n < TH_COUNT(cases); ++n) {
        mgk_graph graph = {0};
        int32_t root = 0;
        th_expect_ok(mgk_parse(&graph, &symbols, cases[n].text, false, "score_mod", &root, &th_error));
        const int32_t s = mgk_make_leaf(&graph, MGK_NAME, MGK_FLOAT, MGK_NAME_SCORE);
        mgk_expression *const slope = mgk_extract(&graph, mgk_derive(&graph, root, s));
        at.inputs.names[MGK_NAME_SCORE] = cases[n].s;
        const double value = value_of(slope, &at);
        if (!(fabs(value - cases[n].slope) <= 1e-4 * fabs(cases[n].slope)))
            fail_msg("%s: the derivative at %g is %g: expected %g", cases[n].text, cases[n].s, value, cases[n].slope);
        mgk_free(NULL, slope);
        mgk_graph_free(&graph);
    }
}

TH_HOST_TEST(test_dependence)
{
    static const struct {
        const char *text;
        uint32_t depends;
    } cases[] = {
        {"b + h * g", MGK_ON(BATCH) | MGK_ON(HEAD) | MGK_ON(KV_HEAD)},
        {"i / 2 + N", MGK_ON(ROW) | MGK_ON(QUERIES)},
        {"clamp(i - j, -3, 3) + 3", MGK_ON_DIFFERENCE},
        {"abs(j - i) * h", MGK_ON_DIFFERENCE | MGK_ON(HEAD)},
        {"i - j + j", MGK_ON_DIFFERENCE | MGK_ON(KEY)},
        {"D[b, i, j]", MGK_ON_DATA | MGK_ON(BATCH) | MGK_ON(ROW) | MGK_ON(KEY)},
        {"c + int(s)", MGK_ON(SCORE)},
    };
    for (size_t n = 0; n < TH_COUNT(cases); ++n) {
        mgk_expression *const expression = extract_text(cases[n].text, false);
        assert_int_equal(expression->nodes[expression->count - 1].depends, cases[n].depends);
        mgk_free(NULL, expression);
    }
}

/* ---- ranges ------------------------------------------------------------------------------------------------------ */

/* A comparison with NaN is false, whatever the range of the other numbers. */
TH_HOST_TEST(comparisons_of_what_may_be_nan)
{
    for (int nan = 0; nan < 3; nan++) {
        const mod_float_range low = floats_of(0.0f, 1.0f, nan == 1), high = floats_of(2.0f, 3.0f, nan == 2);
        const mod_float_range one = floats_of(1.0f, 1.0f, nan == 1), same = floats_of(1.0f, 1.0f, nan == 2);
        const mod_range ranges[] = {floats_less(low, high), floats_less_equal(low, high), floats_equal(one, same)};
        for (size_t i = 0; i < TH_COUNT(ranges); i++) {
            assert_int_equal(ranges[i].low, nan == 0);
            assert_int_equal(ranges[i].high, 1);
        }
    }
}

/* What a kernel's function of ranges (cl/attention/float_ranges.clh) gives: of ints and conditions, or of floats. */
typedef struct node_range {
    mod_range ints;
    mod_float_range floats;
} node_range;

/* The functions by the text that calls them (MGK_OPERATION_LIST); one of the pointers is set. */
typedef struct range_function {
    const char *code;
    mod_range (*ints_1)(mod_range);
    mod_range (*ints_2)(mod_range, mod_range);
    mod_range (*ints_3)(mod_range, mod_range, mod_range);
    mod_float_range (*floats_1)(mod_float_range);
    mod_float_range (*floats_2)(mod_float_range, mod_float_range);
    mod_float_range (*floats_3)(mod_range, mod_float_range, mod_float_range);
    mod_float_range (*of_ints)(mod_range);
    mod_range (*to_int)(mod_float_range);
    mod_range (*comparison)(mod_float_range, mod_float_range);
} range_function;

#define CALL_1(kind, function)                                                                                         \
    {                                                                                                                  \
        .code = #function "(%0)", .kind = (function)                                                                   \
    }
#define CALL_2(kind, function)                                                                                         \
    {                                                                                                                  \
        .code = #function "(%0, %1)", .kind = (function)                                                               \
    }
#define CALL_3(kind, function)                                                                                         \
    {                                                                                                                  \
        .code = #function "(%0, %1, %2)", .kind = (function)                                                           \
    }

static const range_function range_functions[] = {
    CALL_2(ints_2, range_add),        CALL_2(ints_2, range_sub),
    CALL_2(ints_2, range_mul),        CALL_2(ints_2, range_div),
    CALL_2(ints_2, range_mod),        CALL_1(ints_1, range_neg),
    CALL_2(ints_2, range_less),       CALL_2(ints_2, range_less_equal),
    CALL_2(ints_2, range_equal),      CALL_2(ints_2, range_min),
    CALL_2(ints_2, range_max),        CALL_1(ints_1, range_not),
    CALL_3(ints_3, range_select),     CALL_1(ints_1, range_abs),
    CALL_2(floats_2, floats_add),     CALL_2(floats_2, floats_sub),
    CALL_2(floats_2, floats_mul),     CALL_1(floats_1, floats_neg),
    CALL_2(comparison, floats_less),  CALL_2(comparison, floats_less_equal),
    CALL_2(comparison, floats_equal), CALL_3(floats_3, floats_select),
    CALL_1(to_int, floats_to_int),    CALL_1(of_ints, floats_of_ints),
    CALL_2(floats_2, floats_min),     CALL_2(floats_2, floats_max),
    CALL_1(floats_1, floats_abs),     CALL_1(floats_1, floats_floor),
};

static node_range call(const range_function *f, const node_range *x)
{
    if (f->floats_1)
        return (node_range){.floats = f->floats_1(x[0].floats)};
    if (f->floats_2)
        return (node_range){.floats = f->floats_2(x[0].floats, x[1].floats)};
    if (f->floats_3)
        return (node_range){.floats = f->floats_3(x[0].ints, x[1].floats, x[2].floats)};
    if (f->of_ints)
        return (node_range){.floats = f->of_ints(x[0].ints)};
    return (node_range){.ints = f->ints_1       ? f->ints_1(x[0].ints)
                                : f->ints_2     ? f->ints_2(x[0].ints, x[1].ints)
                                : f->ints_3     ? f->ints_3(x[0].ints, x[1].ints, x[2].ints)
                                : f->comparison ? f->comparison(x[0].floats, x[1].floats)
                                                : f->to_int(x[0].floats)};
}

/* As generated code does it: a function without a code may give anything. */
static node_range operation_range(const mgk_node *node, const node_range *x)
{
    static const char *const codes[][2] = {
#define RANGE_CODES(name, count, floats, ints, ranges, float_ranges) {ranges, float_ranges},
        MGK_OPERATION_LIST(RANGE_CODES)
#undef RANGE_CODES
    };
    const char *const code = codes[node->operation][node->from == MGK_FLOAT];
    if (code[0] == '\0')
        return (node_range){node->type == MGK_BOOL ? range_either() : range_any(), floats_any()};
    if (strcmp(code, "%0") == 0)
        return x[0];
    for (size_t n = 0; n < TH_COUNT(range_functions); ++n) {
        if (strcmp(code, range_functions[n].code) == 0)
            return call(&range_functions[n], x);
    }
    fail_msg("the range %s is not tested", code);
    return x[0];
}

/* Includes x in a range; the first element begins it. */
static void include(node_range *range, bool first, double x)
{
    const mod_range ints =
        range_of((mgk_i64)fmin(fmax(x, INT32_MIN), INT32_MAX), (mgk_i64)fmin(fmax(x, INT32_MIN), INT32_MAX));
    const mod_float_range floats = floats_at((float)x);
    range->ints =
        first ? ints : range_of(range_least(range->ints.low, ints.low), range_most(range->ints.high, ints.high));
    range->floats = first ? floats : floats_join(range->floats, floats);
}

/* The range of the elements whose clamped indices lie in the ranges. */
static node_range read_range(const mgk_node *read, const mgk_values *array, const node_range *indices)
{
    node_range range = {{0, 0}, {0, 0, false}};
    int64_t first[MGK_READ_AXES] = {0}, last[MGK_READ_AXES] = {0}, at[MGK_READ_AXES];
    for (int a = 0; a < read->count; ++a) {
        const mod_range axis = range_of(0, array->extents[a] - 1);
        first[a] = range_most(range_least(indices[a].ints.low, axis.high), 0);
        last[a] = range_most(range_least(indices[a].ints.high, axis.high), 0);
    }
    bool none = true;
    for (at[0] = first[0]; at[0] <= last[0]; ++at[0])
        for (at[1] = first[1]; at[1] <= last[1]; ++at[1])
            for (at[2] = first[2]; at[2] <= last[2]; ++at[2])
                for (at[3] = first[3]; at[3] <= last[3]; ++at[3]) {
                    include(&range, none,
                            array->data[at[0] * array->strides[0] + at[1] * array->strides[1] +
                                        at[2] * array->strides[2] + at[3] * array->strides[3]]);
                    none = false;
                }
    return range;
}

/* Pairs whose queries and keys lie in these ranges. */
typedef struct box {
    mod_range rows, keys;
} box;

static node_range range_of_node(const mgk_node *node, const point *at, const box *pairs, const node_range *ranges)
{
    node_range x[MGK_READ_AXES] = {0};
    for (int a = 0; a < node->count; ++a)
        x[a] = ranges[node->arguments[a]];
    const double value = node->operation == MGK_NUMBER ? at->number[node->slot]
                         : node->operation == MGK_NAME ? at->inputs.names[node->slot]
                                                       : node->value;
    if (node->operation == MGK_READ)
        return read_range(node, &at->arrays[node->slot], x);
    if (node->operation > MGK_READ)
        return operation_range(node, x);
    if (node->operation == MGK_NAME && (node->slot == MGK_NAME_ROW || node->slot == MGK_NAME_KEY))
        return (node_range){.ints = node->slot == MGK_NAME_ROW ? pairs->rows : pairs->keys};
    include(&x[0], true, value);
    return x[0];
}

static void evaluate_ranges(const mgk_expression *expression, const point *at, const box *pairs, node_range *ranges)
{
    for (size_t n = 0; n < expression->count; ++n)
        ranges[n] = range_of_node(&expression->nodes[n], at, pairs, ranges);
}

static bool is_in(const mgk_node *node, double value, const node_range *range)
{
    if (node->type != MGK_FLOAT)
        return value >= (double)range->ints.low && value <= (double)range->ints.high;
    return isnan(value) ? range->floats.nan : value >= (double)range->floats.low && value <= (double)range->floats.high;
}

/* The value of each operation, which a device may take for 0 if it is too small for its type, is in its range. */
static void check_values(const mgk_expression *expression, const double *results, const node_range *ranges,
                         const char *text, const point *at)
{
    for (size_t n = 0; n < expression->count; ++n) {
        const mgk_node *const node = &expression->nodes[n];
        const bool tiny = node->type == MGK_FLOAT && fabs(results[n]) < (double)FLT_MIN;
        if (!is_in(node, results[n], &ranges[n]) || (tiny && !is_in(node, 0, &ranges[n])))
            fail_msg("%s: operation %zu at (%g, %g): %g is not in %lld ... %lld or %g ... %g", text, n,
                     at->inputs.names[MGK_NAME_ROW], at->inputs.names[MGK_NAME_KEY], results[n],
                     (long long)ranges[n].ints.low, (long long)ranges[n].ints.high, (double)ranges[n].floats.low,
                     (double)ranges[n].floats.high);
    }
}

/* Masks, with the number of 3 x 3 tiles of 12 x 9 pairs whose pairs are all alike, although their ranges do not say so.
 */
static const struct {
    const char *text;
    int missed;
} masks[] = {
    {"j <= i", 0},
    {"j <= i && i - j < 4", 0},
    {"doc[b, i] == doc[b, j]", 0},
    {"doc[b, i] == doc[b, j] && j <= i", 0},
    {"abs(i - j) <= 100", 0},
    {"i / 4 - j / 4 <= 1 && i / 4 - j / 4 >= -1 && i % 4 - j % 4 < 2", 0},
    {"i % 3 == 7 % 3", 0},
    {"min(i, 3) > max(j, 4)", 0},
    {"clamp(i - j, -2, 2) > 2", 0},
    {"(i + 2147483647) * 1.0 < 0", 9},
    {"i / (j - 4) >= 2", 0},
    {"i % (j - 4) >= 2", 0},
    {"w[j] * w[i] > 0.25", 0},
    {"exp(w[j]) + log(i * 1.0) > 4", 8},
    {"sqrt(t[0, j]) >= 0 || tanh(w[i]) < -0.5 ", 9},
    {"pow(1.0 + i, 2) > 50 || rsqrt(1.0 + j) > 0.5", 10},
    {"j < 3 || D[b, i, j - 3] > 1", 0},
    {"(i < 3 ? j : -j) <= 0", 0},
    {"!(i < 3) && int(w[j] / 0.0) < 0", 6},
    {"sigmoid(w[j]) < 0.1 && sin(i * 1.0) < 2", 8},
    {"floor(i / 2.0) == 1 || -i > -3 || log1p(j) < 0", 6},
    {"abs(w[i]) < 0.01 * (i - 3)", 3},
    {"0.0 * (1.0 / (i - 4)) == 0", 9},
};

enum { ROWS = 12, KEYS = 9, TILE = 3 };

/* Compares a tile with its pairs. Returns whether all are alike, and the range does not say so. */
static bool check_tile(const mgk_expression *expression, point *at, int row, int key, const char *text)
{
    node_range *const ranges = calloc(expression->count, sizeof(*ranges));
    double *const results = calloc(expression->count, sizeof(*results));
    evaluate_ranges(expression, at, &(box){range_of(row, row + TILE - 1), range_of(key, key + TILE - 1)}, ranges);
    const mod_range range = ranges[expression->count - 1].ints;
    bool some = false, all = true;
    for (int i = row; i < row + TILE; ++i) {
        for (int j = key; j < key + TILE; ++j) {
            at->inputs.names[MGK_NAME_ROW] = i;
            at->inputs.names[MGK_NAME_KEY] = j;
            const bool visible = mgk_evaluate_single(expression, &at->inputs, results) != 0;
            some = some || visible;
            all = all && visible;
            check_values(expression, results, ranges, text, at);
        }
    }
    free(results);
    free(ranges);
    return some == all && range.low != range.high;
}

/* Masks, and the bands of keys that they are; others are none. */
static const struct {
    const char *text;
    bool found;
    mgk_band band;
} bands[] = {
    {"j <= i", true, {INT64_MIN, 0, false}},
    {"i + S - N >= j", true, {INT64_MIN, 0, true}},
    {"j < i + 4 && i - j < 3", true, {-2, 3, false}},
    {"abs(j - i) <= 16 && j <= i", true, {-16, 0, false}},
    {"let d = j - i - (S - N); d >= -30 && -d > -12", true, {-30, 11, true}},
    {"j <= i + 1000000000", true, {INT64_MIN, 1000000000, false}},
    {"j < i", true, {INT64_MIN, -1, false}},
    {"true", true, {INT64_MIN, INT64_MAX, false}},
    {"j <= i && j <= i + S - N", false, {0}}, /* two diagonals */
    {"j <= i || j < 4", false, {0}},
    {"j <= i + 2147483647", false, {0}}, /* a sum that overflows */
    {"2 * j <= 2 * i", false, {0}},
    {"j + j <= i + j", true, {INT64_MIN, 0, false}},
    {"j <= i + N", false, {0}},
    {"j <= i + h", false, {0}},
    {"j <= i && doc[b, i] == doc[b, j]", false, {0}},
    {"j * 1.0 <= i", false, {0}},
    {"!(j <= i)", false, {0}},
    {"i / 4 == j / 4", false, {0}},
    {"!(j == i)", false, {0}},
};

TH_HOST_TEST(test_bands)
{
    for (size_t n = 0; n < TH_COUNT(bands); ++n) {
        mgk_expression *const expression = extract_text(bands[n].text, true);
        mgk_band band;
        const bool found = mgk_find_band(expression, 1 << 20, &band);
        if (found != bands[n].found)
            fail_msg("%s: %s band", bands[n].text, found ? "a" : "no");
        if (found &&
            (band.low != bands[n].band.low || band.high != bands[n].band.high || band.at_end != bands[n].band.at_end))
            fail_msg("%s: %lld ... %lld, %d", bands[n].text, (long long)band.low, (long long)band.high, band.at_end);
        mgk_free(NULL, expression);
    }
}

TH_HOST_TEST(test_ranges)
{
    point at;
    make_point(&at);
    for (size_t n = 0; n < TH_COUNT(masks); ++n) {
        mgk_expression *const expression = extract_text(masks[n].text, true);
        int missed = 0;
        for (int i = 0; i < ROWS; i += TILE) {
            for (int j = 0; j < KEYS; j += TILE)
                missed += check_tile(expression, &at, i, j, masks[n].text);
        }
        if (missed != masks[n].missed)
            fail_msg("%s: %d tiles are not decided: expected %d", masks[n].text, missed, masks[n].missed);
        mgk_free(NULL, expression);
    }
}

/* Every box of queries and keys among `ends`, against each of its pairs. */
static void check_boxes(const char *text, point *at, const double *ends, size_t count)
{
    mgk_expression *const expression = extract_text(text, false);
    node_range ranges[32];
    double results[32];
    assert_in_range(expression->count, 1, 32);
    for (size_t n = 0; n < count * count * count * count; ++n) {
        const size_t low[2] = {n % count, n / count % count};
        const size_t high[2] = {n / (count * count) % count, n / (count * count * count)};
        if (low[0] > high[0] || low[1] > high[1])
            continue;
        const box pairs = {range_of((mgk_i64)ends[low[0]], (mgk_i64)ends[high[0]]),
                           range_of((mgk_i64)ends[low[1]], (mgk_i64)ends[high[1]])};
        evaluate_ranges(expression, at, &pairs, ranges);
        for (size_t i = low[0]; i <= high[0]; ++i) {
            for (size_t j = low[1]; j <= high[1]; ++j) {
                at->inputs.names[MGK_NAME_ROW] = ends[i];
                at->inputs.names[MGK_NAME_KEY] = ends[j];
                mgk_evaluate_single(expression, &at->inputs, results);
                check_values(expression, results, ranges, text, at);
            }
        }
    }
    mgk_free(NULL, expression);
}

/* Ints at the ends of their type. */
TH_HOST_TEST(test_extreme_ints)
{
    static const double ends[] = {INT32_MIN, INT32_MIN + 1, -7, -1, 0, 1, 2, 7, INT32_MAX};
    static const char *const texts[] = {"i + j",
                                        "i - j",
                                        "i * j",
                                        "i / j",
                                        "i % j",
                                        "-i",
                                        "abs(i) % j",
                                        "min(i, j) - max(i, j)",
                                        "i < j ? i : j",
                                        "int(1e9 * i / j)",
                                        "1e38 * i - 1e38 * j",
                                        "1e-38 * i * 1e-3 > 0 ? 1 : 2"};
    point at;
    make_point(&at);
    for (size_t n = 0; n < TH_COUNT(texts); ++n)
        check_boxes(texts[n], &at, ends, TH_COUNT(ends));
}

/* Floats at the ends of their type, and those that are too small for it. */
TH_HOST_TEST(test_extreme_floats)
{
    static const double floats[9] = {-INFINITY, -(double)FLT_MAX, -2.5, -0x1p-140, 0, 0x1p-127, 1.5, 3e9, INFINITY};
    static const double holes[9] = {-INFINITY, NAN, -2.5, -(double)FLT_MIN, 0, (double)FLT_MIN, 1.5, NAN, INFINITY};
    static const double ends[] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    static const char *const texts[] = {"w[i] + w[j]",
                                        "w[i] - w[j]",
                                        "w[i] * w[j]",
                                        "-w[i] + abs(w[j])",
                                        "floor(w[i]) * int(abs(w[j]) + 3)",
                                        "min(w[i], w[j])",
                                        "max(w[i], w[j])",
                                        "(w[i] < w[j]) + 2 * (w[i] <= w[j]) + 4 * (w[i] == w[j])",
                                        "w[i] < 0.5 ? w[i] : w[j]",
                                        "abs(w[i]) + 1.0 / 0 == 1.0 / 0 ? 1 : 0"};
    point at;
    make_point(&at);
    for (size_t n = 0; n < 2 * TH_COUNT(texts); ++n) {
        at.arrays[CAPTURE_W].data = n % 2 ? holes : floats;
        check_boxes(texts[n / 2], &at, ends, TH_COUNT(ends));
    }
}

/* ---- broken texts ------------------------------------------------------------------------------------------------ */

/* A generator of its own, so that a seed gives the same texts everywhere. */
static uint32_t draw(uint64_t *state, uint32_t limit)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % limit);
}

static const char *any_text(uint64_t *state)
{
    const uint32_t n = draw(state, (uint32_t)(TH_COUNT(values) + TH_COUNT(smooth) + TH_COUNT(masks)));
    return n < TH_COUNT(values)                      ? values[n].text
           : n < TH_COUNT(values) + TH_COUNT(smooth) ? smooth[n - TH_COUNT(values)]
                                                     : masks[n - TH_COUNT(values) - TH_COUNT(smooth)].text;
}

/* Copies a part of a text, or a piece of the language, into another text, over some of its letters. */
static void mutate(uint64_t *state, char *text, size_t size)
{
    static const char *const pieces[] = {"(",        ")",   "[",     "]",          "?",      ":",   ",",   ";",
                                         "let x = ", "x",   "-",     "%",          "1e9",    ".",   "&&",  "\n",
                                         "\377",     "int", "(int)", "9999999999", "t[i,j]", "doc", "pow("};
    char rest[512];
    const size_t length = strlen(text), at = draw(state, (uint32_t)length + 1);
    const size_t over = draw(state, (uint32_t)(length - at) + 1) % 8;
    const char *const piece = draw(state, 3) ? pieces[draw(state, (uint32_t)TH_COUNT(pieces))] : any_text(state);
    (void)snprintf(rest, sizeof(rest), "%s", text + at + over);
    (void)snprintf(text + at, size - at, "%s%s", piece, rest);
}

/* Whatever parses can be derived, copied, printed and evaluated. */
static bool use_text(const char *text, const point *at, bool mask)
{
    mgk_graph graph = {0};
    int32_t root = 0;
    clmgk_error error = {0};
    const clmgk_status status = mgk_parse(&graph, &symbols, text, mask, "text", &root, &error);
    if (status == CLMGK_OK) {
        const int32_t s = mgk_make_leaf(&graph, MGK_NAME, MGK_FLOAT, MGK_NAME_SCORE);
        const int32_t slope = mask ? MGK_NONE : mgk_derive(&graph, root, s);
        th_expect_ok(mgk_graph_status(&graph, &th_error));
        mgk_expression *const expression = mgk_extract(&graph, slope == MGK_NONE ? root : slope);
        mgk_text code = {0};
        mgk_print_function(&code, "score_mod", true, expression, "");
        assert_false(code.failed);
        mgk_text_free(&code);
        value_of(expression, at);
        mgk_free(NULL, expression);
    } else {
        assert_int_equal(status, CLMGK_ERROR_INVALID_VALUE);
        assert_non_null(strstr(error.message, "text: line "));
    }
    mgk_graph_free(&graph);
    return status == CLMGK_OK;
}

TH_HOST_TEST(test_mutated_texts)
{
    const char *const full = getenv("CLMGK_TEST_FULL");
    const int count = full && strcmp(full, "1") == 0 ? 200000 : 20000;
    point at;
    make_point(&at);
    uint64_t state = 74;
    int parsed = 0;
    for (int n = 0; n < count; ++n) {
        char text[512];
        (void)snprintf(text, sizeof(text), "%s", any_text(&state));
        for (uint32_t changes = 1 + draw(&state, 4); changes > 0; --changes)
            mutate(&state, text, sizeof(text));
        parsed += use_text(text, &at, draw(&state, 2) != 0);
    }
    assert_in_range(parsed, count / 50, count / 2);
}

/* ---- a problem's score and mask ---------------------------------------------------------------------------------- */

TH_HOST_TEST(test_formulas)
{
    const uint32_t all = 1u << CAPTURE_T | 1u << CAPTURE_W | 1u << MGK_CAPTURES;
    const mgk_formula_texts texts = {
        symbols, "c * tanh(s / c) + w[i] - w[j] + w[h] * t[b, abs(i - j)] + t[h, D[b, i, j]] + t[0, doc[b, i]]",
        "doc[b, i] == doc[b, j] && w[3] > 0", all};
    static const struct {
        uint32_t capture;
        mgk_index_class index;
    } reads[] = {{CAPTURE_W, MGK_INDEX_ROW},        {CAPTURE_W, MGK_INDEX_KEY}, {CAPTURE_W, MGK_INDEX_HEAD},
                 {CAPTURE_T, MGK_INDEX_DIFFERENCE}, {CAPTURE_T, MGK_INDEX_ANY}, {CAPTURE_T, MGK_INDEX_ROW}};
    mgk_formulas f;
    th_expect_ok(mgk_formulas_make(NULL, &texts, &f, &th_error));
    assert_int_equal(f.read_count, TH_COUNT(reads));
    for (size_t n = 0; n < TH_COUNT(reads); ++n) { /* in the order of the canonical form */
        size_t k = 0;
        while (k < f.read_count && (f.reads[k].capture != reads[n].capture || f.reads[k].index != reads[n].index))
            ++k;
        assert_in_range(k, 0, f.read_count - 1);
        assert_non_null(f.reads[k].slope);
    }
    assert_non_null(f.by_number[NUMBER_C]);
    assert_null(f.by_number[NUMBER_K]);
    static const char *const functions[] = {
        "score_mod",          "score_mod_slope", "mask_mod", "score_mod_by_number_0", "score_mod_by_number_1",
        "score_mod_by_read_5"};
    for (size_t n = 0; n < TH_COUNT(functions); ++n) {
        char text[64];
        (void)snprintf(text, sizeof(text), " %s(const", functions[n]);
        assert_non_null(strstr(f.code.data, text));
    }
    mgk_formulas_free(&f);

    th_expect_ok(mgk_formulas_make(NULL, &(mgk_formula_texts){.symbols = symbols}, &f, &th_error));
    assert_null(f.score);
    assert_non_null(strstr(f.code.data, "return mod_const(1.0f);"));
    mgk_formulas_free(&f);
    const mgk_formula_texts ints = {symbols, "s", NULL, 1u << CAPTURE_D};
    th_expect_error(mgk_formulas_make(NULL, &ints, &f, &th_error), CLMGK_ERROR_INVALID_VALUE,
                    "gradients: 'D' is an array of ints: expected floats");
    const mgk_formula_texts wrong = {symbols, "s", "q", 0};
    th_expect_error(mgk_formulas_make(NULL, &wrong, &f, &th_error), CLMGK_ERROR_INVALID_VALUE,
                    "mask_mod: line 1, column 1: unknown name 'q'");
    char text[1024] = "s";
    for (int n = 0; n <= MGK_READS; ++n)
        (void)snprintf(text + strlen(text), sizeof(text) - strlen(text), "+w[i+%d]", n);
    const mgk_formula_texts many = {symbols, text, NULL, 1u << CAPTURE_W};
    th_expect_error(mgk_formulas_make(NULL, &many, &f, &th_error), CLMGK_ERROR_UNSUPPORTED,
                    "score_mod: more than 32 reads of arrays with gradients");
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

typedef struct budget {
    int live, left;
} budget;

static void *allocate(size_t bytes, void *user)
{
    budget *const b = user;
    void *const memory = b->left-- > 0 ? malloc(bytes) : NULL;
    b->live += memory != NULL;
    return memory;
}

static void release(void *memory, void *user)
{
    ((budget *)user)->live -= memory != NULL;
    free(memory);
}

/* Every allocation fails in turn. */
TH_HOST_TEST(test_memory)
{
    const mgk_formula_texts texts = {symbols, smooth[6], masks[3].text, 1u << CAPTURE_W | 1u << MGK_CAPTURES};
    clmgk_status status = CLMGK_ERROR_OUT_OF_HOST_MEMORY;
    for (int allowed = 0; status != CLMGK_OK; ++allowed) {
        budget b = {.left = allowed};
        const clmgk_allocator allocator = {.allocate = allocate, .release = release, .user = &b};
        mgk_formulas f;
        status = mgk_formulas_make(&allocator, &texts, &f, &th_error);
        assert_true(status == CLMGK_OK || status == CLMGK_ERROR_OUT_OF_HOST_MEMORY);
        if (status == CLMGK_OK)
            mgk_formulas_free(&f);
        assert_int_equal(b.live, 0);
        assert_in_range(allowed, 0, 100);
    }
}

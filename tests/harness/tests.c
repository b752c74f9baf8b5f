/* SPDX-License-Identifier: Apache-2.0 */
/* A program's tests, which their definitions add before main begins, and the error of the calls that they make. */
#include "harness/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TESTS = 100 };

static th_test tests[MOST_TESTS];
static size_t test_count;

void th_add_test(const th_test *test)
{
    size_t at = test_count++;
    if (test_count > MOST_TESTS)
        abort();
    for (; at > 0 && tests[at - 1].line > test->line; at--)
        tests[at] = tests[at - 1];
    tests[at] = *test;
}

clmgk_error th_error;

void th_expect_ok(clmgk_status status)
{
    if (status != CLMGK_OK)
        fail_msg("%s: %s", clmgk_status_name(status), th_error.message);
    if (th_error.status != CLMGK_OK) /* success leaves the record unchanged */
        fail_msg("a call succeeded, and its error record has %s: %s", clmgk_status_name(th_error.status),
                 th_error.message);
    th_error = (clmgk_error){0};
}

void th_expect_error(clmgk_status status, clmgk_status expected, const char *words)
{
    if (status != expected || th_error.status != expected || !strstr(th_error.message, words))
        fail_msg("%s \"%s\": expected %s with \"%s\"", clmgk_status_name(status), th_error.message,
                 clmgk_status_name(expected), words);
    th_error = (clmgk_error){0};
}

void th_expect_refusal(clmgk_status status, clmgk_status expected, const char *field, const char *value)
{
    if (!th_has_word(th_error.message, field) || strchr(th_error.message, '\n'))
        fail_msg("%s \"%s\": expected one line with \"%s\"", clmgk_status_name(status), th_error.message, field);
    th_expect_error(status, expected, value);
}

void th_expect_refused(const clmgk_attention_desc *desc, clmgk_status status, const char *field, const char *value)
{
    th_expect_refusal(clmgk_attention_validate(desc, NULL, &th_error), status, field, value);
}

bool th_is_full(void)
{
    const char *const full = getenv("CLMGK_TEST_FULL");
    return full && strcmp(full, "1") == 0;
}

/* CLMGK_TEST_ONLY=word,word: only tests with one of the words in their names. */
static bool is_chosen(const th_test *test)
{
    const char *word = getenv("CLMGK_TEST_ONLY");
    if (!word)
        return true;
    while (*word) {
        const size_t length = strcspn(word, ",");
        for (const char *at = test->name; *at; at++)
            if (length > 0 && strncmp(at, word, length) == 0)
                return true;
        word += length + (word[length] == ',');
    }
    return false;
}

int th_run_tests(void)
{
    struct CMUnitTest list[MOST_TESTS];
    size_t count = 0;
    bool session = false;
    for (size_t n = 0; n < test_count; n++) {
        const th_test *const test = &tests[n];
        if (!is_chosen(test))
            continue;
        session = session || test->session;
        if (!test->full || th_is_full())
            list[count++] = (struct CMUnitTest){test->name, test->run, test->set_up, test->tear_down, NULL};
    }
    if (count == 0 && test_count > 0) {
        (void)fprintf(stderr, "CLMGK_TEST_ONLY: %s: expected words in names of tests\n", getenv("CLMGK_TEST_ONLY"));
        return EXIT_FAILURE;
    }
    return _cmocka_run_group_tests("tests", list, count, session ? th_session_open : NULL,
                                   session ? th_session_close : NULL);
}

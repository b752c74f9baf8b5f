/* SPDX-License-Identifier: Apache-2.0 */
/* Results that are no cases: an object or a table, now or on a signal. */
#include "bench.h"

#include <stdlib.h>

/* The object, or the table; for free(). */
static tool_exit make_text(const bench_results *results, bool ended_early, char **text, tool_error *error)
{
    size_t size = 0;
    if (results->json) {
        *text = bench_json_lines(results->object(results->run), ended_early);
        return tool_check_memory(*text, "the JSON object", error);
    }
    FILE *const stream = open_memstream(text, &size);
    TOOL_TRY(tool_check_memory(stream, "the table", error));
    results->print(results->run, stream);
    if (ended_early)
        fputs("ended early\n", stream);
    return fclose(stream) == 0 ? TOOL_DONE : tool_fail_memory(error, "the table");
}

tool_exit bench_give_results(const bench_results *results, bool ended_early, tool_error *error)
{
    char *text = NULL;
    TOOL_TRY(make_text(results, ended_early, &text, error));
    if (ended_early)
        return tool_outputs_print(results->outputs, "", stdout, text, error);
    const tool_exit status = tool_outputs_print(results->outputs, text, stdout, NULL, error);
    free(text);
    return status;
}

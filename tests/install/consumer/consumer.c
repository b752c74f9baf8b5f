/* SPDX-License-Identifier: Apache-2.0 */
/* Uses the installed headers and library: with one key the output is its value. Compiles as C and as C++. */
#include <clmgk/clmgk.h>

#include <stdio.h>
#include <string.h>

int main(void)
{
    const float q[2] = {1.0F, 2.0F};
    const float k[2] = {3.0F, 4.0F};
    const float v[2] = {5.0F, 6.0F};
    float o[2] = {0.0F, 0.0F};
    clmgk_error error;
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    clmgk_host_args args = CLMGK_HOST_ARGS_INIT;
    memset(&error, 0, sizeof(error));

    desc.length = 1;
    desc.head_size = 2;
    args.q = q;
    args.k = k;
    args.v = v;
    args.o = o;
    if (strcmp(clmgk_version(), CLMGK_VERSION) != 0) {
        (void)fprintf(stderr, "library %s, header %s\n", clmgk_version(), CLMGK_VERSION);
        return 1;
    }
    if (clmgk_attention_forward_host(NULL, &desc, &args, &error) != CLMGK_OK) {
        (void)fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    if (o[0] != v[0] || o[1] != v[1]) {
        (void)fprintf(stderr, "got %g %g, expected %g %g\n", (double)o[0], (double)o[1], (double)v[0], (double)v[1]);
        return 1;
    }
    return 0;
}

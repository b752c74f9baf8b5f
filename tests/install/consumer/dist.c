/* SPDX-License-Identifier: Apache-2.0 */
/* A program that uses libclmgk-dist: which tokens each of two ranks has. */
#include <clmgk/dist.h>

#include <stdio.h>

int main(void)
{
    enum { RANKS = 2, TOKENS = 8 };
    int32_t tokens[TOKENS];
    int64_t lengths[RANKS];
    clmgk_error error = {0};
    if (clmgk_dist_permutation(CLMGK_DIST_ZIGZAG, TOKENS, NULL, 0, RANKS, tokens, lengths, &error) != CLMGK_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    for (int n = 0; n < TOKENS; n++)
        printf("rank %d: token %d\n", n >= lengths[0], tokens[n]);
    return tokens[0] == 0 && tokens[2] == 6 && lengths[0] == 4 ? 0 : 1;
}

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints tables of results; gpu-check.sh sources this file.
# shellcheck disable=SC2154 # gpu-check.sh sets the folder of the results

# For awk: the value of a key in a line of JSON.
# shellcheck disable=SC2016 # awk's $
json_value='
        function value(text, name) {
            if (!match(text, "\"" name "\": *(\"[^\"]*\"|[^,}]*)"))
                return ""
            text = substr(text, RSTART, RLENGTH)
            sub("^\"" name "\": *", "", text)
            gsub("\"", "", text)
            return text
        }'

# Prints a line for each provider of FILE, results of clmgk-bench --gemm.
print_products() { # FILE
    touch "$results/$1"
    awk "$json_value"'
        {
            count = split($0, part, /\{ *"device": *[0-9]+, *"dtype"/)
            for (i = 2; i <= count; i++) {
                text = "\"dtype\"" part[i]
                printf "    %5s x %-5s x %-5s %-5s %-9s ", value(text, "m"), value(text, "n"), value(text, "k"),
                    value(text, "dtype"), value(text, "provider")
                if (text ~ /"refused":/)
                    printf "not measured: %s\n", value(text, "refused")
                else
                    printf "%9.3f ms %8.1f TFLOP/s  %s\n", value(text, "median"), value(text, "gflops") / 1000,
                        value(text, "note")
            }
        }' "$results/$1"
}

# Prints a line for each case of FILE, results of clmgk-bench: the measurement and its part of the peak, beside PyTorch's
# fastest back end for softmax of the same shape, type and pass, if peers.jsonl has it.
print_cases() { # FILE
    touch "$results/peers.jsonl" "$results/$1"
    awk -v peers="$results/peers.jsonl" "$json_value"'
        BEGIN {
            while ((getline line < peers) > 0) {
                split(value(line, "case"), word, " ")
                ms = value(line, "ms")
                key = word[1] " " word[3] " " word[2]
                if (ms != "" && (!(key in best) || ms + 0 < best[key])) {
                    best[key] = ms + 0
                    by[key] = word[4]
                }
            }
            printf "    %-17s %-14s %5s %-5s %-9s %11s %8s %8s  %s\n", "shape", "variant", "heads", "type", "pass",
                "median", "TFLOP/s", "of peak", "PyTorch: softmax of the shape"
        }
        {
            count = split($0, part, /\{ *"device": *[0-9]+, *"shape"/)
            for (i = 2; i <= count; i++) {
                text = "\"shape\"" part[i]
                key = value(text, "shape") " " value(text, "dtype") " " value(text, "pass")
                variant = value(text, "variant") (value(text, "causal") == "true" ? "-causal" : "")
                beside = ""
                shape = value(text, "shape")
                if (shape == "null") { # it has the name of the case
                    split(value($0, "case"), word, " ")
                    shape = word[1]
                    key = value(text, "variant") == "softmax" ? shape substr(key, 5) : ""
                } else if (value(text, "causal") == "true") {
                    key = ""
                }
                if (key in best)
                    beside = sprintf("%.3f ms (%s)", best[key], by[key])
                fraction = value(text, "fraction_of_peak")
                printf "    %-17s %-14s %5s %-5s %-9s %8.3f ms %8.1f %8s  %s\n", shape, variant,
                    value(text, "heads"), value(text, "dtype"), value(text, "pass"), value(text, "median"),
                    value(text, "gflops") / 1000, fraction == "null" ? "-" : sprintf("%.3f", fraction), beside
            }
        }' "$results/$1"
}

# What the matrix engine shall reach on an H200 with bf16 arrays, N = 8192, a line each: words; what is measured, of which
# cases; the floor and the aim: numbers, or multiples of the rate of PyTorch's FlashAttention (x1.2) or of cuDNN (c1). Kinds,
# with CASE VARIANT PASS:
#   rate                        TFLOP/s
#   ms                          the time
#   time ... CASE VARIANT PASS  the time of the first in that of the second
#   speed ... SHAPE             the time of PyTorch's compiled formula in that of the case
#   compile                     seconds
#   read                        the part of the rate of reading that keys and values reach
# shellcheck disable=SC2034 # gpu-check.sh prints them
matrix_targets='softmax forward, D = 64; rate matrix-64 softmax forward; 450; 520
softmax forward, D = 128; rate matrix-128 softmax forward; 520; 680
causal, D = 64; rate matrix-64-causal softmax forward; 350; 420
causal, D = 128; rate matrix-128-causal softmax forward; 480; 560
backward, D = 64; rate matrix-64 softmax backward; x1.2; c1
backward, D = 128; rate matrix-128 softmax backward; x1.2; c1
causal backward, D = 64; rate matrix-64-causal softmax backward; -; -
causal backward, D = 128; rate matrix-128-causal softmax backward; -; -
MGK-4 / softmax-8, D = 128; time families-128 mgk forward families-128 softmax forward; 0.90; 0.78
sMGK-4 / softmax-8, D = 128; time families-128 smgk forward families-128 softmax forward; 0.60; 0.53
hard FiSH 2x8 / softmax-8, D = 128; time families-128 hard-fish forward families-128 softmax forward; 0.90; 0.80
hard MiSH 2x8 / softmax-8, D = 128; time families-128 hard-mish forward families-128 softmax forward; 0.70; 0.55
MGK-4 / softmax-8, D = 64; time families-64 mgk forward families-64 softmax forward; -; -
sMGK-4 / softmax-8, D = 64; time families-64 smgk forward families-64 softmax forward; -; -
hard FiSH 2x8 / softmax-8, D = 64; time families-64 hard-fish forward families-64 softmax forward; -; -
hard MiSH 2x8 / softmax-8, D = 64; time families-64 hard-mish forward families-64 softmax forward; -; -
backward MGK-4 / softmax-8, D = 128; time families-128 mgk backward families-128 softmax backward; -; -
backward sMGK-4 / softmax-8, D = 128; time families-128 smgk backward families-128 softmax backward; -; -
backward hard FiSH 2x8 / softmax-8, D = 128; time families-128 hard-fish backward families-128 softmax backward; -; -
backward hard MiSH 2x8 / softmax-8, D = 128; time families-128 hard-mish backward families-128 softmax backward; -; -
MGK-4, N = 4096, against PyTorch compiled; speed mgk-4096 mgk forward mgk-4096; 4; 6
cold compile, both passes, D = 128, s; compile cold-128 softmax backward; 4; 2
cold compile, both passes, MGK, D = 128, s; compile cold-mgk-128 mgk backward; 4; 2
decoding 64k, D = 128, of the read rate; read decode-64k-128 softmax forward; 0.85; 0.92
mma.sync: softmax forward, D = 64; rate mma-64 softmax forward; 330; 380
mma.sync: softmax forward, D = 128; rate mma-128 softmax forward; 350; 420
mma.sync: causal, D = 64; rate mma-64-causal softmax forward; 270; x1.3
mma.sync: causal, D = 128; rate mma-128-causal softmax forward; 290; x1.3
mma.sync: backward, D = 64; rate mma-64 softmax backward; x1; x1.2
mma.sync: backward, D = 128; rate mma-128 softmax backward; x1; x1.2
mma.sync: MGK-4 / softmax-8, D = 128; time mma-families-128 mgk forward mma-families-128 softmax forward; 0.90; 0.80
mma.sync: sMGK-4 / softmax-8, D = 128; time mma-families-128 smgk forward mma-families-128 softmax forward; 0.65; 0.55
mma.sync: hard FiSH 2x8 / softmax-8, D = 128; time mma-families-128 hard-fish forward mma-families-128 softmax forward; 0.90; 0.80
mma.sync: hard MiSH 2x8 / softmax-8, D = 128; time mma-families-128 hard-mish forward mma-families-128 softmax forward; 0.75; 0.60'

# The same for f32 arrays with 8 heads of 4,096 tokens, D = 64, and products of 4,096^3.
# shellcheck disable=SC2034 # gpu-check.sh prints them
table_targets='f32 softmax forward, ms; ms families softmax-f32 forward; 0.60; 0.35
f32 softmax backward, ms; ms families softmax-f32 backward; 2.2; 1.4
f32 softmax forward, tf32 products, ms; ms tf32 softmax-f32 forward; 0.25; 0.18
f32 softmax backward, tf32 products, ms; ms tf32 softmax-f32 backward; 0.9; 0.65
f32 MGK-4 against PyTorch compiled; speed families mgk-f32 forward mgk-4096; 2; 3
layer forward, width 512, 4 x 1024 tokens, f32, ms; ms layer softmax-f32 forward; -; -
the same layer, bf16, ms; ms layer softmax forward; -; -
the same layer, bf16, against PyTorch; speed layer softmax forward layer; 1; 1.3
products, bf16; rate product-4096 bf16 forward; 400; 600
products, f32; rate product-4096 f32 forward; 60; 90'

# Prints targets with what the results have, and with the unit that computed it. Beside them are PyTorch's back ends: rates
# in TFLOP/s, or times where the line is not a rate.
print_targets() { # TARGETS FILE...
    local file files=()
    for file in "${@:2}" peers.jsonl; do
        touch "$results/$file"
        files+=("$results/$file")
    done
    awk -v targets="$1" "$json_value"'
        function shown(number, format) { return number == "" ? "-" : sprintf(format, number) }
        # A target as a number: a multiple of the rate of FlashAttention or cuDNN, if that was measured.
        function target(text, flash, cudnn) {
            if (text ~ /^x/)
                return flash == "" ? text " FA2" : sprintf("%.0f", substr(text, 2) * flash)
            if (text ~ /^c/)
                return cudnn == "" ? "cuDNN" : sprintf("%.0f", substr(text, 2) * cudnn)
            return text
        }
        function beside(shape, type, pass, back_end, is_rate,    key) {
            sub(/^mma-/, "matrix-", shape)
            sub(/^families$/, "square-64", shape)
            key = shape " " pass " " type " " back_end
            if (is_rate)
                return shown(peer_rate[key] == "" ? "" : peer_rate[key] / 1000, "%.0f")
            return peer_ms[key] == "" ? "-" : sprintf("%.3fms", peer_ms[key])
        }
        BEGIN {
            back_end["product-4096"] = "CUBLAS"
            back_end["layer"] = "MODULE"
            back_end["mgk-4096"] = "COMPILED"
        }
        FILENAME ~ /peers.jsonl$/ {
            split(value($0, "case"), word, " ")
            peer_rate[word[1] " " word[2] " " word[3] " " word[4]] = value($0, "gflops")
            peer_ms[word[1] " " word[2] " " word[3] " " word[4]] = value($0, "ms")
            next
        }
        {
            split(value($0, "case"), name, " ")
            count = split($0, part, /\{ *"device": *[0-9]+, *"shape"/)
            for (i = 2; i <= count; i++) {
                text = "\"shape\"" part[i]
                own = value(text, "variant") (value(text, "dtype") == "f32" ? "-f32" : "")
                if (value(text, "shape") != "null" && value(text, "causal") == "true")
                    own = own "-causal"
                key = name[1] " " own " " value(text, "pass")
                ms[key] = value(text, "median")
                rate[key] = value(text, "gflops")
                read[key] = value(text, "kv_fraction_of_read")
                compile[key] = value(text, "compile_ms")
                unit[key] = text ~ /-DMATRIX_UNIT=2/ ? "wgmma" : text ~ /-DMATRIX_UNIT=1/ ? "mma" : value(text, "engine")
            }
            count = split($0, part, /\{ *"device": *[0-9]+, *"step"/)
            for (i = 2; i <= count; i++) {
                text = "\"step\"" part[i]
                key = name[1] " " value(text, "variant") (value(text, "dtype") == "f32" ? "-f32 " : " ") value(text, "step")
                ms[key] = value(text, "median")
                unit[key] = value(text, "provider")
            }
            count = split($0, part, /\{ *"device": *[0-9]+, *"dtype"/)
            for (i = 2; i <= count; i++) {
                text = "\"dtype\"" part[i]
                key = "product-" value(text, "m") " " value(text, "dtype") " forward"
                if (value(text, "gflops") + 0 > rate[key] + 0) {
                    rate[key] = value(text, "gflops")
                    unit[key] = value(text, "provider")
                }
            }
        }
        END {
            printf "    %-47s %9s %7s %7s %8s %8s %8s  %s\n", "H200", "measured", "floor", "aim", "Flash", "cuDNN",
                "PyTorch", "by"
            lines = split(targets, line_of, "\n")
            for (i = 1; i <= lines; i++) {
                split(line_of[i], field, "; ")
                split(field[2], word, " ")
                key = word[2] " " word[3] " " word[4]
                type = key ~ /-f32 | f32 / ? "f32" : "bf16"
                flash = beside(word[2], type, word[4], "FLASH_ATTENTION", word[1] == "rate")
                cudnn = beside(word[2], type, word[4], "CUDNN_ATTENTION", word[1] == "rate")
                other = beside(word[2], type, word[4], back_end[word[2]] == "" ? "EFFICIENT_ATTENTION" : back_end[word[2]],
                    word[1] == "rate")
                measured = ""
                if (word[1] == "rate") {
                    measured = rate[key] == "" ? "" : sprintf("%.0f", rate[key] / 1000)
                } else if (word[1] == "ms") {
                    measured = shown(ms[key], "%.3f")
                } else if (word[1] == "time") {
                    both = ms[word[5] " " word[6] " " word[7]]
                    measured = ms[key] == "" || both == "" ? "" : sprintf("%.2f", ms[key] / both)
                    flash = cudnn = other = "-"
                } else if (word[1] == "speed") {
                    other = beside(word[5], type, word[4], back_end[word[5]], 0)
                    measured = ms[key] == "" || other == "-" ? "" : sprintf("%.1f", other / ms[key])
                    flash = cudnn = "-"
                } else if (word[1] == "compile") {
                    measured = compile[key] == "" ? "" : sprintf("%.1f", compile[key] / 1000)
                } else {
                    measured = shown(read[key], "%.2f")
                }
                printf "    %-47s %9s %7s %7s %8s %8s %8s  %s\n", field[1], measured == "" ? "-" : measured,
                    target(field[3], flash ~ /^[0-9]+$/ ? flash : "", cudnn ~ /^[0-9]+$/ ? cudnn : ""),
                    target(field[4], flash ~ /^[0-9]+$/ ? flash : "", cudnn ~ /^[0-9]+$/ ? cudnn : ""), flash, cudnn, other,
                    unit[key]
            }
        }' "${files[@]}"
}

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
    awk "$json_value"'
        {
            count = split($0, part, /\{ *"device": *[0-9]+, *"dtype"/)
            for (i = 2; i <= count; i++) {
                text = "\"dtype\"" part[i]
                printf "    %5s x %-5s x %-5s %-5s %-9s %9.3f ms %8.1f TFLOP/s  %s\n", value(text, "m"), value(text, "n"),
                    value(text, "k"), value(text, "dtype"), value(text, "provider"), value(text, "median"),
                    value(text, "gflops") / 1000, value(text, "note")
            }
        }' "$results/$1"
}

# Prints a line for each case of FILE, results of clmgk-bench: the measurement and its part of the peak, beside PyTorch's
# fastest back end for softmax of the same shape, type and pass, if peers.jsonl has it.
print_cases() { # FILE
    touch "$results/peers.jsonl"
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

# What the matrix engine shall reach on an H200, a line each: words; what is measured, of which cases (CASE VARIANT PASS;
# their rate in TFLOP/s, the time of the first in that of the second, the part of the rate of reading keys and values);
# the floor and the aim: numbers, or multiples of the rate of PyTorch's FlashAttention (x1.2).
targets='softmax forward, D = 64; rate matrix-64 softmax forward; 330; 380
softmax forward, D = 128; rate matrix-128 softmax forward; 350; 420
causal, D = 64; rate matrix-64-causal softmax forward; 270; x1.3
causal, D = 128; rate matrix-128-causal softmax forward; 290; x1.3
backward, D = 64; rate matrix-64 softmax backward; x1; x1.2
backward, D = 128; rate matrix-128 softmax backward; x1; x1.2
causal backward, D = 64; rate matrix-64-causal softmax backward; -; -
causal backward, D = 128; rate matrix-128-causal softmax backward; -; -
MGK-4 / softmax-8, D = 128; time families-128 mgk forward families-128 softmax forward; 0.90; 0.80
sMGK-4 / softmax-8, D = 128; time families-128 smgk forward families-128 softmax forward; 0.65; 0.55
hard FiSH 2x8 / softmax-8, D = 128; time families-128 hard-fish forward families-128 softmax forward; 0.90; 0.80
hard MiSH 2x8 / softmax-8, D = 128; time families-128 hard-mish forward families-128 softmax forward; 0.75; 0.60
MGK-4 / softmax-8, D = 64; time families-64 mgk forward families-64 softmax forward; -; -
sMGK-4 / softmax-8, D = 64; time families-64 smgk forward families-64 softmax forward; -; -
hard FiSH 2x8 / softmax-8, D = 64; time families-64 hard-fish forward families-64 softmax forward; -; -
hard MiSH 2x8 / softmax-8, D = 64; time families-64 hard-mish forward families-64 softmax forward; -; -
backward MGK-4 / softmax-8, D = 128; time families-128 mgk backward families-128 softmax backward; -; -
backward sMGK-4 / softmax-8, D = 128; time families-128 smgk backward families-128 softmax backward; -; -
backward hard FiSH 2x8 / softmax-8, D = 128; time families-128 hard-fish backward families-128 softmax backward; -; -
backward hard MiSH 2x8 / softmax-8, D = 128; time families-128 hard-mish backward families-128 softmax backward; -; -
decoding 64k, D = 128, of the read rate; read decode-64k-128 softmax forward; 0.85; 0.92'

# Prints them with what matrix.jsonl and peers.jsonl have: rates of PyTorch's back ends in TFLOP/s, and their times for
# decoding in milliseconds.
print_targets() {
    touch "$results/peers.jsonl"
    awk -v targets="$targets" -v peers="$results/peers.jsonl" "$json_value"'
        function shown(number, format) { return number == "" ? "-" : sprintf(format, number) }
        # A target as a number: a multiple of the rate of FlashAttention, if that was measured.
        function target(text, flash) {
            if (text !~ /^x/)
                return text
            return flash == "" ? text " FA2" : sprintf("%.0f", substr(text, 2) * flash)
        }
        BEGIN {
            while ((getline line < peers) > 0) {
                split(value(line, "case"), word, " ")
                peer[word[1] " " word[2] " " word[4]] = value(line, "gflops")
                peer_ms[word[1] " " word[2] " " word[4]] = value(line, "ms")
            }
        }
        {
            split(value($0, "case"), name, " ")
            count = split($0, part, /\{ *"device": *[0-9]+, *"shape"/)
            for (i = 2; i <= count; i++) {
                key = name[1] " " value(part[i], "variant") " " value(part[i], "pass")
                ms[key] = value(part[i], "median")
                rate[key] = value(part[i], "gflops")
                read[key] = value(part[i], "kv_fraction_of_read")
            }
        }
        END {
            printf "    %-44s %9s %7s %7s %7s %7s\n", "H200, bf16, N = 8192", "measured", "floor", "aim", "Flash", "cuDNN"
            lines = split(targets, line_of, "\n")
            for (i = 1; i <= lines; i++) {
                split(line_of[i], field, "; ")
                split(field[2], word, " ")
                key = word[2] " " word[3] " " word[4]
                shape = word[2] " " word[4]
                flash = cudnn = measured = ""
                if (word[1] == "rate") {
                    measured = rate[key] == "" ? "" : sprintf("%.0f", rate[key] / 1000)
                    flash = shown(peer[shape " FLASH_ATTENTION"] / 1000, "%.0f")
                    cudnn = shown(peer[shape " CUDNN_ATTENTION"] / 1000, "%.0f")
                } else if (word[1] == "time") {
                    other = ms[word[5] " " word[6] " " word[7]]
                    measured = ms[key] == "" || other == "" ? "" : sprintf("%.2f", ms[key] / other)
                } else {
                    measured = shown(read[key], "%.2f")
                    flash = shown(peer_ms[shape " FLASH_ATTENTION"], "%.3f")
                    cudnn = shown(peer_ms[shape " CUDNN_ATTENTION"], "%.3f")
                    flash = flash == "-" ? "" : flash "ms"
                    cudnn = cudnn == "-" ? "" : cudnn "ms"
                }
                number = flash ~ /^[0-9]+$/ && flash > 0 ? flash : ""
                printf "    %-44s %9s %7s %7s %7s %7s\n", field[1], measured == "" ? "-" : measured,
                    target(field[3], number), target(field[4], number), flash == "" || flash == "0" ? "-" : flash,
                    cudnn == "" || cudnn == "0" ? "-" : cudnn
            }
        }' "$results/matrix.jsonl"
}

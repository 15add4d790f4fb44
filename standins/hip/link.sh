#!/bin/sh
# Links libamdhip64.so.6 from the static library that cargo built, because a cdylib has no symbol versions. If FUNCTION is
# given, the library does not export it, as an older runtime.
#   link.sh STATIC_LIBRARY OUTPUT [SONAME [FUNCTION]]
set -eu
here=$(dirname "$0")
draft="$2.$$"
trap 'rm -f "$draft" "$draft.map"' EXIT
awk -v without="${4:-}" '!/^#/ && $2 != "-" && $3 != without { names[$2] = names[$2] " " $3 ";"; if (!seen[$2]++) versions[++count] = $2 }
END {
        # By number: each version inherits from the previous one.
    for (i = 1; i <= count; i++) for (j = i + 1; j <= count; j++)
        if (substr(versions[j], 5) + 0 < substr(versions[i], 5) + 0) { t = versions[i]; versions[i] = versions[j]; versions[j] = t }
    for (i = 1; i <= count; i++)
        printf "%s { global:%s%s }%s;\n", versions[i], names[versions[i]], i == 1 ? " local: *;" : "", i == 1 ? "" : " " versions[i - 1]
}' "$here/interface.txt" > "$draft.map"
# As AMD's runtime: it binds its own functions to itself, whatever is preloaded.
"${CC:-cc}" -shared -o "$draft" -Wl,-soname,"${3:-libamdhip64.so.6}" -Wl,--version-script="$draft.map" -Wl,-Bsymbolic \
    -Wl,--whole-archive "$1" -Wl,--no-whole-archive -ldl -lpthread -lm -lgcc_s
mv "$draft" "$2"
